"""Measures how fast rows are merged and tables updated with them, beside a copy and MXNet's kernels.

Four parts of sorted rows, of which 54 % are different ones, become one; and half of the rows of a table are
updated lazily. Everything is processor time of one thread, and the least of many calls; the share of memcpy
is what must be read and written at least, over what a copy of more than the caches reads and writes in that
time. Prints a table and writes JSON. See README.md beside this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.jobs import JobError, Program, run
from harness.results import BENCHMARKS, Results, begin, load, make_parser, report
from harness.table import align, each, met

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

WORKER = BENCHMARKS / "row_merge_worker.py"
WHAT = "row-merge"
DEADLINE_S = 900.0
SIZES = (
    "10000x64",
    "10000x256",
    "10000x1024",
    "50000x64",
    "50000x256",
    "50000x512",
    "50000x1024",
    "200000x64",
    "200000x256",
    "200000x512",
)
QUICK = ("10000x64", "50000x256")
TARGETS = {"merge": 0.5, "sgd": 0.4}
"""Least share of memcpy's bandwidth."""

HEAD = (
    "operation",
    "rows x width",
    "MB",
    "cpu ms",
    "of memcpy",
    "each run",
    "target",
    "numpy ms",
    "mxnet ms",
    "pairwise",
    "x mxnet",
)


class Row(NamedTuple):
    """One operation on one size.

    Attributes:
        operation: What is done.
        size: Rows and width.
        num_bytes: What has to be read and written at least.
        seconds: By variant, the median of the runs.
        shares: Of memcpy's bandwidth, ours in each run.
    """

    operation: str
    size: tuple[int, int]
    num_bytes: int
    seconds: Mapping[str, float]
    shares: Sequence[float]

    def share(self, variant: str) -> float:
        """Return the share of memcpy's bandwidth of any variant."""
        return median(self.shares) * self.seconds["ours"] / self.seconds[variant]


def measure_all(arguments: argparse.Namespace) -> Results:
    """Run one process after the other."""
    results = begin(WHAT, arguments)
    sizes = ",".join(QUICK if arguments.quick else arguments.sizes.split(","))
    for number in range(arguments.repeats):
        with tempfile.TemporaryDirectory(prefix="row-merge-") as name:
            result = Path(name) / "worker.json"
            program = Program("worker", (sys.executable, str(WORKER), sizes, str(result)))
            usage = run([program], Path(name), DEADLINE_S)
            results.add({**asdict(usage), **json.loads(result.read_text())})
        report(f"run {number + 1} of {arguments.repeats}: {usage.foreign_cores:.2f} cores busy with others")
    return results


def rows_of(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Bring the same case of all runs together, operation by operation."""
    cases: dict[tuple[str, int, int], list[tuple[float, Mapping[str, Any]]]] = {}
    for one in runs:
        for case in one["measured"]:
            name = (case["operation"], case["rows"], case["width"])
            cases.setdefault(name, []).append((one["memcpy_bytes_per_s"], case))
    order = list(dict.fromkeys(operation for operation, _, _ in cases))
    return [_row(*name, cases[name]) for name in sorted(cases, key=lambda name: order.index(name[0]))]


def _row(operation: str, rows: int, width: int, found: Sequence[tuple[float, Mapping[str, Any]]]) -> Row:
    num_bytes = found[0][1]["bytes"]
    variants = found[0][1]["seconds"]
    seconds = {variant: median(case["seconds"][variant] for _, case in found) for variant in variants}
    shares = [num_bytes / case["seconds"]["ours"] / memcpy for memcpy, case in found]
    return Row(operation, (rows, width), num_bytes, seconds, shares)


def table(rows: Sequence[Row]) -> str:
    """Return a line for each row."""
    return align([HEAD, *map(_cells, rows)])


def _cells(row: Row) -> tuple[str, ...]:
    target = TARGETS.get(row.operation)
    share = median(row.shares)
    others = (row.seconds.get(name) for name in ("numpy", "mxnet", "mxnet pairwise"))
    return (
        row.operation,
        "{} x {}".format(*row.size),
        f"{row.num_bytes / 1e6:.1f}",
        f"{1e3 * row.seconds['ours']:.2f}",
        f"{share:.2f}",
        each(row.shares, 2),
        f"{target:g}: {met(share, target)}" if target else "",
        *(f"{1e3 * seconds:.2f}" if seconds else "" for seconds in others),
        f"{row.seconds['mxnet'] / row.seconds['ours']:.1f}",
    )


def main() -> None:
    """Measure or load, print, write and draw."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3", quick="two sizes, once")
    parser.add_argument("--sizes", default=",".join(SIZES), help=f"comma-separated ({','.join(SIZES)})")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except JobError as error:
        sys.exit(f"{WHAT}: {error}")
    rows = rows_of(results.runs)
    memcpy = median(one["memcpy_bytes_per_s"] for one in results.runs)
    results.show(table(rows), f"memcpy reads and writes {memcpy / 1e9:.1f} GB/s")
    if arguments.plot:
        from harness.row_merge_drawing import draw  # noqa: PLC0415  matplotlib, and only for this

        draw(rows, TARGETS, arguments.plot, results.marks)
    results.close()


if __name__ == "__main__":
    main()
