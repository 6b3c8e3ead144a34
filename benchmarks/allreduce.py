"""Measures allreduce within a host beside MPI's own: table in the form of nccl-tests, JSON and plot.

All variants reduce float32 in place, in turn, in the same processes; fresh
processes for each repeat. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from harness.machine import describe
from kvstore_mpi.launcher.mpi import find_mpi

BENCHMARKS = Path(__file__).resolve().parent
PLOT = BENCHMARKS.parent / "docs" / "images" / "allreduce.png"
SIZES = [4 << shift for shift in range(10, 27, 2)]
QUICK_SIZES = [4 << 10, 256 << 10, 4 << 20, 64 << 20]
DEADLINE_S = 900


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        ranks: Ranks that reduce.
        num_bytes: Size of the buffer.
        variant: How it is reduced.
        seconds: Median of the repeats.
        low: Least of them.
        high: Greatest of them.
        of_copy: Bus bandwidth as a share of what all ranks together copy with buffers of this size.
        plain: Time of MPI's plain call over this one's.
        best_mpi: Time of the better of MPI's plain call and its pieces over this one's.
        wrong: Elements with a wrong result.
    """

    ranks: int
    num_bytes: int
    variant: str
    seconds: float
    low: float
    high: float
    of_copy: float
    plain: float
    best_mpi: float
    wrong: int

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes of the buffer per second."""
        return self.num_bytes / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second that cross between ranks, as nccl-tests counts them."""
        return self.algorithm_bandwidth * 2 * (self.ranks - 1) / self.ranks


