"""E(B): the epochs until a target is reached, against the global batch. Pure.

What ``mpilaunch measure-epochs`` has measured, or figures of a paper. The curve goes through the measured
points and is linear in log B between them. More samples in a step never help: a point that lies below one
of a smaller batch is noise, and both, and what lies between, get their mean. A batch with which the target
was not reached has no epochs, and neither has any larger one.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec

from kvstore_mpi.errors import UsageError

MOST_EPOCHS = 1e9
"""Of a run: no training has as many, and what is multiplied by more can no longer be shown in a table."""


class Epochs(NamedTuple):
    """A value of the curve.

    Attributes:
        epochs: E(B); infinity where the target is not reached.
        extrapolated: The batch is smaller than all that were measured, whose first epochs these are: a
            larger batch needs no fewer, so that this is the most that it can be.
    """

    epochs: float
    extrapolated: bool = False


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured with one batch.

    Attributes:
        batch: Samples of one update, over all workers.
        epochs: Of each run; ``None`` where it did not reach the target.
    """

    batch: int
    epochs: tuple[float | None, ...]

    @property
    def middle(self) -> float:
        """The median over the runs, those that did not get there counted as the longest."""
        return median(math.inf if each is None else each for each in self.epochs)


class EpochsCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """E(B).

    Attributes:
        points: By batch, ascending; at least one.
        target: What was to be reached, for people.
        source: Where the points are from, for people.
    """

    points: tuple[Measured, ...]
    target: str = ""
    source: str = ""

    @classmethod
    def of(cls, points: dict[int, float | None], target: str = "", source: str = "") -> EpochsCurve:
        """Make a curve of one value for each batch."""
        measured = tuple(Measured(batch, (epochs,)) for batch, epochs in sorted(points.items()))
        return cls(measured, target, source)

    @property
    def largest(self) -> int:
        """The largest batch that was measured."""
        return self.points[-1].batch

    def at(self, batch: float) -> Epochs | None:
        """Return E(B), or ``None`` where nothing is known of it.

        That is above the largest batch that was measured, and between the last one that reached the target
        and the first one that did not.
        """
        values = self.monotone()
        if batch < values[0][0]:
            return Epochs(values[0][1], extrapolated=True)
        for (low, below), (high, above) in pairwise(values):
            if batch == low:
                return Epochs(below)
            if batch < high:
                return _between(batch / low, high / low, below, above)
        last, epochs = values[-1]
        return Epochs(epochs) if batch == last or epochs == math.inf else None

    def monotone(self) -> list[tuple[int, float]]:
        """Return (batch, epochs) of the points, with what falls replaced by means of neighbours."""
        blocks: list[list[float]] = []
        for point in self.points:
            blocks.append([point.middle])
            while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
                last = blocks.pop()
                blocks[-1] += last
        values = [_mean(block) for block in blocks for _ in block]
        return [(point.batch, value) for point, value in zip(self.points, values)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _between(ratio: float, whole: float, below: float, above: float) -> Epochs | None:
    """Return the value on the line in log B between two points; nothing if one is not finite."""
    if above == math.inf:
        return Epochs(math.inf) if below == math.inf else None
    return Epochs(below + (above - below) * math.log(ratio) / math.log(whole))


def write_curve(curve: EpochsCurve) -> bytes:
    """Return a curve as JSON."""
    return msgspec.json.format(msgspec.json.encode(curve), indent=1) + b"\n"


def read_curve(text: bytes, where: str = "this text") -> EpochsCurve:
    """Read the JSON of a curve.

    Args:
        text: What ``write_curve`` has returned.
        where: Where the text is from, for the error.

    Raises:
        UsageError: It is no curve.
    """
    how = "make one with mpilaunch measure-epochs"
    try:
        curve = msgspec.json.decode(text, type=EpochsCurve)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{where} is no curve of epochs: {error}; {how}") from error
    batches = [point.batch for point in curve.points]
    runs = [each for point in curve.points for each in point.epochs]
    if not batches or batches != sorted(set(batches)) or batches[0] < 1:
        raise UsageError(
            f"{where} is no curve of epochs: it needs batches of 1 or more, each once, ascending; {how}"
        )
    if not all(point.epochs for point in curve.points) or any(
        each is not None and not 0 < each <= MOST_EPOCHS for each in runs
    ):
        raise UsageError(
            f"{where} is no curve of epochs: each batch needs one run or more, and a run null, or "
            f"epochs above 0 and at most {MOST_EPOCHS:g}; {how}"
        )
    return curve
