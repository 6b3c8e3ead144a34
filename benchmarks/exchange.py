"""Measures what loosely coupled training costs: time per step, and bytes on the wire, beside mpi-SGD.

Two clients and two servers on four hosts with a 1 Gb/s link each (network namespaces); the tensors of
ResNet-50, 25.6 million parameters, whose compute is replayed as waits. Prints a table, writes JSON and
draws a picture. Needs root. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from harness import goodput
from harness.jobs import Job, JobError
from harness.machine import describe
from harness.models import ITEM_BYTES, Model
from harness.netns import Network, NetworkError
from harness.p3_cli import BENCHMARKS, IMAGES, prepare, report
from harness.p3_clusters import start_ours

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKER = BENCHMARKS / "exchange_worker.py"
CLIENTS_ON, SERVERS_ON = (0, 1), (2, 3)
BITS_PER_S = 1e9
INTERVALS = (1, 8, 64)
OVERLAP_SHARE = 4
"""With overlap, a center is applied a quarter of an interval after it was asked for."""

WIRES = {None: 1.0, "int8": 1 / 4, "int4": 1 / 8}
"""How parameters travel, and what that is of float32."""

BYTES_TOLERANCE = 0.03
TIME_TOLERANCE = 0.03
MOST_BUSY = 0.85
DEADLINE_S = 180.0


@dataclass(frozen=True)
class Mode:
    """One way to train.

    Attributes:
        mode: ``none`` (compute alone), ``mpi-sgd`` or ``elastic``.
        interval: Steps between two exchanges of a tensor.
        overlap: Steps for which compute goes on before a center is applied.
        compress: How parameters travel.
    """

    mode: str
    interval: int = 1
    overlap: int = 0
    compress: str | None = None

    @property
    def name(self) -> str:
        """What the table calls it."""
        if self.mode != "elastic":
            return self.mode
        return f"elastic {self.interval} {self.compress or 'fp32'}{' overlap' if self.overlap else ''}"

    @property
    def steps(self) -> tuple[int, int]:
        """Steps that are dropped, and steps that count: whole intervals, long enough to be timed."""
        if self.mode == "none":
            return 8, 64
        return max(1, self.interval), max(5, self.interval * (3 if self.interval < max(INTERVALS) else 2))

    @property
    def ideal_share(self) -> float:
        """Bytes of a step on a client's link over the bytes of the model."""
        if self.mode == "none":
            return 0.0
        return 2 * (WIRES[self.compress] / self.interval if self.mode == "elastic" else 1.0)


