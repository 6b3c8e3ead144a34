"""Measures steps of a table that is cut into 1 to 128 pieces, and the number that a live search finds.

Two clients of one worker and two servers on this machine. Prints a table and writes JSON. See README.md
beside this file.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from harness.jobs import JobError
from harness.partitions_job import STEPS, run_job
from harness.results import Results, begin, load, make_parser, report
from harness.table import align, each

if TYPE_CHECKING:
    import argparse

WHAT = "partitions"
SWEEP = (1, 2, 4, 8, 16, 32, 64, 128)
AUTO = "auto"
WITHIN = 1.05


def measure_all(arguments: argparse.Namespace) -> Results:
    """Run one job for each number and repeat, and one that searches."""
    results = begin(WHAT, arguments)
    results.facts.update(
        steps=STEPS, rows=arguments.rows, touched=arguments.touched, dim=64, optimizer="adam"
    )
    for _ in range(arguments.repeats):
        for pieces in (*SWEEP, AUTO):
            _add(results, pieces, arguments)
    return results


def _add(results: Results, pieces: int | str, arguments: argparse.Namespace) -> None:
    try:
        results.add({"asked": str(pieces), **run_job(pieces, arguments.rows, arguments.touched)})
    except JobError as error:
        results.fail(str(error))
    else:
        report(str(results.runs[-1]))


def table(runs: list[dict[str, Any]]) -> str:
    """Return a line for each number of pieces that was asked for."""
    rows: list[tuple[str, ...]] = [("pieces", "cut into", "step ms", "each run", "x best")]
    best = min(_times(runs).values(), default=0.0)
    for asked in (*map(str, SWEEP), AUTO):
        found = [run for run in runs if run["asked"] == asked]
        if found:
            middle = median(run["step_s"] for run in found)
            cut = " ".join(str(run["pieces"]) for run in found)
            each_run = each([run["step_s"] for run in found], 2, 1e3)
            rows.append((asked, cut, f"{1e3 * middle:.2f}", each_run, f"{middle / best:.3f}"))
    return align(rows)


def _times(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median step of each number of the sweep."""
    asked = {run["asked"] for run in runs} - {AUTO}
    return {each: median(run["step_s"] for run in runs if run["asked"] == each) for each in asked}


def goals(runs: list[dict[str, Any]]) -> list[str]:
    """Say whether what each search has found is nearly as fast as the best of the sweep."""
    times = _times(runs)
    found = [run["pieces"] for run in runs if run["asked"] == AUTO and str(run["pieces"]) in times]
    if not found or not times:
        return []
    shares = [times[str(pieces)] / min(times.values()) for pieces in found]
    verdict = "met" if max(shares) <= WITHIN else "MISSED"
    told = ", ".join(f"{share:.3f} ({pieces})" for share, pieces in zip(shares, found))
    return [f"steps with the number found, of the best of the sweep: {told} (<= {WITHIN} {verdict})"]


def main() -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="5", plot=False)
    parser.add_argument("--rows", type=int, default=200_000, help="of the table (default: 200,000)")
    parser.add_argument("--touched", type=int, default=4_000, help="by a worker in a step (default: 4,000)")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or 5
    results = load(arguments.load) if arguments.load else measure_all(arguments)
    results.show(table(results.runs), *goals(results.runs))
    results.close()


if __name__ == "__main__":
    main()
