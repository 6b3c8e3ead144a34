"""``mpilaunch render``: writes what a workload manager is given: a script for sbatch, or an MPIJob."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING

from kvstore_mpi import __version__
from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.settings import limit_errors, option
from mpilaunch import cli
from mpilaunch.help_text import JOB_OPTIONS
from mpilaunch.hosts.allocation import SLURM
from mpilaunch.job_secret import make_secret
from mpilaunch.jobspec import Target
from mpilaunch.mpi import PYTHON
from mpilaunch.options import add_options, make_command_parser, make_parser, split_command
from mpilaunch.rendering.rendered_mpijob import MPIJOB_LIMITS, made_secret, mpijob, secret_name
from mpilaunch.rendering.rendered_script import Job, sbatch_script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TextIO

KUBERNETES = "kubernetes"

USAGE = f"mpilaunch render --backend {SLURM}|{KUBERNETES} [more] [options of mpilaunch] SCRIPT ARGS..."


@dataclass(frozen=True)
class Rendering:
    """What is asked of the workload manager."""

    backend: str = field(default="", metadata=option("what is written for it", choices=(SLURM, KUBERNETES)))
    name: str = field(default="", metadata=option("of the job (default: that of the script)", "NAME"))
    nodes: int | None = field(
        default=None, metadata=option("hosts, or worker pods (default: one for each client)", "N", least=1)
    )
    time: str = field(default="", metadata=option("how long the job may take", "[D-]HH:MM:SS"))
    image: str = field(default="", metadata=option("of the containers, on Kubernetes", "IMAGE"))
    cpus: str = field(default="", metadata=option("processors of a worker pod", "N"))
    memory: str = field(default="", metadata=option("memory of a worker pod", "SIZE"))
    secret_name: str = field(
        default="", metadata=option("a Secret that is there (default: one is written with the job)", "NAME")
    )


def run(arguments: Sequence[str], out: TextIO) -> int:
    """Write the script or the MPIJob; return 0.

    Raises:
        UsageError: An option is wrong, or belongs to another workload manager.
        ConfigurationError: PyYAML is not there.
    """
    head, target, command = split_command(arguments)
    parser = make_command_parser("render", usage=USAGE, epilog=JOB_OPTIONS)
    add_options(parser, Rendering)
    own, rest = parser.parse_beside_job(head)
    rendering = Rendering(**vars(own))
    job = _job(rendering, rest, target, command)
    if rendering.backend == SLURM:
        out.write(sbatch_script(job, rendering.time))
    else:
        out.write(_yaml(_documents(job, rendering)))
    return 0


def _documents(job: Job, rendering: Rendering) -> list[dict[str, Any]]:
    """Return what Kubernetes is given."""
    name = rendering.secret_name
    made = [] if name else [made_secret(job, make_secret())]
    pod = (rendering.image, rendering.cpus, rendering.memory)
    return [*made, mpijob(job, *pod, name or secret_name(job))]


def _job(rendering: Rendering, rest: Sequence[str], target: Target, command: tuple[str, ...]) -> Job:
    """Read the job's own options, to find what is wrong with them now and not in the queue."""
    options = make_parser(__version__).parse_args(rest)
    on_kubernetes = rendering.backend == KUBERNETES
    if on_kubernetes and any(vars(options).get(name) for name in ("config", "plan")):
        raise UsageError("say what --config and --plan say by options: pods do not have these files")
    errors = [*limit_errors(rendering, _spelled), *_errors(rendering)]
    # On Kubernetes the script is in the image.
    there = (lambda _: True) if on_kubernetes else os.path.isfile
    spec, more = cli.understood(options, target, command, there, lambda name: name)
    errors += more
    if spec.hosts or spec.hostfile:
        errors.append("leave out --hosts and --hostfile: the workload manager chooses the hosts")
    if spec.secret_file and rendering.backend == KUBERNETES:
        errors.append("leave out --secret-file: pods have the Secret of --secret-name, or one that is made")
    if errors:
        raise UsageError("\n".join(errors))
    shape = spec.topology
    nodes, ranks = rendering.nodes or shape.num_clients, spec.client_ranks * shape.num_clients
    if nodes > ranks + shape.num_servers:
        raise UsageError(
            f"--nodes {nodes} is more than there is to run: ranks {ranks}, servers {shape.num_servers}; "
            "leave it out, or give as many or fewer"
        )
    mark = {Target.SCRIPT: (), Target.MODULE: ("-m",), Target.EXECUTABLE: ("--",)}[target]
    launcher = ("mpilaunch",) if on_kubernetes else (*PYTHON, "-m", "mpilaunch")
    return Job(
        name=rendering.name or PurePath(spec.command[0]).stem,
        launcher=launcher,
        options=tuple(rest),
        command=(*mark, *command) if command else (),  # that of the job file
        nodes=nodes,
        ranks=ranks,
        grace=spec.grace,
        snapshot_dir=spec.node.snapshot_dir,
    )


def _spelled(name: str) -> str:
    """Return the option of a field."""
    return "--" + name.replace("_", "-")


def _errors(rendering: Rendering) -> list[str]:
    """Return what is missing, and what the other workload manager would want."""
    if not rendering.backend:
        return [f"say for what: --backend {SLURM} or --backend {KUBERNETES}"]
    if not (rendering.name or "").isprintable():
        return [f"--name {rendering.name!r} has a line break or the like in it"]
    if rendering.backend == SLURM:
        own = {name: getattr(rendering, name) for name in ("image", "cpus", "memory", "secret_name")}
        return [f"{_spelled(name)} is for --backend {KUBERNETES}" for name, value in own.items() if value]
    needed = [
        f"--{name} is needed: {why}" for name, why in MPIJOB_LIMITS.items() if not getattr(rendering, name)
    ]
    return [*needed, *([f"--time is for --backend {SLURM}"] if rendering.time else [])]


def _yaml(documents: Sequence[object]) -> str:
    try:
        import yaml  # noqa: PLC0415  an extra
    except ImportError:
        raise ConfigurationError("PyYAML is not there: pip install 'kvstore_mpi[kubernetes]'") from None
    return str(yaml.safe_dump_all(documents, sort_keys=False))
