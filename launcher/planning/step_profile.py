"""What a step of a net computes and sends, from the trace of a job of one worker. Pure.

A gradient's moment is when the trace calls it ready; backward goes from the last layer, whose gradient is
ready first, to the first one. So a layer's backward time is from the gradient before it to its own. What
lies before the first gradient is the forward pass and the last layer's backward pass: two thirds of all
compute are taken for backward. Forward is shared out like backward. Keys come by priority, and so in the
order in which their values are needed.

Of a hybridized net all gradients are ready at the same moment, and its forward pass needs all values at
once: all compute is then the last layer's, behind which nothing can be hidden.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.net import BACKWARD_SHARE, Net, NetLayer
from kvstore_mpi.tracing.intervals import clip, length
from kvstore_mpi.tracing.iterations import computing, training_spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvstore_mpi.records import Key
    from kvstore_mpi.tracing.timeline import Operation, Timeline

ITEM_BYTES = 4
DROPPED = 2
"""Steps at the beginning that make buffers and choose kernels."""

_Name = tuple[int, "Key"]


def profile(timeline: Timeline, name: str, batch: int, samples: int) -> Net:
    """Return the net of a worker's trace; its values are taken to be float32.

    Args:
        timeline: Of a worker that trained alone.
        name: Of the net.
        batch: Samples of a step.
        samples: Of an epoch.

    Raises:
        UsageError: The trace has too few whole iterations.
    """
    pushes = [each for each in timeline.operations if each.sequence]
    steps = _steps(pushes)[DROPPED:]
    ends = [max(step.values()) for step in steps]
    whole = [*pairwise(ends)]
    if not whole:
        raise UsageError(
            f"the script of {name} has made too few steps to be measured: it takes {DROPPED + 2} or more, "
            "all of which push the same keys to a store of kvstore_mpi"
        )
    header = timeline.header
    sizes = {(store, key): header.elements.get(number, 0) for number, store, key in header.keys}
    order = sorted(steps[-1], key=lambda each: -_priorities(pushes)[each])
    step_s = median(until - since for since, until in whole) / 1e9
    compute_s = step_s
    if training_spans(timeline):
        marked = computing(timeline)
        compute_s = median(length(clip(marked, since, until)) for since, until in whole) / 1e9
    backward = _backward_seconds(steps, order)
    return Net(
        name, batch, samples, _layers(order, sizes, backward, compute_s), max(0.0, step_s - compute_s)
    )


def _steps(pushes: Sequence[Operation]) -> list[dict[_Name, int]]:
    """Return when each gradient of a step was ready, for the steps that have all of them."""
    steps: dict[int, dict[_Name, int]] = {}
    for each in pushes:
        steps.setdefault(each.sequence, {})[each.store, each.key] = each.since
    most = max(map(len, steps.values()), default=0)
    return [step for _, step in sorted(steps.items()) if len(step) == most]


def _priorities(pushes: Sequence[Operation]) -> dict[_Name, int]:
    return {(each.store, each.key): each.priority for each in pushes}


def _backward_seconds(steps: Sequence[Mapping[_Name, int]], order: Sequence[_Name]) -> dict[_Name, float]:
    """Return, for each key but the last of forward, the median time from the gradient before its own."""
    backwards = [*reversed(order)]
    return {
        own: max(0.0, median(step[own] - step[before] for step in steps) / 1e9)
        for before, own in pairwise(backwards)
    }


def _layers(
    order: Sequence[_Name], sizes: Mapping[_Name, int], backward: Mapping[_Name, float], compute_s: float
) -> tuple[NetLayer, ...]:
    """Share out the compute: what is not known to be backward, as the module's docstring says."""
    known = sum(backward.values())
    scale = min(1.0, compute_s / known) if known else 1.0
    last = max(0.0, BACKWARD_SHARE * compute_s - scale * known)
    times = [scale * backward.get(each, 0.0) for each in order]
    times[-1] += last
    forward_s = max(0.0, compute_s - sum(times))
    share = forward_s / sum(times) if sum(times) else 0.0
    return tuple(
        NetLayer(str(key), ITEM_BYTES * sizes[store, key], share * seconds, seconds)
        for (store, key), seconds in zip(order, times)
    )
