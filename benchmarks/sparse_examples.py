"""Runs the examples with tables as a whole: alone, and with 1, 2 and 4 workers; their figures should agree.

Perplexity, ranks and areas under curves depend on no clock. Prints a table and writes JSON. Needs the data,
which pip downloads. See README.md beside this file.
"""

from __future__ import annotations

import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.jobs import JobError, Program, run
from harness.results import BENCHMARKS, Results, begin, by_names, load, make_parser
from harness.table import align

if TYPE_CHECKING:
    import argparse

WHAT = "sparse-examples"
FOLDER = BENCHMARKS.parent / "examples" / "sparse"
EXAMPLES = {
    "knowledge_graph": (r"MRR ([\d.]+), Hits@10 ([\d.]+)", ()),
    "recommender": (r"HR@10 ([\d.]+), AUC ([\d.]+)", ()),
    "language_model": (r"held-out perplexity ([\d.]+)", ()),
    "language_model_tied": (r"held-out perplexity ([\d.]+)", ("--tied",)),
}
LAYOUTS = {
    "1": ("--workers", "1"),
    "2": ("--clients", "2", "--servers", "1"),
    "4": ("--clients", "2", "--servers", "2", "--workers", "4"),
}
ALONE = "alone"
TOLERANCE = 1e-3
DEADLINE_S = 900.0


def figures(text: str, pattern: str) -> list[float]:
    """Return what a job has printed in the end; all its processes must have printed the same.

    Raises:
        JobError: They have not, or nothing.
    """
    found = {match.groups() for match in re.finditer(pattern, text)}
    if len(found) != 1:
        raise JobError(f"{len(found)} different lines of figures: {sorted(found)}")
    return [*map(float, found.pop())]


def run_job(example: str, layout: str, more: tuple[str, ...]) -> dict[str, list[float]]:
    """Run one example to its end; return its figures, named so.

    Raises:
        JobError: It failed.
    """
    pattern, options = EXAMPLES[example]
    script = FOLDER / example.removesuffix("_tied")
    if layout == ALONE:
        command: tuple[str, ...] = (sys.executable, f"{script}.py")
    else:
        command = (
            str(Path(sys.executable).with_name("mpilaunch")),
            *LAYOUTS[layout],
            f"{script}_parallel.py",
        )
    with tempfile.TemporaryDirectory(prefix="sparse-examples-") as name:
        folder = Path(name)
        run([Program("job", (*command, *options, *more))], folder, DEADLINE_S)
        text = "".join(path.read_text() for path in folder.glob("job*"))
        return {"figures": figures(text, pattern)}


def measure_all(arguments: argparse.Namespace) -> Results:
    """Run a job for each example and layout."""
    results = begin(WHAT, arguments)
    more = ("--quick",) if arguments.quick else ()
    for example in arguments.examples:
        for layout in (ALONE, *LAYOUTS):
            job = partial(run_job, example, layout, more)
            results.attempt(f"{example}, {layout}", job, example=example, layout=layout)
    return results


def table(runs: list[dict[str, Any]]) -> str:
    """Return a line for each run, with how far its figures are from those of one process."""
    alone = {one["example"]: one["figures"] for one in runs if one["layout"] == ALONE}
    rows: list[tuple[str, ...]] = [("example", "workers", "figures", "of those alone", "")]
    for one in runs:
        ratios = [found / other for found, other in zip(one["figures"], alone.get(one["example"], []))]
        far = max((abs(ratio - 1) for ratio in ratios), default=0.0)
        rows.append(
            (
                one["example"],
                one["layout"],
                ", ".join(f"{found:g}" for found in one["figures"]),
                ", ".join(f"{ratio:.4f}" for ratio in ratios),
                "the same" if far <= TOLERANCE else f"differs by {far:.1%}",
            )
        )
    return align(rows)


def main() -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(
        WHAT, __doc__, repeats="1; the figures are not random", quick="--quick", plot=False
    )
    parser.add_argument("--examples", default=",".join(EXAMPLES), help="comma-separated (%(default)s)")
    arguments = parser.parse_args()
    arguments.examples = by_names(parser, arguments.examples, [*EXAMPLES])
    results = load(arguments.load) if arguments.load else measure_all(arguments)
    results.show(table(results.runs))
    results.close()


if __name__ == "__main__":
    main()