def measure(ranks: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one job."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        mpi = find_mpi()
        command = [
            *(mpi.mpiexec, *mpi.flavour.options, "-n", str(ranks)),
            *(sys.executable, "-m", "mpi4py", str(BENCHMARKS / "allreduce_worker.py")),
            *("--sizes", ",".join(map(str, arguments.sizes)), "--repeats", str(arguments.repeats)),
            *("--variants", arguments.variants, "--result", str(result)),
        ]
        subprocess.run(command, check=True, timeout=DEADLINE_S, env={**os.environ, **dict(mpi.flavour.env)})
        measured: dict[str, Any] = json.loads(result.read_text())
        return measured


def rows_of(job: dict[str, Any]) -> list[Row]:
    """Return the table's lines for one job."""
    medians = {
        (cell["bytes"], cell["variant"]): statistics.median(cell["repeats_s"]) for cell in job["cells"]
    }
    rows = []
    for cell in job["cells"]:
        num_bytes, seconds = cell["bytes"], medians[cell["bytes"], cell["variant"]]
        plain = medians.get((num_bytes, "mpi plain"), float("nan"))
        pieces = medians.get((num_bytes, "mpi pieces"), float("nan"))
        bus = num_bytes / seconds * 2 * (job["ranks"] - 1) / job["ranks"]
        rows.append(
            Row(
                job["ranks"],
                num_bytes,
                cell["variant"],
                seconds,
                min(cell["repeats_s"]),
                max(cell["repeats_s"]),
                bus / cell["copy_bytes_per_s"],
                plain / seconds,
                min(plain, pieces) / seconds,
                cell["wrong"],
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the lines as text."""
    head = (
        "ranks       size     variant   time us      least - most   algbw   busbw GB/s   of copy   "
        "x plain   x best mpi   #wrong"
    )
    lines = [head, "-" * len(head)]
    for row in rows:
        spread = f"{1e6 * row.low:.1f} - {1e6 * row.high:.1f}"
        lines.append(
            f"{row.ranks:5} {row.num_bytes:10} {row.variant:>11} {1e6 * row.seconds:9.1f} {spread:>17} "
            f"{row.algorithm_bandwidth / 1e9:7.2f} {row.bus_bandwidth / 1e9:12.2f} {row.of_copy:9.0%} "
            f"{row.plain:9.2f} {row.best_mpi:12.2f} {row.wrong:8}"
        )
    return "\n".join(lines)


def goals(rows: Sequence[Row]) -> list[str]:
    """Compare ``auto`` at two ranks with what is asked of it."""
    lines = []
    for row in rows:
        if row.variant != "auto" or row.ranks != 2:  # noqa: PLR2004  the targets are for two ranks
            continue
        lines.append(_goal(row, "the better of plain and pieces", row.best_mpi, least_ratio(row.num_bytes)))
        if row.num_bytes >= 64 << 20:
            lines.append(_goal(row, "plain", row.plain, 3.0))
        same = [other.seconds for other in rows if other[:2] == row[:2]]
        lines.append(_goal(row, "the best of all variants", min(same) / row.seconds, 1 / 1.1))
    return lines


def least_ratio(num_bytes: int) -> float:
    """Return what is asked over the better of MPI's two ways."""
    if num_bytes < 256 << 10:
        return 0.9
    return 2.0 if num_bytes <= 16 << 20 else 1.0


def _goal(row: Row, peer: str, ratio: float, least: float) -> str:
    met = "met" if ratio >= least else "MISSED"
    return f"auto, {row.num_bytes} bytes: {ratio:.2f}x {peer} (>= {least:.2f} {met})"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Plot the bus bandwidth over the size."""
    import matplotlib as mpl  # noqa: PLC0415  only for a plot

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    ranks = sorted({row.ranks for row in rows})
    figure, axes = plt.subplots(1, len(ranks), figsize=(6 * len(ranks), 4.5), layout="constrained")
    for count, area in zip(ranks, [axes] if len(ranks) == 1 else axes):
        own = [row for row in rows if row.ranks == count]
        for variant in dict.fromkeys(row.variant for row in own):
            line = [row for row in own if row.variant == variant]
            area.plot(
                [row.num_bytes for row in line],
                [row.bus_bandwidth / 1e9 for row in line],
                "o-",
                label=variant,
            )
        limit = [row for row in own if row.variant == "auto"]
        area.plot(
            [row.num_bytes for row in limit],
            [row.bus_bandwidth / row.of_copy / 1e9 for row in limit],
            "k--",
            label="memcpy by all ranks",
        )
        area.set(xscale="log", yscale="log", xlabel="bytes", title=f"{count} ranks on this host")
        area.grid(visible=True, which="both", alpha=0.25)
        area.legend()
    figure.supylabel("bus bandwidth (GB/s)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2", help="comma-separated numbers of ranks (default: 2)")
    parser.add_argument("--sizes", help="bytes, comma-separated (default: 4 KB to 256 MB)")
    parser.add_argument("--variants", default="", help="comma-separated (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="of every variant, in turn")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    parser.add_argument("--json", type=Path, help="where to write")
    parser.add_argument("--plot", type=Path, nargs="?", const=PLOT, help=f"draw a PNG (default: {PLOT})")
    arguments = parser.parse_args()
    usual = QUICK_SIZES if arguments.quick else SIZES
    arguments.sizes = [int(size) for size in arguments.sizes.split(",")] if arguments.sizes else usual
    arguments.repeats = min(3, arguments.repeats) if arguments.quick else arguments.repeats
    return arguments


def main() -> None:
    """Measure, print, write and draw."""
    arguments = parse_arguments()
    jobs = [measure(int(ranks), arguments) for ranks in arguments.ranks.split(",")]
    rows = [row for job in jobs for row in rows_of(job)]
    print(f"float32, in place; {jobs[0]['library']}", table(rows), *goals(rows), sep="\n")
    date = time.strftime("%Y-%m-%dT%H%M%S")
    path = arguments.json or BENCHMARKS / "results" / f"allreduce-{date}.json"
    path.write_text(json.dumps({"date": date, **describe(), "jobs": jobs}, indent=1) + "\n")
    print(f"written: {path}")
    if arguments.plot:
        draw(rows, arguments.plot)
    if any(row.wrong for row in rows):
        sys.exit("wrong results")


if __name__ == "__main__":
    main()
