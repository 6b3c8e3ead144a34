"""``mpilaunch plan``: how many devices, clients and servers to give to a training, and why.

The net is the JSON of a profile (``planner.net``) or of a symbol of MXNet's, or it is a script's, which one
worker runs with a trace.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.planner import ModelParallel, plan, read_cluster, read_curve, read_net, read_plan
from kvstore_mpi.planner.cuts import read_parts
from kvstore_mpi.planner.net import write_net
from kvstore_mpi.planner.plan_file import compare, read_placement, write_plan
from kvstore_mpi.planner.planning import check_question
from kvstore_mpi.planner.predicted_step import predicted_step
from kvstore_mpi.planner.workers import EFFORT_S
from kvstore_mpi.records import Role
from kvstore_mpi.tracing import parts
from kvstore_mpi.tracing.linking import link
from mpilaunch import cli
from mpilaunch.cores import cores_here
from mpilaunch.help_text import JOB_OPTIONS
from mpilaunch.inputs import check_output
from mpilaunch.jobspec import with_threads
from mpilaunch.options import count, finite, make_command_parser, split_command
from mpilaunch.planning.plan_picture import draw
from mpilaunch.planning.step_profile import profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.planner import Cluster, Net, Plan
    from mpilaunch.jobspec import JobSpec, Target
    from mpilaunch.options import Parser

USAGE = (
    "mpilaunch plan --cluster FILE --epochs-curve FILE [more] NET.json\n"
    "       mpilaunch plan --cluster FILE --epochs-curve FILE --batch N --samples N [more] SCRIPT ARGS..."
)


def run(arguments: Sequence[str], out: TextIO) -> int:
    """Plan, say what has come out and write what was asked for; return 0.

    Raises:
        KVStoreError: An argument or a file cannot be used, or the script has failed.
    """
    parser = _parser()
    head, kind, command = split_command(arguments, parser)
    options, job_options = parser.parse_beside_job(head)
    for path in filter(None, (options.output, options.profile, options.timeline, options.picture)):
        check_output(path)
    cluster = read_cluster(_text_of(options.cluster), options.cluster)
    curve = read_curve(_text_of(options.epochs_curve).encode(), options.epochs_curve)
    placed = [read_placement(_text_of(path).encode(), path) for path in options.placement]
    known = [*options.model_parallel, *placed]
    old = read_plan(_text_of(options.compare).encode(), options.compare) if options.compare else None
    if options.batch:
        check_question(options.batch, curve, known)
    net = _net_of(options, cluster, job_options, (kind, command))
    # Each file as soon as it can be: what comes next may fail, and a script has been measured for this one.
    if options.profile:
        _write(options.profile, write_net(net), out)
    found = plan(net, cluster, curve, known, options.devices, ways=options.ways, seconds=options.seconds)
    out.write(found.explain() + "\n")
    if options.output:
        _write(options.output, write_plan(found), out)
    if old is not None:
        out.write(f"compared with {options.compare}:\n{compare(old, found)}\n")
    if options.timeline:
        content = msgspec.json.encode(_timeline(net, cluster, found))
        _write(options.timeline, content, out, " (open it at https://ui.perfetto.dev)")
    if options.picture:
        draw(found, curve, options.picture)
        out.write(f"wrote {options.picture}\n")
    return 0


def _parser() -> Parser:
    parser = make_command_parser("plan", usage=USAGE, epilog=JOB_OPTIONS)
    parser.add_argument("--cluster", required=True, help="TOML, as mpilaunch measure-links writes it")
    parser.add_argument("--epochs-curve", required=True, help="JSON, as mpilaunch measure-epochs writes it")
    parser.add_argument("--batch", type=count, default=0, help="samples of one worker in a step")
    parser.add_argument("--samples", type=count, default=0, help="samples of an epoch")
    parser.add_argument(
        "--shape",
        type=_shape,
        action="append",
        default=[],
        metavar="NAME:N,C,...",
        help="NET.json is a symbol with this input; its times follow from [device] of the cluster",
    )
    parser.add_argument(
        "--model-parallel",
        type=_model_parallel,
        action="append",
        default=[],
        metavar="M:SPEEDUP[:KIND]",
        help="what is known of workers of M devices; KIND is placement or pipeline",
    )
    parser.add_argument(
        "--placement",
        action="append",
        default=[],
        metavar="FILE",
        help="the same from the JSON of a placement: its devices, and its time beside that of one",
    )
    parser.add_argument("--devices", type=count, default=0, help="use no more than these (default: all)")
    parser.add_argument(
        "--ways",
        type=count,
        default=0,
        help="only workers of this number of devices, which one net may need for its memory (default: any)",
    )
    parser.add_argument(
        "--seconds",
        type=_effort,
        default=EFFORT_S,
        help="effort for each placement of the net's parts, about as many seconds of a processor; counted "
        "in work and not by a clock (default: %(default)g)",
    )
    parser.add_argument("--output", default="", help="write the plan here, for mpilaunch --plan")
    parser.add_argument("--profile", default="", help="write the profile of the net here")
    parser.add_argument("--picture", default="", help="draw the plan here (needs matplotlib)")
    parser.add_argument(
        "--timeline",
        default="",
        help="write the predicted step of a worker of several devices here, as a trace; that of the best "
        "option that has such workers",
    )
    parser.add_argument("--compare", default="", help="say what differs from this plan")
    return parser


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, numbers = text.rpartition(":")
    try:
        return name, tuple(count(each) for each in numbers.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:N,C,...") from None


def _effort(text: str) -> float:
    seconds = finite(text)
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def _model_parallel(text: str) -> ModelParallel:
    ways, _, rest = text.partition(":")
    speedup, _, kind = rest.partition(":")
    try:
        return ModelParallel(count(ways), finite(speedup), kind or "placement")
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not M:SPEEDUP or M:SPEEDUP:KIND") from None


def _net_of(
    options: argparse.Namespace,
    cluster: Cluster,
    job_options: Sequence[str],
    what: tuple[Target, tuple[str, ...]],
) -> Net:
    kind, command = what
    if not command:
        raise UsageError(f"there is nothing to plan: {USAGE}")
    is_net = command[0].endswith(".json")
    if (is_net or options.shape) and (more := [*job_options, *command[1:]]):
        raise UsageError(f"leave out {' '.join(more)}: {command[0]} is planned, and no script runs")
    if is_net and not options.shape:
        sizes = {"--batch": options.batch, "--samples": options.samples}
        if named := " and ".join(name for name, value in sizes.items() if value):
            raise UsageError(f"leave out {named}: {command[0]} is the profile of a net, and has its own")
        return read_net(_text_of(command[0]).encode(), command[0])
    if options.batch < 1 or options.samples < 1:
        raise UsageError(
            "for a script or a symbol, say --batch (samples of one worker in a step) and --samples "
            "(of an epoch)"
        )
    if options.shape:
        return _net_of_symbol(command[0], options, cluster)
    spec, _ = cli.read_job(job_options, kind, command)
    if spec.node.num_workers != 1 or spec.node.num_servers:
        raise UsageError(
            "a script is measured with one worker: leave --clients, --workers and --servers out"
        )
    spec = as_one_device(spec, cores_here(), cluster)
    with tempfile.TemporaryDirectory(prefix="plan-") as name:
        folder, told = Path(name, "trace"), Path(name, "parts.json")
        folder.mkdir()
        node = replace(spec.node, parts_file=str(told))
        code = cli.run_job(replace(spec, trace=str(folder), node=node)).code
        if code:
            raise ConfigurationError(f"the script has failed with exit code {code}: nothing is known of it")
        timelines = link(parts.read_parts(folder))
        known = read_parts(told.read_bytes()) if told.exists() else None
    [worker] = [each for each in timelines if each.node.role is Role.WORKER]
    net = profile(worker, Path(command[0]).stem, options.batch, options.samples)
    return msgspec.structs.replace(net, parts=known)


def as_one_device(spec: JobSpec, cores: int, cluster: Cluster) -> JobSpec:
    """Let the worker that is measured compute with a device's share of this host's cores.

    As its rank will: a worker that had all cores for itself would be planned to be faster than it can be.
    """
    return with_threads(spec, cores // cluster.num_each_host, os.environ)


def _net_of_symbol(path: str, options: argparse.Namespace, cluster: Cluster) -> Net:
    if cluster.device is None:
        raise UsageError(f"{options.cluster} has no [device], of which times for a symbol are computed")
    shapes = dict(options.shape)
    if not any(options.batch in shape for shape in shapes.values()):
        raise UsageError(f"--batch {options.batch} is in no --shape, of {shapes}: give the same in both")
    if importlib.util.find_spec("mxnet") is None:
        raise ConfigurationError(
            f"{path} is a symbol, which needs mxnet, and that is not installed: pip install "
            "'kvstore_mpi[mxnet]', or give the JSON of a profile"
        )
    from kvstore_mpi.adapters.mxnet.parts.symbol_net import net_of_symbol  # noqa: PLC0415  it imports mxnet

    return net_of_symbol(
        _text_of(path),
        shapes,
        cluster.device,
        name=Path(path).stem,
        batch=options.batch,
        samples=options.samples,
    )


def _timeline(net: Net, cluster: Cluster, found: Plan) -> dict[str, object]:
    """Return the predicted step of the workers of several devices that rank first."""
    cuts = {workers.ways: workers.cut for workers in found.workers if workers.cut is not None}
    ways = next((each.configuration.ways for each in found.options if each.configuration.ways in cuts), 0)
    devices = cluster.of_one_worker(ways) if ways else None
    if net.parts is None or devices is None:
        raise UsageError(
            "--timeline is of a worker of several devices, and no option has one whose cut is known: plan "
            "a script with a PipelineTrainer or a PartTrainer, or a symbol"
        )
    return predicted_step(net.parts, cuts[ways], devices).trace()


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _write(path: str, content: bytes, out: TextIO, how: str = "") -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    out.write(f"wrote {path}{how}\n")
