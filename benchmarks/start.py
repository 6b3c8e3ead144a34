"""How long a job on several hosts takes to start, and where the time goes, beside mpiexec alone.

Hosts are namespaces of this machine with an sshd each, so that all of them share its cores. Both start the
same number of ranks on the same hosts by ssh, and each rank imports MXNet. With mpiexec they then meet in a
barrier of MPI. With mpilaunch there are servers, too, each rank opens a store, and they meet in a barrier
of the job. Needs root and openssh-server. See README.md beside this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.jobs import THREADS, JobError
from harness.netns import NetworkError
from harness.procfs import busy_seconds
from harness.results import Results, begin, load, make_parser, report
from harness.table import align, each, met, ratios_of, spread_of

from mpilaunch.hosts.ssh import SshReach
from mpilaunch.mpi import find_mpi

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))  # hosts with an sshd each, which tests have as well

from support.virtual_hosts import LOGIN, VirtualHosts, missing  # noqa: E402

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

WHAT = "start"
ALONE, OURS = "mpiexec", "mpilaunch"
STORE = "dist_sync_mpi"
TARGET = 2.0
"""At most as many times as long as mpiexec alone."""

STAGES = ("first rank", "last rank", "MXNet", "store", "barrier")
"""When the first and the last rank's process began; when the last one had imported, opened, and met all."""


def command(variant: str, hosts: VirtualHosts, arguments: argparse.Namespace, folder: Path) -> list[str]:
    """Return what starts the ranks, for the login node."""
    ranks = arguments.per_host * arguments.hosts
    worker = [str(HERE / "start_worker.py"), "none" if variant == ALONE else STORE, str(folder)]
    if variant == OURS:
        listed = ",".join(f"{name}:{arguments.per_host}" for name in hosts.names)
        options = {"hosts": listed, "ssh": hosts.ssh, "log-dir": folder / "logs", "workers": ranks}
        options |= {"clients": arguments.hosts, "servers": arguments.hosts}
        given = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        return [str(Path(sys.executable).with_name("mpilaunch")), *given, *worker]
    reach = SshReach(hosts.ssh, ())
    script = folder / "ssh"
    script.write_bytes(reach.script.encode())
    script.chmod(0o700)
    placed = [name for name in hosts.names for _ in range(arguments.per_host)]
    start = reach.ranks(find_mpi(), placed, str(script), hosts.network.hub_address, os.environ)
    return [*start, sys.executable, *worker]


def measure(
    variant: str, hosts: VirtualHosts, arguments: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Start one job; return when it came how far, in seconds from the command on."""
    folder.mkdir()
    busy, launched = busy_seconds(), time.monotonic()
    variables = [f"{name}={value}" for name, value in {**THREADS, "PYTHONPATH": str(HERE)}.items()]
    argv = ["env", *variables, *command(variant, hosts, arguments, folder)]
    try:
        done = hosts.run(LOGIN, argv, timeout=arguments.deadline)
    except subprocess.TimeoutExpired as error:
        raise JobError(f"{variant} has not ended after {arguments.deadline:g} s") from error
    ended = time.monotonic()
    if done.returncode:
        raise JobError(f"{variant} has ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    ranks = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    if len(ranks) != arguments.hosts * arguments.per_host:
        raise JobError(f"{variant}: only {len(ranks)} ranks have written how far they came")
    last = {name: max(rank[name] for rank in ranks) for name in ranks[0]}
    moments = (min(rank["began"] for rank in ranks), *last.values(), ended)
    found = dict(zip((*STAGES, "end"), (moment - launched for moment in moments)))
    return {"variant": variant, "cpu_s": busy_seconds() - busy, **found}


def measure_all(arguments: argparse.Namespace) -> Results:
    """Start both in turn, every second time in the other order."""
    why = missing()
    if why:
        raise NetworkError(why)
    results = begin(WHAT, arguments)
    results.facts.update(hosts=arguments.hosts, per_host=arguments.per_host)
    with tempfile.TemporaryDirectory(prefix=f"{WHAT}-") as name:
        root = Path(name)
        with VirtualHosts(arguments.hosts, root) as hosts:
            for repeat in range(arguments.repeats):
                for variant in (ALONE, OURS)[:: -1 if repeat % 2 else 1]:
                    found = measure(variant, hosts, arguments, root / f"{variant}{repeat}")
                    hosts.check_nothing_left()
                    results.add({"repeat": repeat, **found})
                    report(f"{variant}, {repeat}: {found['barrier']:.1f} s")
    return results


def table(results: Results) -> str:
    """Return the medians of each variant, and how the two compare in jobs of the same turn."""
    of = {name: [run for run in results.runs if run["variant"] == name] for name in (ALONE, OURS)}
    rows = [("started by", *STAGES, "end", "cpu s", "barrier of each job")]
    for name, runs in of.items():
        medians = [spread_of([run[stage] for run in runs]).median for stage in (*STAGES, "end", "cpu_s")]
        texts = [f"{value:.1f}" for value in medians]
        rows.append((name, *texts, each([run["barrier"] for run in runs], 1)))
    ratio = ratios_of(*([run["barrier"] for run in of[name]] for name in (OURS, ALONE)))
    facts = results.facts
    text = (
        f"{facts['hosts'] * facts['per_host']} ranks on {facts['hosts']} hosts; seconds from the command on"
    )
    if ratio is None:
        return f"{text}\n{align(rows)}"
    verdict = met(TARGET, ratio.median)
    compared = f"{ratio.median:.2f} ({ratio.text(2)}) times as long as mpiexec alone, at most {TARGET:g}"
    return f"{text}\n{align(rows)}\nuntil all have met: {compared}: {verdict}"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3", plot=False)
    parser.add_argument("--hosts", type=int, default=8, help="number of hosts (8)")
    parser.add_argument("--per-host", type=int, default=8, help="ranks on each (8)")
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds that one job may take (600)")
    arguments = parser.parse_args(argv)
    arguments.repeats = arguments.repeats or 3
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments)
    except (JobError, NetworkError) as error:
        sys.exit(f"{WHAT}: {error}")
    results.show(table(results))
    results.close()


if __name__ == "__main__":
    main()
