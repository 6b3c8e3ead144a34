"""Measures steps of nets in parts on two ranks with a thread each: predicted, measured, and on one rank.

The parts are measured alone on one rank; what a schedule makes of them is simulated, and compared with real
steps. Prints a table of parts and one of steps, and writes JSON. See README.md beside this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.jobs import JobError, Meter, Program, run
from harness.results import Results, begin, by_names, load, make_parser, report
from harness.table import align, each

if TYPE_CHECKING:
    import argparse

WHAT = "hybrid-step"
NETS = ("inception", "towers", "pipeline")
WORKER = Path(__file__).with_name("hybrid_step_worker.py")
WITHIN = 0.10
DEADLINE_S = 300.0


def run_job(net: str, batch: int, steps: int) -> dict[str, Any]:
    """Run a job of one worker of two ranks; return what its rank 0 has measured.

    Raises:
        JobError: It failed.
    """
    with tempfile.TemporaryDirectory(prefix="hybrid-step-") as name:
        plan = {"net": net, "batch": batch, "steps": steps}
        launcher = str(Path(sys.executable).with_name("mpilaunch"))
        command = (
            launcher,
            "--model-parallel",
            "2",
            "--env",
            "OMP_NUM_THREADS=1",
            str(WORKER),
            "--plan",
            json.dumps(plan),
        )
        run([Program("mpilaunch", (*command, "--results", name))], Path(name), DEADLINE_S)
        measured: dict[str, Any] = json.loads((Path(name) / "measured.json").read_text())
        return measured


def measure_all(arguments: argparse.Namespace) -> Results:
    """Run a job for each net and repeat."""
    results = begin(WHAT, arguments)
    results.facts.update(batch=arguments.batch, steps=arguments.steps, threads=1, ranks=2)
    for _ in range(arguments.repeats):
        for net in arguments.nets:
            meter = Meter()
            try:
                found = run_job(net, arguments.batch, arguments.steps)
            except JobError as error:
                results.fail(f"{net}: {error}")
                continue
            usage = meter.read()
            results.add({"net": net, **found, "cpu_s": usage.cpu_s, "foreign_cores": usage.foreign_cores})
            report(f"{net}: {1e3 * median(found['step_s']):.1f} ms")
    return results


def errors(run_: dict[str, Any]) -> float:
    """Return by what share of the measured step the predicted one differs from it."""
    step = median(run_["step_s"])
    return float((run_["predicted_s"] - step) / step)


def table_of_steps(runs: list[dict[str, Any]]) -> str:
    """Return a line for each run: predicted and measured step, and the speed-up over one rank."""
    rows: list[tuple[str, ...]] = [
        ("net", "predicted ms", "measured ms", "error", "one rank ms", "speed-up", "cpu s")
    ]
    for each_run in runs:
        step, alone = median(each_run["step_s"]), median(each_run["alone_s"])
        rows.append(
            (
                each_run["net"],
                f"{1e3 * each_run['predicted_s']:.1f}",
                f"{1e3 * step:.1f}",
                f"{errors(each_run):+.1%}",
                f"{1e3 * alone:.1f}",
                f"{alone / step:.2f}",
                f"{each_run['cpu_s']:.0f}",
            )
        )
    return align(rows)


def table_of_parts(runs: list[dict[str, Any]]) -> str:
    """Return a line for each part: alone, and in steps of both ranks; medians over the runs."""
    rows: list[tuple[str, ...]] = [
        ("net", "part", "forward ms", "in steps", "error", "backward ms", "in steps", "error")
    ]
    for net in dict.fromkeys(each_run["net"] for each_run in runs):
        mine = [each_run for each_run in runs if each_run["net"] == net]
        for number, part in enumerate(mine[0]["parts"]):
            cells: list[str] = []
            for way in ("forward_s", "backward_s"):
                alone = median(each_run[way][number] for each_run in mine)
                within = median(each_run[f"run_{way}"][number] for each_run in mine)
                error = f"{(alone - within) / within:+.0%}" if within else ""
                cells += [f"{1e3 * alone:.2f}", f"{1e3 * within:.2f}", error]
            rows.append((net, part, *cells))
    return align(rows)


def goals(runs: list[dict[str, Any]]) -> list[str]:
    """Say for each net whether predictions are near enough, over all its runs."""
    said = []
    for net in dict.fromkeys(each_run["net"] for each_run in runs):
        found = [errors(each_run) for each_run in runs if each_run["net"] == net]
        verdict = "met" if abs(median(found)) <= WITHIN else "MISSED"
        told = each(found, 1, 100)
        said.append(
            f"{net}: the predicted step differs by {told} % (median within {WITHIN:.0%}: {verdict})"
        )
    return said


def main() -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="5, or 1 when quick", quick="once, few steps", plot=False)
    parser.add_argument("--nets", default=",".join(NETS), help=f"comma-separated, of {','.join(NETS)}")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step (default: 32)")
    parser.add_argument("--steps", type=int, help="measured of each kind (default: 20, or 4 when quick)")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 5)
    arguments.steps = arguments.steps or (4 if arguments.quick else 20)
    arguments.nets = by_names(parser, arguments.nets, NETS)
    results = load(arguments.load) if arguments.load else measure_all(arguments)
    results.show(table_of_parts(results.runs), "", table_of_steps(results.runs), *goals(results.runs))
    results.close()


if __name__ == "__main__":
    main()
