"""Measures tables that no worker holds: memory for the rows that were trained, and waiting for lookups.

Memory: a server, of whose 10^8 ids some are trained. Lookups, by a TableEmbedding and of a row-sparse
weight: hosts are network namespaces with links of 1 Gbit/s, each with one worker and one server, which
compute (by waiting, as for an accelerator) while rows travel. Prints a table and writes JSON. Lookups need
root. See README.md beside this file.
"""

from __future__ import annotations

import sys
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.jobs import JobError
from harness.large_table_jobs import COMPUTE_S, DISTINCT, MBIT, WAYS, lookups, memory
from harness.netns import Network, NetworkError
from harness.results import Results, begin, load, make_parser, report
from harness.table import align, each

if TYPE_CHECKING:
    import argparse

WHAT = "large-table"
DIM = 64
BYTES_OF_A_ROW = 2 * 4 * DIM
"""Its values and AdaGrad's sums of squares, in float32."""


TIMELY, MOST_EXPOSED = {"s = 1": None, "kv.prefetch": "one row"}, 0.05
"""Ways by which rows come in time, and, of fresh ones, what is waited for in any case: the push before."""


def measure_all(arguments: argparse.Namespace) -> Results:
    """Run one job for each part and repeat."""
    results = begin(WHAT, arguments)
    results.facts.update(mbit=MBIT, compute_s=COMPUTE_S, distinct=DISTINCT, dim=DIM)
    steps = (2, 10) if arguments.quick else (9, 40)
    with Network(2) as network:
        for _ in range(arguments.repeats):
            _add(results, lambda: memory(arguments.rows))
            for way in WAYS:
                _add(results, lambda way=way: lookups(network, way, steps))  # type: ignore[misc]
    return results


def _add(results: Results, measure: Any) -> None:
    try:
        results.add(measure())
    except JobError as error:
        results.fail(str(error))
    else:
        report(str(results.runs[-1]))


def table(runs: list[dict[str, Any]]) -> str:
    """Return a line for the memory, and one for each way of lookups."""
    rows: list[tuple[str, ...]] = [("what", "each run", "of", "share")]
    grown = [run["grown"] / run["rows"] for run in runs if run["part"] == "memory"]
    if grown:
        rows.append(
            (
                "server's bytes / trained row",
                each(grown, 0),
                str(BYTES_OF_A_ROW),
                f"{median(grown) / BYTES_OF_A_ROW:.2f}",
            )
        )
    for way in WAYS:
        found = [run for run in runs if run.get("way") == way]
        if found:
            step_ms = 1e3 * median(run["step_s"] for run in found)
            cell = each([run["lookup_s"] for run in found], 1, 1e3)
            rows.append((f"lookup ms, {way}", cell, f"{step_ms:.0f}", f"{median(exposed(found)):.3f}"))
    return align(rows)


def goals(runs: list[dict[str, Any]]) -> list[str]:
    """Say whether rows that are asked for ahead of time keep a step waiting for no more than 5 %."""
    said = []
    for way, before in TIMELY.items():
        found, least = ([run for run in runs if run.get("way") == each] for each in (way, before))
        if found and (least or not before):
            share = median(exposed(found)) - (median(exposed(least)) if before else 0.0)
            verdict = "met" if share <= MOST_EXPOSED else "MISSED"
            more = f" more than {before}" if before else ""
            said.append(f"{way}: lookups take {share:.3f} of a step{more} (<= {MOST_EXPOSED} {verdict})")
    return said


def exposed(runs: list[dict[str, Any]]) -> list[float]:
    """Return which part of a step the worker with the longest lookups waited for them."""
    return [run["lookup_s"] / run["step_s"] for run in runs]


def main() -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3, or 1 when quick", quick="once, few steps", plot=False)
    parser.add_argument("--rows", type=int, default=10**6, help="that are trained (default: 10^6)")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    results.show(table(results.runs), *goals(results.runs))
    results.close()


if __name__ == "__main__":
    main()
