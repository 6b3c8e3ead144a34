"""What a program costs: counted exactly, and predicted with the alpha-beta-gamma model.

A message of m bytes takes alpha + beta m, and reducing m bytes gamma m. A ring allreduce of n bytes over p
ranks then takes 2 (p - 1) alpha + 2 (p - 1) / p n beta + (p - 1) / p n gamma. (MXNET-MPI, section 6, counts
one pass around the ring for the latency where there are two.)

Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvstore_mpi.tensor_collectives.steps import (
    Await,
    Barrier,
    Collect,
    Combine,
    Exchange,
    Fetch,
    LibraryAllreduce,
    Program,
    Range,
    Reduce,
    Share,
)


class Counts(NamedTuple):
    """What one rank does.

    Attributes:
        rounds: Exchanges, one after the other.
        sent: Elements that leave.
        received: Elements that come.
        reduced: Elements of what was received, or of others' memory, that are added.
        copied: Elements that are copied from or to others' memory.
        barriers: How often it waits for others without a message.
    """

    rounds: int
    sent: int
    received: int
    reduced: int
    copied: int
    barriers: int


def count(program: Program, rank: int) -> Counts:
    """Count what a program does."""
    exchanges = [step for step in program if isinstance(step, Exchange)]
    return Counts(
        rounds=len(exchanges),
        sent=sum(send.hi - send.lo for step in exchanges for send in step.sends),
        received=sum(receive.hi - receive.lo for step in exchanges for receive in step.receives),
        reduced=sum(_reduced(step, rank) for step in program),
        copied=sum(_copied(step, rank) for step in program),
        barriers=sum(isinstance(step, Barrier) for step in program),
    )


def _reduced(step: object, rank: int) -> int:
    """Return how many elements of others a step adds."""
    if isinstance(step, Reduce):
        return step.hi - step.lo if step.slot is not None else 0
    if isinstance(step, Combine):
        return step.hi - step.lo
    if isinstance(step, Collect):
        return (step.hi - step.lo) * len([each for each in step.ranks if each != rank])
    return 0


def _copied(step: object, rank: int) -> int:
    """Return how many elements a step copies from or to others."""
    if isinstance(step, Fetch):
        return step.hi - step.lo
    if isinstance(step, Collect):
        return (step.hi - step.lo) * len([each for each in step.targets if each != rank])
    return 0


class Model(NamedTuple):
    """A machine, as seen by one rank while the others do the same.

    Attributes:
        alpha: Seconds of a message without content.
        beta: Seconds of a byte between ranks.
        gamma: Seconds to reduce a byte that has come.
        gamma_local: Seconds to reduce a byte of the tensor's vectors; 0 if the vector is the buffer.
        delta: Seconds to copy a byte within the host.
        barrier: Seconds to wait for the others when all come at once, for each doubling of their number.
        overhead: Seconds that a step takes whatever its size.
        asynchronous: Local reductions and transfers go on at the same time, as with a GPU.
    """

    alpha: float
    beta: float
    gamma: float
    gamma_local: float = 0.0
    delta: float = 0.0
    barrier: float = 0.0
    overhead: float = 0.0
    asynchronous: bool = False


def rounds(ranks: int) -> int:
    """Return in how many rounds of pairs ranks can all hear from each other; at least one."""
    return max(1, (ranks - 1).bit_length())


def predict(program: Program, itemsize: int, model: Model) -> float:
    """Return the seconds of a program, all ranks doing alike.

    Where reductions are asynchronous each takes its turn on the device and ends when it ends; ``Await``
    makes the rank wait for it.
    """
    now = device = 0.0
    ends: dict[Range, float] = {}
    for step in program:
        now += model.overhead
        if isinstance(step, Exchange):
            now += model.alpha + model.beta * itemsize * _largest(step)
        elif isinstance(step, (Reduce, Share)):
            local = model.gamma_local if isinstance(step, Reduce) else model.delta
            added = model.gamma if isinstance(step, Reduce) and step.slot is not None else 0.0
            seconds = (local + added) * itemsize * (step.hi - step.lo)
            device = max(device, now) + seconds
            ends[step.lo, step.hi] = device
            now = now if model.asynchronous else device
        elif isinstance(step, LibraryAllreduce):
            raise TypeError("what a library takes is measured (Profile.library_seconds), not predicted")
        elif isinstance(step, Await):
            now = max([now, *(end for extent, end in ends.items() if _overlap(extent, step))])
        elif isinstance(step, Barrier):
            now += model.barrier * rounds(len(step.ranks))
        elif isinstance(step, Fetch):
            now += model.delta * itemsize * (step.hi - step.lo)
        elif isinstance(step, Combine):
            now += model.gamma * itemsize * (step.hi - step.lo)
        elif isinstance(step, Collect):
            a_byte = model.gamma * (len(step.ranks) - 1) + model.delta * (len(step.targets) - 1)
            now += a_byte * itemsize * (step.hi - step.lo)
    return now


def fit(model: Model, name: str, program: Program, itemsize: int, seconds: float) -> Model:
    """Return the model with one of its costs such that it predicts what a program was measured to take.

    The cost is 0 where the others alone predict more.
    """
    values: list[dict[str, Any]] = [{name: 0.0}, {name: 1.0}]
    without, with_one = (predict(program, itemsize, model._replace(**value)) for value in values)
    found: dict[str, Any] = {name: max(0.0, seconds - without) / (with_one - without)}
    return model._replace(**found)


def _largest(step: Exchange) -> int:
    """Return the elements in the busier direction: links carry both at once."""
    sent = sum(send.hi - send.lo for send in step.sends)
    return max(sent, sum(receive.hi - receive.lo for receive in step.receives))


def _overlap(extent: Range, step: Await) -> bool:
    return extent[0] < step.hi and step.lo < extent[1]
