"""Into how many pieces tables are cut: a search by the times of real steps, while the job trains.

Parallax doubles the number of pieces until a step takes longer, halves it from where it began until a step
takes longer, fits t(P) = th0 + th1 / P + th2 P and takes the fastest P within the range that it has seen.
There a sample counts as slower however little it is slower: with the paper's own figures (Table 2) that
stops the search at 64 of 256 pieces and at 32, for half a percent of noise. Here a sample is slower if it
is so by more than its noise.

Everything follows from the times that are fed, so that ranks that are fed the same times agree on every
number of pieces. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.hybrid.fit import Curve, Sample, beside, fit, is_slower, sample_of

if TYPE_CHECKING:
    from collections.abc import Sequence

AUTO_PARTITIONS = 0
"""Stands for a number of pieces that is left to this package."""

SAMPLE_STEPS = 50
WARM_UP_STEPS = 10
"""Steps after a change of the number of pieces that do not count: rows move, buffers are made."""

SMALL_PIECE_BYTES = 64 << 10
"""A table is cut if its pieces have at least this size: below, a piece's header and its update's fixed cost
weigh more than what a second server takes off the first."""

LARGE_PIECE_BYTES = 16 << 20
"""A piece is not larger unless a user says so: its initial value is one frame."""

LARGEST_PER_SERVER = 64

MOST_PARTITIONS = 1 << 14
"""Each is a thing of its own for workers, servers and scheduler, to be made before the first step."""

LARGEST_PIECE_BYTES = 256 << 20
"""A search tries no larger ones: a piece goes over to its new server as one frame."""


def steps_until_sample() -> int:
    """Return how many steps end before a sample is whole: a time is that between two of them."""
    return 1 + WARM_UP_STEPS + SAMPLE_STEPS


class StepTimes:
    """The times of steps that were made with one number of pieces, as one rank measures them."""

    def __init__(self) -> None:
        """Start at a change of the number of pieces."""
        self._skip = WARM_UP_STEPS
        self._seconds: list[float] = []

    def add(self, seconds: float) -> bool:
        """Take the time of a step; return whether there are enough."""
        if self._skip:
            self._skip -= 1
        else:
            self._seconds.append(seconds)
        return len(self._seconds) >= SAMPLE_STEPS

    def take(self) -> list[float]:
        """Return the times, and start anew.

        Ranks measure different times: they must agree on some before these are fed to a search, for
        example on the longest of each step.
        """
        seconds, self._seconds, self._skip = self._seconds, [], WARM_UP_STEPS
        return seconds


class Found(NamedTuple):
    """What a search has come to.

    Attributes:
        pieces: The fastest number of pieces.
        seconds: Of a step with these, as predicted, or as measured where that was faster than the curve.
        curve: The fitted curve.
        samples: All samples, in the order in which they were made.
    """

    pieces: int
    seconds: float
    curve: Curve
    samples: tuple[Sample, ...]


class PartitionSearch:
    """Looks for the number of pieces with which a step takes least time.

    ::

        search = PartitionSearch(start=servers, largest=...)
        while search.found is None:
            # cut into search.pieces, train some steps, agree on their times
            search.feed(times)

    Attributes:
        pieces: The number to try now; once there is a result, that of the result.
        found: The result, or ``None`` until there is one.
    """

    def __init__(self, start: int, largest: int, *, least: int = 1, multiple: int = 1) -> None:
        """Begin with ``start`` pieces.

        Args:
            start: The first number; the paper takes the number of machines.
            largest: No number above this is tried.
            least: No number below this.
            multiple: Above this number of pieces only its multiples are taken: with as many servers, others
                leave one server with a piece more than the rest.
        """
        self.pieces = min(start, largest)
        self.found: Found | None = None
        self._start = self.pieces
        self._least, self._largest = least, largest
        self._multiple = multiple
        self._samples: list[Sample] = []
        self._halving = False

    def feed(self, seconds: Sequence[float]) -> int:
        """Take the times of the steps made with ``pieces`` pieces; return the number to try next."""
        return self.feed_sample(sample_of(self.pieces, seconds))

    def feed_sample(self, sample: Sample) -> int:
        """Take a sample whose error is known otherwise; return the number of pieces to try next."""
        slower = bool(self._samples) and is_slower(sample, self._best())
        self._samples.append(sample)
        following = self._next(slower=slower)
        if following is None:
            self.found = self._conclude()
            following = self.found.pieces
        self.pieces = following
        return following

    def _next(self, *, slower: bool) -> int | None:
        """Return the next number to try; nothing at the end."""
        if not self._halving:
            if not slower and self.pieces * 2 <= self._largest:
                return self.pieces * 2
            # Fewer pieces than the first number are worth a sample only if that is not slower than others.
            self._halving = True
            slower = is_slower(self._samples[0], self._best())
            return None if slower else self._half(self._start)
        return None if slower else self._half(self.pieces)

    def _half(self, pieces: int) -> int | None:
        return pieces // 2 if pieces // 2 >= self._least else None

    def _best(self) -> Sample:
        return min(self._samples, key=lambda each: each.seconds)

    def _conclude(self) -> Found:
        """Choose within the range of the samples: beyond it the curve is a guess."""
        curve = fit(self._samples)
        tried = [each.pieces for each in self._samples]
        # Of equally fast numbers the least.
        pieces = min(self._candidates(min(tried), max(tried)), key=curve.seconds)
        seconds = curve.seconds(pieces)
        best = self._best()
        # Where steps do not follow the curve, what was measured counts and not what it makes of it.
        if seconds - best.seconds > 2 * best.error:
            pieces, seconds = best.pieces, best.seconds
        return Found(pieces, seconds, curve, tuple(self._samples))

    def _candidates(self, least: int, most: int) -> list[int]:
        fewer = range(least, min(most, self._multiple) + 1)
        first = max(self._multiple, -(-least // self._multiple) * self._multiple)
        return sorted(
            {*fewer, *range(first, most + 1, self._multiple), *(each.pieces for each in self._samples)}
        )


class SteadySearch:
    """The same search on a machine that does other things as well, at one time more than at another.

    After each number of pieces the first one is tried again, and samples count in proportion to those
    beside them (``fit.beside``). With as much noise as jobs had here (docs/sparse.md) that finds a number
    within 5 % of the best more often, for twice as many samples.

    Attributes:
        pieces: The number to try now; once there is a result, that of the result.
    """

    def __init__(self, start: int, largest: int, *, least: int = 1, multiple: int = 1) -> None:
        """Begin with ``start`` pieces; arguments as of ``PartitionSearch``."""
        self._search = PartitionSearch(start, largest, least=least, multiple=multiple)
        self._start = self._search.pieces
        self._first: Sample | None = None
        self._before: Sample | None = None  # of the first number, made last
        self._tried: Sample | None = None  # of another number, made since
        self.pieces = self._start

    @property
    def found(self) -> Found | None:
        """The result, or ``None`` until there is one; its samples are as of the search's beginning."""
        return self._search.found

    def feed(self, seconds: Sequence[float]) -> int:
        """Take the times of the steps made with ``pieces`` pieces; return the number to try next."""
        sample = sample_of(self.pieces, seconds)
        if self._first is None or self._before is None:
            self._first = self._before = sample
            self.pieces = self._search.feed_sample(sample)
        elif self._tried is None:
            self._tried = sample
            self.pieces = self._start
        else:
            self.pieces = self._search.feed_sample(beside(self._tried, self._before, sample, self._first))
            self._before, self._tried = sample, None
        return self.pieces


