"""Measures what loosely coupled training costs: time per step, and bytes on the wire, beside mpi-SGD.

Two clients and two servers on four hosts with a 1 Gb/s link each (network namespaces); the tensors of
ResNet-50, 25.6 million parameters, whose compute is replayed as waits. Prints a table, writes JSON and
draws a picture. Needs root. See README.md beside this file.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from harness import goodput
from harness.clusters import start_ours
from harness.exchange_summary import MODES, Mode, Run, rows_of, run_of, table
from harness.jobs import Job, JobError
from harness.models import ITEM_BYTES, Model
from harness.netns import Network, NetworkError
from harness.p3_cli import prepare
from harness.results import BENCHMARKS, Results, by_names, load, make_parser, report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

WORKER = BENCHMARKS / "exchange_worker.py"
CLIENTS_ON, SERVERS_ON = (0, 1), (2, 3)
BITS_PER_S = 1e9
DEADLINE_S = 180.0
WHAT = "exchange"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3")
    known = {mode.name: mode for mode in MODES}
    parser.add_argument("--modes", help=f"comma-separated, of {','.join(known)} (default: all)")
    parser.add_argument(
        "--compute", type=float, default=0.1, metavar="SECONDS", help="of one step (default: 0.1)"
    )
    arguments = parser.parse_args(argv)
    chosen = by_names(parser, arguments.modes, list(known)) if arguments.modes else list(known)
    arguments.modes = [known[name] for name in chosen]
    arguments.repeats = arguments.repeats or 3
    return arguments


def measure(network: Network, model: Model, mode: Mode, compute_s: float) -> Run:
    """Run one job.

    Raises:
        JobError: A process failed, or the deadline passed.
    """
    warmup, steps = mode.steps
    layers = model.layers(compute_s)
    plan = {
        **asdict(mode),
        "elements": [layer.num_bytes // ITEM_BYTES for layer in layers],
        "forward_s": [layer.forward_s for layer in layers],
        "backward_s": [layer.backward_s for layer in layers],
        "warmup": warmup,
        "steps": steps,
    }
    settings = {"KVMPI_TRANSPORT": "tcp"}
    with tempfile.TemporaryDirectory(prefix="exchange-") as name, Job(Path(name)) as job:
        file = Path(name) / "plan.json"
        file.write_text(json.dumps(plan))
        command = (sys.executable, str(WORKER), "--plan", str(file), "--results", name)
        start_ours(job, network, command, settings, workers_on=CLIENTS_ON, servers_on=SERVERS_ON)
        job.wait(DEADLINE_S)
        workers = [json.loads(path.read_text()) for path in sorted(Path(name).glob("worker*.json"))]
    return _merge(mode, workers, steps)


def _merge(mode: Mode, workers: Sequence[Any], steps: int) -> Run:
    [load] = [worker["load"] for worker in workers if worker["load"]]
    spent = {name: load[1][name] - load[0][name] for name in load[0]}
    return Run(
        mode.name,
        fmean((worker["marks"][-1] - worker["marks"][0]) / steps for worker in workers),
        fmean(worker["payload_bytes"] / steps for worker in workers),
        fmean(worker["link_bytes"] / steps for worker in workers),
        1 - spent["idle_s"] / (spent["at_s"] * (os.cpu_count() or 1)),
        spent["job_s"] / steps,
    )


def measure_all(arguments: argparse.Namespace) -> Results:
    """Measure all modes in turn, as often as is asked for."""
    from harness.zoo import load as load_model  # noqa: PLC0415  needs mxnet, which takes seconds

    model = replace(load_model("resnet50"), scale=1)
    results = prepare(WHAT, arguments)
    results.facts.update(model_bytes=ITEM_BYTES * sum(model.elements()), compute_s=arguments.compute)
    with Network(len(CLIENTS_ON) + len(SERVERS_ON)) as network:
        network.limit(BITS_PER_S)
        results.facts["goodput_bytes_per_s"] = goodput.measure(network).bytes_per_s
        for mode in arguments.modes * arguments.repeats:
            try:
                run = measure(network, model, mode, arguments.compute)
            except JobError as error:  # noqa: PERF203  a job takes seconds
                results.fail(f"{mode.name}: {error}")
            else:
                results.add(asdict(run))
                report(f"{mode.name}: {run.step_s * 1e3:.1f} ms, busy {run.busy:.2f}")
    return results


def main() -> None:
    """Measure or load, print, write, and draw."""
    arguments = parse_arguments()
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"{WHAT}: {error}")
    rows = rows_of([run_of(run) for run in results.runs])
    results.show(table(rows, results.facts["model_bytes"]))
    if arguments.plot:
        from harness.exchange_drawing import draw  # noqa: PLC0415  matplotlib only for a plot

        draw(rows, results.facts["model_bytes"], arguments.plot, results.marks)
    results.close()


if __name__ == "__main__":
    main()
