"""``mpilaunch measure-links``: latency and bandwidth between the hosts and devices of a job.

Starts one rank for each device, as a job with the same options would, and lets them measure
(``kvstore_mpi.measured_links``). Where there are several hosts, jobs with a client and a server on each
then measure what a slice costs (``kvstore_mpi.measured_slices``). What comes of it is the cluster that
``mpilaunch plan`` asks for.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.measured_slices import FEW, MANY, load_for, slice_seconds
from kvstore_mpi.planner.cluster import read_cluster, write_cluster
from mpilaunch import cli
from mpilaunch.inputs import read_text
from mpilaunch.jobspec import Target
from mpilaunch.options import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.measured_slices import Load
    from mpilaunch.jobspec import JobSpec

WAIT_S = 600.0
"""Unless the user gives --timeout: MPI itself waits for ever."""

RANK = (sys.executable, "-m", "mpi4py", "-m", "kvstore_mpi.measured_links")
WORKER = (sys.executable, "-m", "mpi4py", "-m", "kvstore_mpi.measured_slices")
JOBS = 2
"""Of each kind, in turn: what one job differs from the next is no cost of slices."""


def run(arguments: Sequence[str], out: TextIO) -> int:
    """Measure and write a cluster; return the exit code of the job.

    Raises:
        UsageError: The options are not those of one client of two ranks or more.
    """
    usage = (
        "mpilaunch measure-links --workers N [--hosts NAME:N,...] [options of mpilaunch] [--output FILE]"
    )
    parser = Parser("mpilaunch measure-links", usage=usage, allow_abbrev=False)
    parser.add_argument("--output", default="cluster.toml", help="where the cluster goes")
    options, job_options = parser.parse_known_args([*arguments])
    path = Path(options.output).absolute()
    spec, _ = cli.read_job(job_options, Target.EXECUTABLE, (*RANK, "--output", str(path)))
    if spec.node.num_clients != 1 or spec.node.num_servers or spec.node.num_workers < 2:  # noqa: PLR2004
        raise UsageError(
            "links are measured by the ranks of one client: give --workers 2 or more, one for each device, "
            "and neither --clients nor --servers"
        )
    spec = replace(spec, timeout=spec.timeout or WAIT_S)
    code = cli.run_job(spec).code
    if not code:
        code = measure_slices(spec, path, out)
    if not code:
        out.write(f"{path}: for mpilaunch plan --cluster\n")
    return code


def measure_slices(spec: JobSpec, path: Path, out: TextIO) -> int:
    """Measure what a slice costs, if the cluster has several hosts, and add it to the file.

    Without it plans take what was measured elsewhere.

    Args:
        spec: Of the job that has measured the links.
        path: Of the cluster that this has written.
        out: Where to say what has come of it.

    Returns:
        The exit code of a job that has failed, or 0.
    """
    text = read_text(str(path), "--output")
    cluster = read_cluster(text, str(path))
    workers = spec.node.num_workers
    if cluster.hosts == 1 or workers % cluster.hosts:
        return 0  # each host is a client, and clients are equal
    load = load_for(cluster.hosts, cluster.between_hosts.bytes_per_s)
    seconds: dict[int, list[float]] = {FEW: [], MANY: []}
    for elements in JOBS * (FEW, MANY):
        code = _measure_steps(spec, path.with_name(f"{path.name}.step"), load, elements, seconds[elements])
        if code:
            return code
    found = slice_seconds(seconds[FEW], seconds[MANY], load)
    said = [f"{1e3 * each:.1f} ms" for each in (*seconds[FEW], *seconds[MANY])]
    what = "nothing that can be told from noise" if found is None else f"{1e6 * found:.0f} us"
    line = f"a slice: {what}; steps of {FEW} elements a slice, {MANY}: {', '.join(said)}"
    remark = [each.removeprefix("# ") for each in text.splitlines() if each.startswith("# ")]
    if found is not None:
        cluster = msgspec.structs.replace(cluster, slice_s=found)
    path.write_text(write_cluster(cluster, "\n".join([*remark, line])), encoding="utf-8")
    out.write(f"{line}\n")
    return 0


def _measure_steps(spec: JobSpec, path: Path, load: Load, elements: int, found: list[float]) -> int:
    """Run a job with slices of this size, and note the seconds of its steps; return its exit code."""
    shape = {"keys": load.keys, "elements": load.elements, "steps": load.steps}
    options = [part for name, value in shape.items() for part in (f"--{name}", str(value))]
    command = (*WORKER, "--output", str(path), *options)
    node = replace(spec.node, num_clients=load.hosts, num_servers=load.hosts, slice_elements=elements)
    code = cli.run_job(replace(spec, command=command, node=node)).code
    if not code:
        found.append(float(read_text(str(path), "--output")))
        path.unlink()
    return code