def partitions_problem(partitions: int, rows: int) -> str:
    """Return what is wrong with a number of partitions that a user asks for; or nothing.

    Args:
        partitions: ``AUTO_PARTITIONS`` is always right.
        rows: Of the table.
    """
    if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 0:
        return (
            f"partitions must be a whole number, or {AUTO_PARTITIONS} to have it chosen, not {partitions!r}"
        )
    if partitions > MOST_PARTITIONS:
        return f"it cannot be cut into {partitions} partitions; ask for {MOST_PARTITIONS} at most"
    if partitions > rows:
        return (
            f"its {rows} rows cannot be cut into {partitions} partitions; ask for at most one for each row"
        )
    return ""


def first_partitions(rows: int, row_bytes: int, num_servers: int) -> int:
    """Return into how many pieces a table is cut if nobody says so: as many for each server, or just one.

    Args:
        rows: Of the table; at least 1.
        row_bytes: Bytes of a row's values.
        num_servers: At least 1.
    """
    if rows < num_servers or rows * row_bytes < num_servers * SMALL_PIECE_BYTES:
        return 1
    for_each = -(-rows * row_bytes // (LARGE_PIECE_BYTES * num_servers))
    return min(rows, for_each * num_servers)


def planned_partitions(planned: int, rows: int, row_bytes: int, num_servers: int) -> int:
    """Return into how many pieces a table is cut in a job for whose tables a number was planned.

    One that is too small for that, or so large that they would be too large, is cut as if nobody
    had said anything.

    Args:
        planned: The number; 0 if there is none.
        rows: As of ``first_partitions``.
        row_bytes: The same.
        num_servers: The same.
    """
    fits = planned * SMALL_PIECE_BYTES <= rows * row_bytes <= planned * LARGE_PIECE_BYTES
    return planned if 0 < planned <= rows and fits else first_partitions(rows, row_bytes, num_servers)


def most_partitions(rows: int, num_servers: int) -> int:
    """Return the largest number of pieces that a search tries."""
    return max(1, min(rows, num_servers * LARGEST_PER_SERVER))
