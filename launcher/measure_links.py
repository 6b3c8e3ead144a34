"""``mpilaunch measure-links``: latency and bandwidth between the hosts and devices of a job.

Starts one rank for each device, as a job with the same options would, and lets them measure
(``kvstore_mpi.measured_links``). What comes of it is the cluster that ``mpilaunch plan`` asks for.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kvstore_mpi.errors import UsageError
from mpilaunch import cli
from mpilaunch.jobspec import Target
from mpilaunch.options import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

WAIT_S = 600.0
"""Unless the user gives --timeout: MPI itself waits for ever."""

RANK = (sys.executable, "-m", "mpi4py", "-m", "kvstore_mpi.measured_links")


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
    code = cli.run_job(replace(spec, timeout=spec.timeout or WAIT_S)).code
    if not code:
        out.write(f"{path}: for mpilaunch plan --cluster\n")
    return code