MODES = (
    Mode("none"),
    Mode("mpi-sgd"),
    *(
        Mode("elastic", interval, overlap, compress)
        for interval in INTERVALS
        for compress in WIRES
        for overlap in ((0, interval // OVERLAP_SHARE) if interval >= OVERLAP_SHARE else (0,))
    ),
)


@dataclass(frozen=True)
class Run:
    """What one job did in its measured steps.

    Attributes:
        mode: Name of the mode.
        step_s: Mean seconds of a step, over steps and clients.
        payload_per_step: Bytes that TCP carried for a client in both directions, the mean over clients.
        link_per_step: Bytes that crossed its link: with headers, and what was sent again.
        busy: Share of all cores' time that was not idle.
    """

    mode: str
    step_s: float
    payload_per_step: float
    link_per_step: float
    busy: float


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(repr(mode.name) for mode in MODES)
    add = parser.add_argument
    add("--modes", help=f"comma-separated, of {names} (default: all)")
    add("--compute", type=float, default=0.1, metavar="SECONDS", help="of one step (default: 0.1)")
    add("--repeats", type=int, default=3, help="jobs for each figure (default: 3)")
    add("--json", type=Path, help="where to write (default: benchmarks/results/exchange-<date>.json)")
    add("--plot", type=Path, nargs="?", const=IMAGES / "exchange.png", help="draw a PNG")
    add("--realtime", action="store_true", help="run in the real-time class, as chrt --rr 1")
    add("--allow-load", action="store_true", help="measure though others use the processors")
    arguments = parser.parse_args(argv)
    known = {mode.name: mode for mode in MODES}
    chosen = arguments.modes.split(",") if arguments.modes else list(known)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {names}")
    arguments.modes = [known[name] for name in chosen]
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
    settings = {"KVMPI_TRANSPORT": "tcp", "OMP_NUM_THREADS": "1"}
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
    )


def measure_all(arguments: argparse.Namespace) -> tuple[list[Run], dict[str, Any]]:
    """Measure all modes in turn, so often; return the runs and what goes into the JSON file."""
    from harness.zoo import load  # noqa: PLC0415  needs mxnet, which takes seconds

    model = replace(load("resnet50"), scale=1)
    head = {
        "date": time.strftime("%Y-%m-%dT%H%M%S"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        **describe(),
        "foreign_cores": prepare(arguments),
        "model_bytes": ITEM_BYTES * sum(model.elements()),
        "compute_s": arguments.compute,
    }
    runs: list[Run] = []
    failures: list[str] = []
    with Network(len(CLIENTS_ON) + len(SERVERS_ON)) as network:
        network.limit(BITS_PER_S)
        head["goodput_bytes_per_s"] = goodput.measure(network).bytes_per_s
        for mode in arguments.modes * arguments.repeats:
            try:
                runs.append(measure(network, model, mode, arguments.compute))
            except JobError as error:  # noqa: PERF203  a job takes seconds
                failures.append(f"{mode.name}: {error}")
                report(f"!! {failures[-1][:300]}")
            else:
                report(f"{mode.name}: {runs[-1].step_s * 1e3:.1f} ms, busy {runs[-1].busy:.2f}")
    return runs, {**head, "runs": [asdict(run) for run in runs], "failures": failures}


@dataclass(frozen=True)
class Row:
    """One mode in the table; times in seconds, each the median, least and most of the repeats."""

    mode: Mode
    step_s: tuple[float, float, float]
    payload_per_step: float
    link_per_step: float
    busy: float


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Return the table: medians over the repeats, in the order of ``MODES``."""
    rows = []
    for mode in MODES:
        own = [run for run in runs if run.mode == mode.name]
        if own:
            times = sorted(run.step_s for run in own)
            spread = (median(times), times[0], times[-1])
            payload = median(run.payload_per_step for run in own)
            link = median(run.link_per_step for run in own)
            rows.append(Row(mode, spread, payload, link, max(run.busy for run in own)))
    return rows


def table(rows: Sequence[Row], model_bytes: int) -> str:
    """Return the rows as text, with the targets beside them."""
    alone = next((row.step_s[0] for row in rows if row.mode.mode == "none"), None)
    lines = [f"{'mode':26}  step ms             range of compute  MB/step of ideal  on link  busy"]
    for row in rows:
        middle, low, high = (1e3 * seconds for seconds in row.step_s)
        ideal = row.mode.ideal_share * model_bytes
        share = row.payload_per_step / ideal if ideal else 0.0
        ratio = row.step_s[0] / alone if alone else 0.0
        lines.append(
            f"{row.mode.name:26} {middle:8.1f} {low:8.1f}-{high:8.1f} {ratio:10.3f} "
            f"{row.payload_per_step / 1e6:8.3f} {share:8.3f} {row.link_per_step / 1e6:8.3f} "
            f"{row.busy:5.2f}{_verdict(row, share, ratio)}"
        )
    return "\n".join(lines)


def _verdict(row: Row, share: float, ratio: float) -> str:
    if row.busy > MOST_BUSY:
        return "  the processors were the limit"
    if row.mode.mode != "elastic":
        return ""
    verdicts = ["bytes met" if abs(share - 1) <= BYTES_TOLERANCE else "bytes MISSED"]
    if row.mode.overlap and row.mode.interval == max(INTERVALS):
        verdicts.append("time met" if ratio <= 1 + TIME_TOLERANCE else "time MISSED")
    return "  " + ", ".join(verdicts)


def main() -> None:
    """Measure, print, write, and draw."""
    arguments = parse_arguments()
    try:
        runs, result = measure_all(arguments)
    except NetworkError as error:
        sys.exit(f"exchange: {error}")
    path = arguments.json or BENCHMARKS / "results" / f"exchange-{result['date']}.json"
    path.write_text(json.dumps(result) + "\n")
    rows = rows_of(runs)
    print(table(rows, result["model_bytes"]))
    report(f"written: {path}")
    if arguments.plot:
        from harness.exchange_drawing import draw  # noqa: PLC0415  matplotlib only for a plot

        draw(rows, result["model_bytes"], arguments.plot)
    if result["failures"]:
        sys.exit(f"{len(result['failures'])} runs failed; the file of results says how")


if __name__ == "__main__":
    main()
