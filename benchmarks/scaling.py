"""Measures what steps of 2 to 8 workers cost by workers, servers, slices and bytes; predicts 1,000 hosts.

Workers without a framework, each a client, and servers on this machine, over TCP. Fits time and processor
time, holds the fit to the largest jobs without having seen them, and says what would limit large ones.
Prints tables, writes JSON and draws a picture. See README.md beside this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from harness import zoo
from harness.jobs import JobError, Program, run
from harness.results import BENCHMARKS, Results, begin, load, make_parser
from harness.scaling_model import ITEM_BYTES, Case, Model, Step, fitted, link_seconds, slices_of, step_of
from harness.table import align

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WHAT = "scaling"
WORKER = BENCHMARKS / "scaling_worker.py"
JOBS = (
    *("2x1x50000", "2x1x12500", "2x1x200000", "2x2x50000", "4x1x50000"),
    *("4x2x12500", "4x2x200000", "4x4x50000", "8x1x50000", "8x4x50000"),
)
"""Workers, servers, and most elements of a slice."""

CASES = ("1x1000x200", "160x1000x20", "1x50000x100", "20x50000x20", "1x1000000x20", "1x8000000x4")
MODELS = ("resnet50", "vgg19", "sockeye", "inceptionv3")
LARGE = 1_000
GIGABITS = (10, 100)
SLICE_ELEMENTS = 50_000
TCP_SHARE = 0.956
"""Of a link's rate, what TCP carries."""

DEADLINE_S = 180.0
HEAD = (
    "workers",
    "servers",
    "elements",
    "keys",
    "of each",
    "messages",
    "worker us",
    "server us",
    "step us",
)


def measure(job: str, cases: Sequence[str]) -> list[dict[str, Any]]:
    """Run one job; return what each case took.

    Raises:
        JobError: It failed, or the deadline passed.
    """
    workers, servers, elements = map(int, job.split("x"))
    with tempfile.TemporaryDirectory(prefix=f"{WHAT}-") as name:
        result = Path(name) / "result.json"
        counts = (f"--clients={workers}", f"--workers={workers}", f"--servers={servers}")
        how = ("--transport=tcp", f"--set=slice_elements={elements}", f"--log-dir={name}")
        worker = (str(WORKER), f"--cases={','.join(cases)}", f"--result={result}")
        launcher = str(Path(sys.executable).parent / "mpilaunch")
        run([Program("mpilaunch", (launcher, *counts, *how, *worker))], Path(name), DEADLINE_S)
        found = json.loads(result.read_text())
    where = {"workers": workers, "servers": servers, "slice_elements": elements}
    return [{**where, **_flat(each, workers, servers, elements)} for each in found]


def _flat(found: Mapping[str, Any], workers: int, servers: int, slice_elements: int) -> dict[str, Any]:
    """Return a case with means over processes; each worker has one thread that does most."""
    case = Case(found["keys"], found["elements"], found["times"])
    return {
        **case._asdict(),
        "slices": slices_of([case.elements] * case.keys, slice_elements),
        "num_bytes": ITEM_BYTES * case.keys * case.elements,
        "messages": found["messages"],
        "seconds": found["seconds"],
        "thread_s": sum(found["worker_s"][:workers]) / workers,
        "worker_s": sum(found["worker_s"]) / workers,
        "server_s": sum(found["server_s"]) / servers,
    }


def measure_all(arguments: Any) -> Results:
    """Run all jobs in turn, every second time backwards."""
    results = begin(WHAT, arguments)
    for repeat in range(arguments.repeats):
        for job in arguments.jobs[:: -1 if repeat % 2 else 1]:
            results.attempt(job, partial(_cases_of, job), shape=job, repeat=repeat)
    return results


def _cases_of(job: str) -> dict[str, Any]:
    return {"cases": measure(job, CASES)}


def points_of(results: Results) -> list[dict[str, Any]]:
    """Return a record for each job and case: medians over the repeats."""
    points: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for each in results.runs:
        for case in each["cases"]:
            points.setdefault((each["shape"], case["keys"], case["elements"]), []).append(case)
    return [{name: median(run[name] for run in runs) for name in runs[0]} for runs in points.values()]


def told(model: Model) -> str:
    """Return a fit as text."""
    lines = []
    for name, cost in zip(("a worker's busiest thread", "its others", "a server"), model):
        lines.append(
            f"{name}: {1e6 * cost.step_s:.0f} us a step, {1e6 * cost.message_s:.0f} us a message, "
            f"{1e6 * cost.slice_s:.0f} us a slice, {1e9 * cost.byte_s:.2f} ns a byte"
        )
    return "\n".join([*lines, f"a step besides: {1e6 * model.wait_s:.0f} us"])


