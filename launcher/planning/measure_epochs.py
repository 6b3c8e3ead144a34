"""``mpilaunch measure-epochs``: epochs until a target is reached, against the batch of an update.

Runs a script for several delays (``DelayedTrainer``): the larger batch is emulated, with as many processes.
What a script has to do is to say after each epoch what it has reached,
``kvstore_mpi.report_epoch(metric)``, and to end when that returns ``True``.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from kvstore_mpi.epoch_report import Target, epochs_to_target, read_reports, was_asked
from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.planner.epochs import EpochsCurve, Measured, write_curve
from mpilaunch import cli
from mpilaunch.help_text import JOB_OPTIONS
from mpilaunch.inputs import check_output
from mpilaunch.options import count, finite, make_command_parser, split_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpilaunch.jobspec import JobSpec
    from mpilaunch.options import Parser

REPEAT = "{repeat}"
"""In the arguments of the script: the number of the run with one batch, for seeds."""


def run(arguments: Sequence[str], out: TextIO) -> int:
    """Measure a curve and write it; return 0.

    A script that has not reached the target may say so by its exit code, which is shown.

    Raises:
        UsageError: The arguments are wrong, or the script does not do its part.
    """
    parser = _parser()
    head, kind, command = split_command(arguments, parser)
    options, job_options = parser.parse_beside_job(head)
    check_output(options.output)
    spec, _ = cli.read_job(job_options, kind, command)
    if spec.node.delay != 1:
        raise UsageError(
            f"leave out --delay {spec.node.delay}: each run has one of those that --delays names, such as "
            f"--delays 1,{spec.node.delay}"
        )
    target = Target(options.target, options.lower)
    points: list[Measured] = []
    for delay in options.delays:
        runs = tuple(_run_once(spec, target, delay, repeat, out) for repeat in range(options.repeats))
        points.append(Measured(options.batch * delay, runs))
        reached = ", ".join("never" if each is None else f"{each:g}" for each in runs)
        out.write(f"batch {options.batch * delay}: epochs until the target is reached: {reached}\n")
        out.flush()
        if all(each is None for each in runs):
            break
    better = "at most" if options.lower else "at least"
    source = f"mpilaunch measure-epochs {' '.join(arguments)}"
    curve = EpochsCurve(tuple(points), f"{better} {options.target:g}", source)
    try:
        Path(options.output).write_bytes(write_curve(curve))
    except OSError as error:
        raise ConfigurationError(f"{options.output} cannot be written: {error.strerror}") from error
    out.write(f"{options.output}: E(B) of {len(points)} batches\n")
    return 0


def _parser() -> Parser:
    usage = "mpilaunch measure-epochs --target X --batch B [more] [options of mpilaunch] SCRIPT ARGS..."
    parser = make_command_parser("measure-epochs", usage=usage, epilog=JOB_OPTIONS)
    parser.add_argument("--target", type=finite, required=True, help="metric to reach")
    parser.add_argument("--lower", action="store_true", help="smaller metrics are better")
    parser.add_argument("--batch", type=count, required=True, help="samples of an update without delay")
    parser.add_argument(
        "--delays", type=_delays, default=(1, 2, 4, 8), help="1,2,4,8: batches of an update"
    )
    parser.add_argument(
        "--repeats", type=count, default=1, help="runs of each; {repeat} in ARGS is its number"
    )
    parser.add_argument("--output", default="curve.json", help="where the curve goes")
    return parser


def _delays(text: str) -> tuple[int, ...]:
    delays = [count(part) for part in text.split(",")]
    if delays != sorted({*delays}):
        raise argparse.ArgumentTypeError("give numbers of 1 or more, each once, ascending")
    return tuple(delays)


def _run_once(spec: JobSpec, target: Target, delay: int, repeat: int, out: TextIO) -> float | None:
    command = tuple(part.replace(REPEAT, str(repeat)) for part in spec.command)
    with tempfile.TemporaryDirectory(prefix="epochs-") as folder:
        path = Path(folder) / "reports.jsonl"
        path.write_bytes(msgspec.json.encode(target) + b"\n")
        node = replace(spec.node, delay=delay, epochs_file=str(path))
        code = cli.run_job(replace(spec, command=command, node=node)).code
        _, reports = read_reports(path)
        asked = was_asked(path)
    if not reports:
        raise UsageError(
            f"the script has ended with {code} and has reported no epoch: call "
            "kvstore_mpi.report_epoch(metric) after each, and end when it returns True"
        )
    if not asked:
        raise UsageError(
            "the script has not asked how many batches an update is made of, so that its batch is the same "
            "each time: use kvstore_mpi.mxnet.DelayedTrainer, without delay=..."
        )
    epochs = epochs_to_target(target, reports)
    if code and epochs is None:
        out.write(f"the script has not reached the target, and has ended with exit code {code}\n")
    return epochs
