"""Ways to train, what a job of each did, and the table of what an exchange costs. It runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from .table import Spread, align, each, ratios_of, spread_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


INTERVALS = (1, 8, 64)
OVERLAP_SHARE = 4
"""With overlap, a center is applied a quarter of an interval after it was asked for."""

WIRES = {None: 1.0, "int8": 1 / 4, "int4": 1 / 8}
"""How parameters travel, and what that is of float32."""

BYTES_TOLERANCE = 0.03
TIME_TOLERANCE = 0.03
MOST_BUSY = 0.85
HEAD = (
    *("mode", "step ms", "each run", "of compute", "MB/step", "of ideal", "on link", "busy", "cpu ms"),
    "target",
)


@dataclass(frozen=True)
class Mode:
    """One way to train.

    Attributes:
        mode: ``none`` (compute alone), ``mpi-sgd`` or ``elastic``.
        interval: Steps between two exchanges of a tensor.
        overlap: Steps for which compute goes on before a center is applied.
        compress: How parameters travel.
    """

    mode: str
    interval: int = 1
    overlap: int = 0
    compress: str | None = None

    @property
    def name(self) -> str:
        """What the table calls it."""
        if self.mode != "elastic":
            return self.mode
        return f"elastic {self.interval} {self.compress or 'fp32'}{' overlap' if self.overlap else ''}"

    @property
    def steps(self) -> tuple[int, int]:
        """Steps that are dropped, and steps that count: whole intervals, long enough to be timed."""
        if self.mode == "none":
            return 8, 64
        return max(1, self.interval), max(5, self.interval * (3 if self.interval < max(INTERVALS) else 2))

    @property
    def ideal_share(self) -> float:
        """Bytes of a step on a client's link over the bytes of the model."""
        if self.mode == "none":
            return 0.0
        return 2 * (WIRES[self.compress] / self.interval if self.mode == "elastic" else 1.0)


MODES = (
    Mode("none"),
    Mode("mpi-sgd"),
    *(
        Mode("elastic", interval, overlap, compress)
        for interval in INTERVALS
        for compress in WIRES
        for overlap in ((0, interval // OVERLAP_SHARE) if interval >= OVERLAP_SHARE else (0,))
    ),
)


@dataclass(frozen=True)
class Run:
    """What one job did in its measured steps.

    Attributes:
        mode: Name of the mode.
        step_s: Mean seconds of a step, over steps and clients.
        payload_per_step: Bytes that TCP carried for a client in both directions, the mean over clients.
        link_per_step: Bytes that crossed its link: with headers, and what was sent again.
        busy: Share of all cores' time that was not idle.
        cpu_s: Processor time of all processes of the job in one step; 0 where it was not noted.
    """

    mode: str
    step_s: float
    payload_per_step: float
    link_per_step: float
    busy: float
    cpu_s: float = 0.0


def run_of(entry: Mapping[str, Any]) -> Run:
    """Return a run of a file of results."""
    return Run(**entry)


@dataclass(frozen=True)
class Row:
    """One mode in the table: of steps the median, least and most of the runs, of the rest the median.

    Attributes:
        mode: How clients trained.
        step_s: Seconds of a step.
        runs_s: Those of each run.
        payload_per_step: See ``Run``.
        link_per_step: See ``Run``.
        busy: The most of the runs.
        cpu_s: See ``Run``.
    """

    mode: Mode
    step_s: Spread
    runs_s: tuple[float, ...]
    payload_per_step: float
    link_per_step: float
    busy: float
    cpu_s: float


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Return one row for each mode that ran, in the order of ``MODES``."""
    rows = []
    for mode in MODES:
        own = [run for run in runs if run.mode == mode.name]
        if own:
            times = tuple(run.step_s for run in own)
            payload = median(run.payload_per_step for run in own)
            link = median(run.link_per_step for run in own)
            busy, cpu_s = max(run.busy for run in own), median(run.cpu_s for run in own)
            rows.append(Row(mode, spread_of(times), times, payload, link, busy, cpu_s))
    return rows


def table(rows: Sequence[Row], model_bytes: int) -> str:
    """Return the rows as text, with the targets beside them."""
    alone = next((row.runs_s for row in rows if row.mode.mode == "none"), ())
    return align([HEAD, *(_cells(row, model_bytes, alone) for row in rows)])


def _cells(row: Row, model_bytes: int, alone: Sequence[float]) -> tuple[str, ...]:
    """Return the texts of one row; ``alone`` are the steps of compute alone, run by run."""
    ideal = row.mode.ideal_share * model_bytes
    share = row.payload_per_step / ideal if ideal else None
    beside = ratios_of(row.runs_s, alone)
    ratio = beside.median if beside else None
    return (
        row.mode.name,
        f"{1e3 * row.step_s.median:.1f}",
        each(row.runs_s, 1, 1e3),
        f"{ratio:.3f}" if ratio else "",
        f"{row.payload_per_step / 1e6:.3f}",
        f"{share:.3f}" if share else "",
        f"{row.link_per_step / 1e6:.3f}",
        f"{row.busy:.2f}",
        f"{1e3 * row.cpu_s:.1f}" if row.cpu_s else "",
        verdict(row, share, ratio),
    )


def verdict(row: Row, share: float | None, ratio: float | None) -> str:
    """Say which targets a row meets; empty where there is none."""
    if row.busy > MOST_BUSY:
        return "the processors were the limit"
    if row.mode.mode != "elastic" or share is None:
        return ""
    verdicts = ["bytes met" if abs(share - 1) <= BYTES_TOLERANCE else "bytes MISSED"]
    if ratio and row.mode.overlap and row.mode.interval == max(INTERVALS):
        verdicts.append("time met" if ratio <= 1 + TIME_TOLERANCE else "time MISSED")
    return ", ".join(verdicts)
