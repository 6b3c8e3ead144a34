"""``mpilaunch measure-links``: latency and bandwidth between the hosts and devices of a job.

Starts one rank for each device, as a job with the same options would, and lets them measure
(``kvstore_mpi.measured_links``). Where there are several hosts, other jobs then measure what the store's
processes take for slices (``kvstore_mpi.measured_slices``) and for rows of tables
(``kvstore_mpi.measured_rows``). What comes of it is the cluster that ``mpilaunch plan`` asks for.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import msgspec
from msgspec.structs import replace as replace_fields

from kvstore_mpi.errors import UsageError
from kvstore_mpi.measured_slices import FEW, MANY, byte_seconds, load_for, slice_seconds
from kvstore_mpi.planner.cluster import Cluster, read_cluster, write_cluster
from kvstore_mpi.planner.row_costs import loads_for, row_costs
from kvstore_mpi.planner.sending import Way
from mpilaunch import cli
from mpilaunch.help_text import JOB_OPTIONS
from mpilaunch.inputs import check_output, read_text
from mpilaunch.jobspec import Target
from mpilaunch.mpi import PYTHON
from mpilaunch.options import make_command_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpilaunch.jobspec import JobSpec

WAIT_S = 600.0
"""Unless the user gives --timeout: MPI itself waits for ever."""

_MPI4PY = (*PYTHON, "-m", "mpi4py", "-m")
RANK = (*_MPI4PY, "kvstore_mpi.measured_links")
SLICES = (*_MPI4PY, "kvstore_mpi.measured_slices")
ROWS = (*_MPI4PY, "kvstore_mpi.measured_rows")
JOBS = 2
"""Of each kind, in turn: what one job differs from the next is no cost of slices."""

ROW_JOBS = 5
"""Of each way: small steps of rows differ from one job to the next, by up to a half where workers sum."""


def run(arguments: Sequence[str], out: TextIO) -> int:
    """Measure and write a cluster; return the exit code of the job.

    Raises:
        UsageError: The options are not those of one client of two ranks or more.
    """
    usage = (
        "mpilaunch measure-links --workers N [--hosts NAME:N,...] [options of mpilaunch] [--output FILE]"
    )
    parser = make_command_parser("measure-links", usage=usage, epilog=JOB_OPTIONS)
    parser.add_argument("--output", default="cluster.toml", help="where the cluster goes")
    options, job_options = parser.parse_beside_job(arguments)
    check_output(options.output)
    path = Path(options.output).absolute()
    spec, _ = cli.read_job(job_options, Target.EXECUTABLE, (*RANK, "--output", str(path)))
    if spec.node.num_clients != 1 or spec.node.num_servers or spec.node.num_workers < 2:  # noqa: PLR2004
        raise UsageError(
            "links are measured by the ranks of one client: give --workers 2 or more, one for each device, "
            "and neither --clients nor --servers"
        )
    spec = replace(spec, timeout=spec.timeout or WAIT_S)
    code = cli.run_job(spec).code
    for measure in (measure_slices, measure_rows):
        code = code or measure(spec, path, out)
    if not code:
        out.write(f"{path}: for mpilaunch plan --cluster\n")
    return code


def measure_slices(spec: JobSpec, path: Path, out: TextIO) -> int:
    """Measure what slices and their bytes cost, if the cluster has several hosts, and add it to the file.

    Without it plans take what was measured elsewhere.

    Args:
        spec: Of the job that has measured the links.
        path: Of the cluster that this has written.
        out: Where to say what has come of it.

    Returns:
        The exit code of a job that has failed, or 0.
    """
    written = _Written.read(path)
    cluster = written.cluster
    if not _has_equal_hosts(spec, cluster):
        return 0
    load = load_for(cluster.hosts, cluster.between_hosts.bytes_per_s)
    shape = {"keys": load.keys, "elements": load.elements, "steps": load.steps}
    command = (*SLICES, *(part for name, value in shape.items() for part in (f"--{name}", str(value))))
    seconds: dict[int, list[float]] = {FEW: [], MANY: []}
    for elements in JOBS * (FEW, MANY):
        code, told = _run(_with_servers(spec, load.hosts, slice_elements=elements), command, path)
        if code:
            return code
        seconds[elements].append(float(told))
    slice_s = slice_seconds(seconds[FEW], seconds[MANY], load)
    said = [f"{1e3 * each:.1f} ms" for each in (*seconds[FEW], *seconds[MANY])]
    what = "nothing that can be told from noise" if slice_s is None else f"{1e6 * slice_s:.0f} us"
    if slice_s is not None:
        cluster = replace_fields(cluster, slice_s=slice_s)
    cluster = replace_fields(cluster, byte_s=byte_seconds(seconds[FEW], seconds[MANY], load, cluster))
    a_byte = f"{1e9 * cluster.byte_s:.3g} ns" if cluster.byte_s else "nothing that links do not hide"
    line = (
        f"a slice: {what}; a byte of dense arrays: {a_byte}; "
        f"steps of {FEW} elements a slice, {MANY}: {', '.join(said)}"
    )
    written.add(cluster, line, out)
    return 0


def measure_rows(spec: JobSpec, path: Path, out: TextIO) -> int:
    """Measure what rows of tables cost, if there are several hosts, and add it; as ``measure_slices``."""
    written = _Written.read(path)
    cluster = written.cluster
    if not _has_equal_hosts(spec, cluster):
        return 0
    if find_spec("mxnet") is None:
        written.add(cluster, "rows of tables: not measured, since mxnet is not installed here", out)
        return 0
    for way, name in ((Way.SERVERS, "rows_servers"), (Way.ALLREDUCE, "rows_allreduce")):
        job = spec if way is Way.ALLREDUCE else _with_servers(spec, cluster.hosts)
        loads = loads_for(cluster, way)
        command = (*ROWS, "--loads", msgspec.json.encode(loads).decode())
        found: list[dict[str, float]] = []
        for _ in range(ROW_JOBS):
            code, told = _run(job, command, path)
            if code:
                return code
            found.append(msgspec.json.decode(told))
        seconds = {load: median(each[load] for each in found) for load in loads}
        rows = row_costs(cluster, way, loads, seconds, getattr(cluster, name))
        cluster = replace_fields(cluster, **{name: rows})
        said = [f"{load} {1e3 * took:.1f} ms" for load, took in seconds.items()]
        written = written.add(cluster, f"rows of tables by {way.value}: steps of {', '.join(said)}", out)
    return 0


class _Written(NamedTuple):
    """The file, and what is in it."""

    path: Path
    cluster: Cluster
    remarks: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> _Written:
        text = read_text(str(path), "--output")
        remarks = (each.removeprefix("# ") for each in text.splitlines() if each.startswith("# "))
        return cls(path, read_cluster(text, str(path)), tuple(remarks))

    def add(self, cluster: Cluster, remark: str, out: TextIO) -> _Written:
        """Write the cluster as it is known now, with one more remark, and say that too."""
        remarks = (*self.remarks, remark)
        self.path.write_text(write_cluster(cluster, "\n".join(remarks)), encoding="utf-8")
        out.write(f"{remark}\n")
        return _Written(self.path, cluster, remarks)


def _has_equal_hosts(spec: JobSpec, cluster: Cluster) -> bool:
    """Return whether there are several hosts that can each be a client: clients are equal."""
    return cluster.hosts > 1 and spec.node.num_workers % cluster.hosts == 0


def _with_servers(spec: JobSpec, hosts: int, **more: Any) -> JobSpec:
    """Return the job with a client and a server on each host."""
    return replace(spec, node=replace(spec.node, num_clients=hosts, num_servers=hosts, **more))


def _run(spec: JobSpec, command: tuple[str, ...], path: Path) -> tuple[int, str]:
    """Run a job that measures; return its exit code and what its first worker has written."""
    told = path.with_name(f"{path.name}.step")
    code = cli.run_job(replace(spec, command=(*command, "--output", str(told)))).code
    if code:
        return code, ""
    text = read_text(str(told), "--output")
    told.unlink()
    return 0, text