def errors_of(points: Sequence[Mapping[str, Any]], model: Model, cores: int) -> list[tuple[float, ...]]:
    """Return by how much a fit is wrong of each point: worker, server, step."""
    errors = []
    for point in points:
        step = step_of(point)
        threads = model.threads(step)
        errors.append(
            (
                threads["worker"] / point["thread_s"] - 1,
                threads["server"] / point["server_s"] - 1,
                model.seconds(step, cores) / point["seconds"] - 1,
            )
        )
    return errors


def errors_table(points: Sequence[Mapping[str, Any]], model: Model, cores: int) -> str:
    """Return each measured point, and in brackets by how much the fit is wrong."""
    rows: list[tuple[str, ...]] = [HEAD]
    for point, errors in zip(points, errors_of(points, model, cores)):
        times = (point["thread_s"], point["server_s"], point["seconds"])
        names = ("workers", "servers", "slice_elements", "keys", "elements")
        amounts = [*(f"{point[name]:.0f}" for name in names), f"{point['messages']:.1f}"]
        rows.append((*amounts, *(f"{1e6 * time:.0f} ({error:+.0%})" for time, error in zip(times, errors))))
    return align(rows)


def errors_told(points: Sequence[Mapping[str, Any]], model: Model, cores: int) -> str:
    """Return how wrong a fit is in the middle, and at worst."""
    columns = zip(*errors_of(points, model, cores))
    texts = [
        f"{name} {median(map(abs, column)):.0%} ({min(column):+.0%} to {max(column):+.0%})"
        for name, column in zip(("worker", "server", "step"), map(list, columns))
    ]
    return f"errors, in the middle and from to: {', '.join(texts)}"


def large_step(elements: Sequence[int], servers: int = LARGE) -> Step:
    """Return a step of many workers, of which each has a server: no two slices share a message."""
    slices = slices_of(elements, SLICE_ELEMENTS)
    return Step(LARGE, servers, slices, ITEM_BYTES * sum(elements), 2 * slices)


def needs_of(name: str, model: Model) -> dict[str, float]:
    """Return what a step of 1,000 hosts, with a worker and a server each, needs of each and of links."""
    step = large_step(replace(zoo.load(name), scale=1).elements())
    threads = model.threads(step)
    threads["server"] *= step.unevenness
    links = {
        f"link, {rate} Gbit/s": link_seconds(step.num_bytes, LARGE, TCP_SHARE * rate * 1e9 / 8)
        for rate in GIGABITS
    }
    return {**threads, **links}


def predictions(needs: Mapping[str, Mapping[str, float]]) -> str:
    """Return the same as text."""
    kinds = next(iter(needs.values()))
    rows = [("seconds of a step, 1,000 hosts", *kinds)]
    rows += [(name, *(f"{seconds:.3f}" for seconds in each.values())) for name, each in needs.items()]
    return align(rows)


def show(results: Results, plot: Path | None) -> None:
    """Print, and draw, what was measured, how well it is fitted, and what it predicts."""
    points, cores = points_of(results), results.head["cores"]
    most = max(point["workers"] for point in points)
    smaller = [point for point in points if point["workers"] < most]
    largest = [point for point in points if point["workers"] == most]
    model, without = fitted(points, cores), fitted(smaller, cores)
    needs = {name: needs_of(name, model) for name in MODELS}
    results.show(
        f"{told(model)}\n",
        errors_table(points, model, cores),
        errors_told(points, model, cores),
        f"\nfitted to fewer than {most} workers, of jobs of {most}:",
        f"{errors_told(largest, without, cores)}\n",
        predictions(needs),
    )
    if plot:
        from harness.scaling_drawing import draw  # noqa: PLC0415  matplotlib only for a plot

        draw(points, model, cores, needs, plot, results.marks)


def main() -> None:
    """Measure or load, print, write and draw."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3")
    jobs = ",".join(JOBS)
    parser.add_argument("--jobs", default=jobs, help=f"WORKERSxSERVERSxELEMENTS of a slice ({jobs})")
    arguments = parser.parse_args()
    arguments.jobs, arguments.repeats = arguments.jobs.split(","), arguments.repeats or 3
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except JobError as error:
        sys.exit(f"{WHAT}: {error}")
    show(results, arguments.plot)
    results.close()


if __name__ == "__main__":
    main()
