"""What the numbers that ``top``, ``inspect`` and ``--metrics`` show cost a job.

Two clients of one worker and a server over TCP, under mpilaunch with a Prometheus endpoint. In one job
blocks of steps take turns: processes tell nothing about themselves; they tell once a second, as always; and
somebody asks the endpoint once a second besides. See README.md beside this file.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cases import CASES, VARIANTS
from harness.jobs import HOST, JobError, Program, free_port, mpilaunch_plan, run
from harness.results import Results, begin, by_names, load, make_parser, report
from harness.table import align, met, quartiles

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).resolve().parent
WHAT = "metrics"
VARIANT = next(variant for variant in VARIANTS if variant.name == "2x1-tcp")
NOTHING, TOLD, SCRAPED = "nothing", "told", "scraped"
KINDS = (NOTHING, TOLD, SCRAPED)
"""What the blocks differ in."""

TARGET = 1.01
"""At most as many times as long as without them."""

SCRAPE_S = 1.0
HEAD = ("case", "kind", "ms a step", "over nothing", "quartiles", "cpu ms", "over nothing", "quartiles", "")


@contextlib.contextmanager
def scraping(port: int, tells: Path) -> Iterator[list[int]]:
    """Ask the endpoint once a second while the job wants it; yield the sizes of its answers."""
    done, sizes = threading.Event(), []

    def scrape() -> None:
        while not done.wait(SCRAPE_S):
            with contextlib.suppress(OSError):  # there is no such file, or no endpoint yet
                if tells.read_text() == SCRAPED:
                    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics") as answer:
                        sizes.append(len(answer.read()))

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield sizes
    finally:
        done.set()
        thread.join()


def run_job(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run one job; return its blocks."""
    with tempfile.TemporaryDirectory(prefix=f"{WHAT}-") as name:
        folder, port = Path(name), free_port()
        tells = folder / "tells"
        worker = [sys.executable, str(HERE / "metrics_worker.py"), "--folder", name]
        worker += ["--cases", arguments.cases, "--turns", str(arguments.turns)]
        worker += ["--block", str(arguments.block)]
        (launcher,) = mpilaunch_plan(VARIANT, worker, folder)
        path = f"{HERE / 'telling'}:{HERE}"
        settings = {"PYTHONPATH": path, "TELL_WHILE_THERE": str(tells)}
        argv = (launcher.argv[0], "--metrics", str(port), *launcher.argv[1:])
        with scraping(port, tells) as sizes:
            usage = run([Program(launcher.name, argv, settings)], folder, arguments.deadline)
        if len(sizes) < arguments.turns:
            raise JobError(f"the endpoint has answered {len(sizes)} times in {arguments.turns} blocks")
        blocks = json.loads((folder / "found.json").read_text())
    return [{**each, "scrapes": len(sizes), **asdict(usage)} for each in blocks]


def measure(arguments: argparse.Namespace) -> Results:
    """Run the jobs."""
    results = begin(WHAT, arguments)
    for repeat in range(arguments.repeats):
        for found in run_job(arguments):
            results.add({"repeat": repeat, **found})
        report(f"job {repeat + 1} of {arguments.repeats}")
    return results


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return medians over all blocks, and of the ratios to the block of that turn that tells nothing."""
    rows = [HEAD]
    for case in dict.fromkeys(each["case"] for each in runs):
        of: dict[str, dict[Any, Any]] = {kind: {} for kind in KINDS}
        for each in runs:
            if each["case"] == case:
                of[each["kind"]][each["repeat"], each["turn"]] = each
        for kind in KINDS:
            cells = []
            for what in ("seconds", "cpu"):
                ratio = quartiles([of[kind][turn][what] / of[NOTHING][turn][what] for turn in of[kind]])
                value = quartiles([each[what] for each in of[kind].values()]).median
                cells += [f"{1e3 * value:.3f}", f"{ratio.median:.4f}", ratio.text(4)]
                if what == "seconds":
                    verdict = "" if kind == NOTHING else f"<= {TARGET:g} {met(TARGET, ratio.median)}"
            rows.append((case, kind, *cells, verdict))
    return align(rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3", plot=False)
    parser.add_argument("--cases", default="4KB,resnet50", help="comma-separated (4KB,resnet50)")
    parser.add_argument("--turns", type=int, default=8, help="blocks of each kind in a job (8)")
    parser.add_argument("--block", type=float, default=3.0, help="seconds of a block (3)")
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds that a job may take (600)")
    arguments = parser.parse_args(argv)
    arguments.repeats = arguments.repeats or 3
    by_names(parser, arguments.cases, [case.name for case in CASES])
    try:
        results = load(arguments.load) if arguments.load else measure(arguments)
    except JobError as error:
        sys.exit(f"{WHAT}: {error}")
    results.show(table(results.runs))
    results.close()


if __name__ == "__main__":
    main()
