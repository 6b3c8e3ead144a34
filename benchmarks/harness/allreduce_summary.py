"""The lines of the table of allreduce and what is asked of them. It runs nothing."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from .table import align, each, met

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLAIN, PIECES, GLOO, DEEPSPEED, AUTO = "mpi plain", "mpi pieces", "gloo", "deepspeed", "auto"
HEAD = (
    *("mpi", "ranks", "size", "variant", "time us", "each job", "cpu us", "algbw", "busbw GB/s", "of copy"),
    *("x plain", "x best mpi", "x gloo", "x deepspeed", "#wrong"),
)
PEERS = (PLAIN, PIECES, GLOO, DEEPSPEED)
MARGIN = 0.95
"""Least speed of ``auto``, as a share of the best of all variants."""


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        mpi: The library that the ranks run on.
        ranks: Ranks that reduce.
        num_bytes: Size of the buffer.
        variant: How it is reduced.
        seconds: Median of the repeats, each a fresh job.
        low: Least of them.
        high: Greatest of them.
        of_copy: Bus bandwidth as a share of what all ranks together copy with buffers of this size.
        ratios: For each peer the peer's time over this one's: median, least and greatest of the jobs.
        wrong: Elements with a wrong result.
        jobs: Seconds of each job.
        cpu_s: Processor time of all ranks in one iteration, the median of the jobs; 0 if it was not noted.
    """

    mpi: str
    ranks: int
    num_bytes: int
    variant: str
    seconds: float
    low: float
    high: float
    of_copy: float
    ratios: Mapping[str, tuple[float, float, float]]
    wrong: int
    jobs: tuple[float, ...] = ()
    cpu_s: float = 0.0

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes of the buffer per second."""
        return self.num_bytes / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second that cross between ranks, as nccl-tests counts them."""
        return self.algorithm_bandwidth * 2 * (self.ranks - 1) / self.ranks


def rows_of(jobs: Sequence[dict[str, Any]]) -> list[Row]:
    """Return the table's lines: one for each library, number of ranks, size and variant."""
    rows = []
    for mpi, ranks in dict.fromkeys((job["mpi"], job["ranks"]) for job in jobs):
        same = [job for job in jobs if (job["mpi"], job["ranks"]) == (mpi, ranks)]
        times = [{(c["bytes"], c["variant"]): c["seconds"] for c in job["cells"]} for job in same]
        for num_bytes, variant in times[0]:
            cells = [
                c for j in same for c in j["cells"] if (c["bytes"], c["variant"]) == (num_bytes, variant)
            ]
            own = [cell["seconds"] for cell in cells]
            seconds = statistics.median(own)
            bus = num_bytes / seconds * 2 * (ranks - 1) / ranks
            copied = max(cell["copy_bytes_per_s"] for cell in cells)
            ratios = _ratios(times, num_bytes, variant)
            wrong = sum(cell["wrong"] for cell in cells)
            spread = (seconds, min(own), max(own), bus / copied)
            cpu_s = statistics.median(cell.get("cpu_s", 0.0) for cell in cells)
            rows.append(Row(mpi, ranks, num_bytes, variant, *spread, ratios, wrong, tuple(own), cpu_s))
    return rows


def _ratios(
    jobs: Sequence[dict[tuple[int, str], float]], num_bytes: int, variant: str
) -> dict[str, tuple[float, float, float]]:
    """Compare with peers within each job: fresh jobs differ in speed more than the ways to reduce do."""
    found = {}
    every = [other for size, other in jobs[0] if size == num_bytes]
    for name, peers in (
        ("plain", [PLAIN]),
        ("mpi", [PLAIN, PIECES]),
        ("gloo", [GLOO]),
        ("deepspeed", [DEEPSPEED]),
        ("peers", [peer for peer in PEERS if peer in every]),
        ("best", every),
    ):
        ratios = [
            min(job[num_bytes, peer] for peer in peers) / job[num_bytes, variant]
            for job in jobs
            if peers and all((num_bytes, peer) in job for peer in peers)
        ]
        if ratios:
            found[name] = (statistics.median(ratios), min(ratios), max(ratios))
    return found


def table(rows: Sequence[Row]) -> str:
    """Return the lines as text."""
    return align([HEAD, *(_cells(row) for row in rows)])


def _cells(row: Row) -> tuple[str, ...]:
    """Return the texts of one line."""
    ratios = [
        row.ratios[name][0] if name in row.ratios else None
        for name in ("plain", "mpi", "gloo", "deepspeed")
    ]
    return (
        row.mpi,
        str(row.ranks),
        str(row.num_bytes),
        row.variant,
        f"{1e6 * row.seconds:.1f}",
        each(row.jobs, 1, 1e6),
        f"{1e6 * row.cpu_s:.1f}" if row.cpu_s else "",
        f"{row.algorithm_bandwidth / 1e9:.2f}",
        f"{row.bus_bandwidth / 1e9:.2f}",
        f"{row.of_copy:.0%}",
        *(f"{ratio:.2f}" if ratio else "" for ratio in ratios),
        str(row.wrong),
    )


def limits(jobs: Sequence[dict[str, Any]]) -> list[str]:
    """Say what memory allows: the bytes per second that all ranks of a job copy together, at best."""
    best: dict[tuple[int, int], float] = {}
    for job in jobs:
        for cell in job["cells"]:
            key = (job["ranks"], cell["bytes"])
            best[key] = max(best.get(key, 0.0), cell["copy_bytes_per_s"])
    lines = []
    for ranks in dict.fromkeys(ranks for ranks, _ in best):
        rates = ", ".join(
            f"{size}: {rate / 1e9:.1f}" for (count, size), rate in best.items() if count == ranks
        )
        lines.append(f"memcpy by {ranks} ranks at once, GB/s by buffer size: {rates}")
    return lines


def goals(rows: Sequence[Row]) -> list[str]:
    """Compare ``auto`` at two ranks with what is asked of it."""
    lines = []
    for row in rows:
        if row.variant != AUTO or row.ranks != 2:  # noqa: PLR2004  the targets are for two ranks
            continue
        asked = [("peers", "the best peer", least_ratio(row.num_bytes))]
        asked.append(("best", "the best of all variants", MARGIN))
        for name, peer, least in asked:
            if name in row.ratios and least:
                lines.append(_goal(row, peer, row.ratios[name], least))
    return lines


def least_ratio(num_bytes: int) -> float:
    """Return what is asked over the best peer; 0 where nothing is."""
    if num_bytes < 64 << 10:
        return 0.0
    return 1.3 if 1 << 20 <= num_bytes <= 16 << 20 else 1.0


def _goal(row: Row, peer: str, ratio: tuple[float, float, float], least: float) -> str:
    middle, low, high = ratio
    spread = f" ({low:.2f} - {high:.2f})" if low != high else ""
    said = f"{middle:.2f}x{spread} {peer} (>= {least:.2f} {met(middle, least)})"
    return f"{row.mpi} auto, {row.num_bytes} bytes: {said}"
