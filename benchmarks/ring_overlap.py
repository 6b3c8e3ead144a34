"""Measures how much of local reductions two rings hide behind transfers: table, JSON, plot.

Two hosts are network namespaces with a limited link, MPI is over TCP on that link, and a local reduction
takes as long as the transfer. Needs root, and MPICH. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.jobs import Job, JobError, Program
from harness.machine import describe
from harness.mpi_hosts import environment, in_hosts
from harness.netns import CONGESTION_CONTROL, LINK, Network, NetworkError
from harness.p3_cli import BENCHMARKS, IMAGES, prepare, report
from harness.summary import align

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

WHAT = "ring-overlap"
WORKER = BENCHMARKS / "ring_overlap_worker.py"
HOSTS = 2
TARGET = 0.8
DEADLINE_S = 120.0
HEAD = (
    "rings",
    "transfer",
    "reduction",
    "one after the other",
    "measured",
    "hidden of the smaller",
    "target",
)


@dataclass(frozen=True)
class Overlap:
    """One allreduce of one job, on rank 0.

    Attributes:
        transfer_s: Seconds of the same transfers with nothing to reduce.
        reduction_s: Seconds of all local reductions, added up.
        seconds: Seconds of both together.
    """

    transfer_s: float
    reduction_s: float
    seconds: float

    @property
    def hidden(self) -> float:
        """Share of the smaller of transfer and reduction that took no time of its own."""
        smaller = min(self.transfer_s, self.reduction_s)
        return (self.transfer_s + self.reduction_s - self.seconds) / smaller


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mbit", type=float, default=200.0, help="rate of the link, Mbit/s (default: 200)")
    add("--megabytes", type=int, default=32, help="size of a vector (default: 32)")
    add("--repeats", type=int, default=3, help="fresh jobs (default: 3)")
    add("--json", type=Path, help=f"where to write (default: benchmarks/results/{WHAT}-<date>.json)")
    plot = IMAGES / f"{WHAT}.png"
    add("--plot", type=Path, nargs="?", const=plot, help=f"draw a PNG (default place: {plot})")
    add("--realtime", action="store_true", help="run in the real-time class, as chrt --rr 1")
    add("--allow-load", action="store_true", help="measure though others use the processors")
    return parser.parse_args(argv)


def run_job(network: Network, megabytes: int) -> dict[str, Any]:
    """Run one job; return what rank 0 wrote.

    Raises:
        JobError: A rank failed, a sum was wrong, or the deadline passed.
    """
    with tempfile.TemporaryDirectory(prefix="overlap-") as name, Job(Path(name)) as job:
        elements = str(megabytes * 1_000_000 // 4)
        worker = (sys.executable, str(WORKER), "--elements", elements, "--device", LINK, "--results", name)
        job.start(Program("ranks", in_hosts(network, HOSTS, job.log_dir, worker), environment(LINK)))
        job.wait(DEADLINE_S)
        written: dict[str, Any] = json.loads((Path(name) / "rank0.json").read_text())
        return written


def overlap_of(job: dict[str, Any], rings: str) -> Overlap:
    """Return what one of both allreduces of a job took."""
    reduction_s = sum(end - begin for begin, end in job[rings]["reductions"])
    return Overlap(job["alone"]["seconds"], reduction_s, job[rings]["seconds"])


def table(jobs: Sequence[dict[str, Any]]) -> str:
    """Return medians with their range as aligned text."""
    rows = []
    for rings in ("one", "two"):
        overlaps = [overlap_of(job, rings) for job in jobs]
        hidden = [each.hidden for each in overlaps]
        met = "met" if median(hidden) >= TARGET else "NOT MET"
        rows.append(
            (
                rings,
                _seconds([each.transfer_s for each in overlaps]),
                _seconds([each.reduction_s for each in overlaps]),
                _seconds([each.transfer_s + each.reduction_s for each in overlaps]),
                _seconds([each.seconds for each in overlaps]),
                f"{median(hidden):.0%} ({min(hidden):.0%} - {max(hidden):.0%})",
                f">= {TARGET:.0%} {met}" if rings == "two" else "",
            )
        )
    return align([HEAD, *rows])


def _seconds(times: Sequence[float]) -> str:
    return f"{median(times):.2f} s ({min(times):.2f} - {max(times):.2f})"


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all jobs and write what they measured."""
    foreign = prepare(arguments)
    date = time.strftime("%Y-%m-%dT%H%M%S")
    jobs = []
    with Network(HOSTS) as network:
        network.limit(arguments.mbit * 1e6)
        for repeat in range(arguments.repeats):
            jobs.append(run_job(network, arguments.megabytes))
            sent = jobs[-1]["two"]["sent"] / 1e6
            report(f"repeat {repeat + 1}: {sent:.1f} MB left the host with two rings")
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    head = {"date": date, "command": command, **describe(), "congestion_control": CONGESTION_CONTROL}
    path = arguments.json or BENCHMARKS / "results" / f"{WHAT}-{date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**head, "foreign_cores": foreign, "jobs": jobs}) + "\n")
    report(f"written: {path}")
    return jobs


def draw(job: dict[str, Any], path: Path) -> None:
    """Draw both timelines of rank 0 of one job."""
    import matplotlib as mpl  # noqa: PLC0415  only for a plot

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  matplotlib only for a plot

    figure, panels = plt.subplots(2, 1, figsize=(9, 3.6), sharex=True, layout="constrained")
    for axes, rings in zip(panels, ("one", "two")):
        _draw_timeline(axes, job[rings])
        axes.set_title(f"{rings} ring{'s' if rings == 'two' else ''}: {job[rings]['seconds']:.2f} s")
    panels[-1].set_xlabel("seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_timeline(axes: Axes, measured: dict[str, Any]) -> None:
    for height, what in enumerate(("reductions", "transfers")):
        bars = [(begin - measured["begin"], end - begin) for begin, end in measured[what]]
        axes.broken_barh(bars, (height - 0.35, 0.7), facecolors=f"C{height}", edgecolors="white")
    axes.set_yticks([0, 1], ["reduction", "transfer"])


def main() -> None:
    """Measure, print, and draw."""
    arguments = parse_arguments()
    try:
        jobs = measure(arguments)
    except (NetworkError, JobError) as error:
        sys.exit(f"{WHAT}: {error}")
    print(table(jobs))
    if arguments.plot:
        draw(jobs[0], arguments.plot)


if __name__ == "__main__":
    main()
