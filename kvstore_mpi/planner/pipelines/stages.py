"""Where to cut a chain of layers into stages. Pure.

For stages that take t_i for a micro-batch, forward and backward, and cuts whose transfers both ways take
c_i, a step of m micro-batches takes about

    T = sum_i t_i + sum_i c_i + (m - 1) max(max_i t_i, max_i c_i)

the time of one micro-batch through all stages, and of the others at the pace of the slowest stage or link.
Each stage has a device, whose speed t_i follows and whose memory it must fit. What the fastest device would
take for all layers is the same for all cuts; ``partition`` finds the smallest of the rest. What a schedule
makes of a cut is ``timetable``'s to say.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cluster import NO_LINK, Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.planner.cluster import Link


class Layer(NamedTuple):
    """What a layer costs for one micro-batch.

    Attributes:
        name: What messages call it.
        seconds: Forward and backward together, on a device of speed 1.
        output_bytes: Of what the next layer takes.
        held_bytes: What is kept of each micro-batch between forward and backward.
        fixed_bytes: Weights, gradients and what the optimizer keeps.
        parameters: Names of what it learns.
    """

    name: str
    seconds: float
    output_bytes: int = 0
    held_bytes: int = 0
    fixed_bytes: int = 0
    parameters: tuple[str, ...] = ()


class Stages(NamedTuple):
    """A cut of a chain.

    Attributes:
        bounds: First layer of each stage but the first.
        seconds: Of each stage for a micro-batch.
        memory: Bytes that each stage needs.
        step: T above, in seconds.
    """

    bounds: tuple[int, ...]
    seconds: tuple[float, ...]
    memory: tuple[int, ...]
    step: float


class _Partial(NamedTuple):
    """A cut of the first layers; compared by all that later ones can change.

    Attributes:
        slowest: Seconds of its slowest stage or link.
        spent: Seconds of its links, and those of its stages that the fastest device would not take.
        bounds: First layer of each stage but the first.
    """

    slowest: float
    spent: float
    bounds: tuple[int, ...]


class _Chain:
    """Sums over runs of layers, and what may not be cut."""

    def __init__(
        self, layers: Sequence[Layer], micro_batches: int, link: Link, devices: Sequence[Device]
    ) -> None:
        self.layers = layers
        self.num_stages = len(devices)
        self.micro_batches = micro_batches
        self.devices = devices
        self.whole = shared_runs(layers)
        self.cut_s = [2 * link.seconds(layer.output_bytes) for layer in layers]
        self._fastest = max(device.speed for device in devices)

    def seconds(self, stage: int, first: int, last: int) -> float:
        return self._work(first, last) / self.devices[stage].speed

    def more_seconds(self, stage: int, first: int, last: int) -> float:
        """Return what a stage takes more than on the fastest device; exactly 0 where all are equal."""
        return self._work(first, last) * (1 / self.devices[stage].speed - 1 / self._fastest)

    def _work(self, first: int, last: int) -> float:
        return sum(layer.seconds for layer in self.layers[first:last])

    def memory(self, stage: int, first: int, last: int) -> int:
        held = min(self.num_stages - stage, self.micro_batches)  # 1F1B
        return sum(layer.fixed_bytes + held * layer.held_bytes for layer in self.layers[first:last])

    def fits(self, stage: int, first: int, last: int) -> bool:
        limit = self.devices[stage].memory_bytes
        return not limit or self.memory(stage, first, last) <= limit

    def may_cut(self, before: int) -> bool:
        return not any(first < before <= last for first, last in self.whole.values())

    def finish(self, bounds: tuple[int, ...]) -> Stages:
        runs = list(zip((0, *bounds), (*bounds, len(self.layers))))
        seconds = tuple(self.seconds(stage, *run) for stage, run in enumerate(runs))
        cuts = [self.cut_s[bound - 1] for bound in bounds]
        step = sum(seconds) + sum(cuts) + (self.micro_batches - 1) * max((*seconds, *cuts))
        return Stages(
            bounds, seconds, tuple(self.memory(stage, *run) for stage, run in enumerate(runs)), step
        )


def partition(
    layers: Sequence[Layer],
    num_stages: int,
    *,
    micro_batches: int = 1,
    link: Link | None = None,
    devices: Sequence[Device] = (),
) -> Stages:
    """Return a cut with the shortest step; always the same.

    Dynamic programming over the number of stages and of layers in them. A cut of the first layers is kept
    while no other has both a quicker slowest part and less spent: of such pairs there are few.

    Args:
        layers: In their order.
        num_stages: Each has at least one layer.
        micro_batches: Of a step.
        link: Between any two neighbouring stages; one that takes no time if not given.
        devices: Of each stage; of speed 1 with any memory if not given. A stage needs memory for the
            micro-batches that 1F1B holds.

    Raises:
        UsageError: There is no cut; the text says why.
    """
    _check_numbers(len(layers), num_stages, micro_batches)
    chain = _Chain(layers, micro_batches, link or NO_LINK, devices or [Device("")] * num_stages)
    count = len(layers)
    best: dict[int, list[_Partial]] = {0: [_Partial(0.0, 0.0, ())]}
    for stage in range(num_stages):
        ends = [count] if stage == num_stages - 1 else range(stage + 1, count - num_stages + stage + 2)
        best = {end: _kept(_extended(chain, best, stage, end)) for end in ends if _is_end(chain, end)}
    found = best.get(count, [])
    if not found:
        raise UsageError(_why_none(chain))
    weight = micro_batches - 1
    least = min(found, key=lambda each: (each.spent + weight * each.slowest, each.bounds))
    return chain.finish(least.bounds)


def cut_at(
    layers: Sequence[Layer],
    bounds: Sequence[int],
    *,
    micro_batches: int = 1,
    link: Link | None = None,
    devices: Sequence[Device] = (),
) -> Stages:
    """Return what a given cut costs, whether its stages fit or not.

    Raises:
        UsageError: It is no cut into stages of at least one layer, or separates layers that share a weight.
    """
    edges = [0, *bounds, len(layers)]
    if any(later <= earlier for earlier, later in pairwise(edges)):
        raise UsageError(
            f"the stages {list(bounds)} are no cut of {len(layers)} layers: give the first layer of each "
            "stage but the first, in order, so that each has at least one"
        )
    chain = _Chain(layers, micro_batches, link or NO_LINK, devices or [Device("")] * (len(bounds) + 1))
    for parameter, (first, last) in chain.whole.items():
        if any(first < bound <= last for bound in bounds):
            raise UsageError(
                f"the weight {parameter!r} is shared by the layers {layers[first].name} and "
                f"{layers[last].name}, which the stages {list(bounds)} separate: keep them together"
            )
    return chain.finish(tuple(bounds))


def shared_runs(layers: Sequence[Layer]) -> dict[str, tuple[int, int]]:
    """Return the first and the last layer of each parameter that several have."""
    users: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        for parameter in layer.parameters:
            users.setdefault(parameter, []).append(index)
    return {name: (used[0], used[-1]) for name, used in users.items() if used[0] != used[-1]}


def _extended(chain: _Chain, best: dict[int, list[_Partial]], stage: int, end: int) -> list[_Partial]:
    found = []
    for begin, partials in best.items():
        if begin >= end or not chain.fits(stage, begin, end):
            continue
        seconds, more = chain.seconds(stage, begin, end), chain.more_seconds(stage, begin, end)
        cut = chain.cut_s[begin - 1] if begin else 0.0
        bounds = (begin,) if begin else ()
        found += [
            _Partial(max(each.slowest, seconds, cut), each.spent + cut + more, each.bounds + bounds)
            for each in partials
        ]
    return found


def _kept(partials: list[_Partial]) -> list[_Partial]:
    """Return those that no other is as good as in both respects."""
    kept: list[_Partial] = []
    for each in sorted(partials):
        if not kept or each.spent < kept[-1].spent:
            kept.append(each)
    return kept


def _is_end(chain: _Chain, end: int) -> bool:
    return end == len(chain.layers) or chain.may_cut(end)


def _check_numbers(num_layers: int, num_stages: int, micro_batches: int) -> None:
    if num_stages < 1 or micro_batches < 1:
        raise UsageError(f"stages and micro-batches are at least 1, not {num_stages} and {micro_batches}")
    if not num_layers:
        raise UsageError("the net has no layers, of which stages could be made")
    if num_stages > num_layers:
        raise UsageError(
            f"{num_stages} stages cannot be made of {num_layers} layers: give --model-parallel "
            f"{num_layers} or less"
        )


def _why_none(chain: _Chain) -> str:
    layers, count = chain.layers, len(chain.layers)
    possible = sum(chain.may_cut(bound) for bound in range(1, count))
    if possible < chain.num_stages - 1:
        names = ", ".join(repr(name) for name in chain.whole)
        return (
            f"{chain.num_stages} stages cannot be made of {count} layers, because layers that share a "
            f"weight stay together ({names}): {possible + 1} can"
        )
    large = max(range(count), key=lambda index: chain.memory(chain.num_stages - 1, index, index + 1))
    least = chain.memory(chain.num_stages - 1, large, large + 1)
    limits = [device.memory_bytes for device in chain.devices]
    have = f"{limits[0]} bytes for each"
    if len({*limits}) > 1:
        have = f"their devices ({', '.join(f'{limit} bytes' if limit else 'any' for limit in limits)})"
    return (
        f"no cut into {chain.num_stages} stages fits into {have}: the layer "
        f"{layers[large].name} alone needs at least {least}, and all layers "
        f"{sum(layer.fixed_bytes + layer.held_bytes for layer in layers)}; take more stages or smaller "
        "micro-batches"
    )
