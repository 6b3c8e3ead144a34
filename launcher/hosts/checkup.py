"""``mpilaunch doctor --hosts``: asks the hosts of a job, as a job would, and has what they say judged."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvstore_mpi.config import variable_of
from kvstore_mpi.errors import ConfigurationError
from mpilaunch.hosts import judgement
from mpilaunch.hosts.allocation import SSH
from mpilaunch.hosts.cluster import address_towards, connect, facts_here, is_here, make_reach, write_script
from mpilaunch.hosts.judgement import Facts, Finding, Reached, judge_mpi
from mpilaunch.hosts.local import LocalHost
from mpilaunch.hosts.networks import choose, told_to_mpi
from mpilaunch.hosts.ssh import SshReach
from mpilaunch.mpi import PYTHON, find_mpi
from mpilaunch.plan import RECORDS, inherited

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from mpilaunch.hosts.interface import Host
    from mpilaunch.hosts.networks import Attached
    from mpilaunch.hosts.reach import Reach
    from mpilaunch.hosts.remote import RemoteHost

SURVEY = (*PYTHON, "-m", "mpilaunch.hosts.survey")
SURVEY_S = 40.0
"""How long a host may take to look at its MPI and packages, and at the others."""

MPI_S = 20.0
READ_BYTES = 64 * 1024

_RANK = """
import json, os, sys
from mpilaunch.hosts.networks import networks_here
told = json.loads(sys.argv[1])
for each in networks_here():
    os.environ.update(told.get(each.address, {}))
from mpi4py import MPI
from mpilaunch.rank.reporter import Reporter
world = MPI.COMM_WORLD
Reporter.from_mapping(os.environ).record_shared_memory()
os.write(1, b'size %d sum %d\\n' % (world.Get_size(), world.allreduce(1)))
"""
"""One write, because mpiexec mixes what ranks write in pieces."""


class _Hosts(NamedTuple):
    """The hosts that could be reached."""

    by_name: dict[str, Host]
    networks: dict[str, list[Attached]]


def check_hosts(names: Sequence[str], ssh: str, wanted: str) -> Iterator[tuple[str, Finding]]:
    """Yield the name of each check and what it has found; later ones need the earlier.

    Args:
        names: The hosts, as the user calls them.
        ssh: The command that reaches them.
        wanted: The network, as for a job; or nothing.
    """
    reach = make_reach(ssh, SSH, os.environ)
    with contextlib.ExitStack() as exits:
        local = exits.enter_context(LocalHost())
        remote = {name: connect(name, reach, local.directory) for name in names if not is_here(name)}
        for host in remote.values():
            exits.callback(host.join)
        for host in remote.values():
            exits.callback(host.close)
        hosts = _Hosts({}, {})
        unreached = yield from _answers(names, remote, local, hosts)
        shared = _open(remote, hosts)
        if not hosts.by_name or shared:
            if shared:
                yield "temporary files", judgement.judge_folders({}, shared)
            return
        try:
            ways = choose(hosts.networks, wanted)
        except ConfigurationError as error:
            yield "network", Finding(str(error), "say --interface NAME or --interface ADDRESS/BITS")
            return
        told = ", ".join(f"{name} {way.address} ({way.device})" for name, way in ways.items())
        yield "network", Finding(told)
        open_ports = yield from _survey(hosts.by_name, {name: way.address for name, way in ways.items()})
        if open_ports and not unreached:  # it would only hang
            for each in {id(each): each for each in (local, *hosts.by_name.values())}.values():
                each.put(f"{RECORDS}/doctor", b"")
            yield "MPI", _start_mpi(ways, reach, write_script(local, reach), wanted)


def _answers(
    names: Sequence[str], remote: Mapping[str, RemoteHost], local: LocalHost, hosts: _Hosts
) -> Generator[tuple[str, Finding], None, int]:
    """Wait for all; fill in those that answer, and return how many do not."""
    bad = 0
    for name in names:
        try:
            facts = remote[name].facts(SshReach.answer_seconds) if name in remote else facts_here()
        except ConfigurationError as error:
            bad += 1
            yield "ssh", Finding(str(error).rpartition("; ")[0], str(error).rpartition("; ")[2])
            continue
        hosts.by_name[name] = remote.get(name, local)
        hosts.networks[name] = facts.networks
    if not bad:
        yield "ssh", Finding(f"{', '.join(names)} answer without a password, and their keys are known")
    return bad


def _open(remote: Mapping[str, RemoteHost], hosts: _Hosts) -> dict[str, str]:
    """Make the private folders; return why, where that is not possible."""
    problems = {name: _problem_with(remote[name]) for name in hosts.by_name if name in remote}
    return {name: problem for name, problem in problems.items() if problem}


def _problem_with(host: RemoteHost) -> str:
    try:
        host.open(str(Path.cwd()), SshReach.answer_seconds)
    except ConfigurationError as error:
        return str(error).partition(": ")[2]
    return ""


def _survey(
    hosts: Mapping[str, Host], addresses: Mapping[str, str]
) -> Generator[tuple[str, Finding], None, bool]:
    """Have hosts look at themselves and at each other; return whether they reach each other."""
    listen = {name: (*SURVEY, "listen", addresses[name], *hosts) for name in hosts}
    answers = _ask(hosts, "survey", listen)
    silent = {name: text for name, text in answers.items() if not text.startswith("{")}
    for name, text in silent.items():
        yield "survey", Finding(f"{name}: {text}", f"on {name}: mpilaunch doctor")
    facts = {
        name: msgspec.json.decode(text, type=Facts) for name, text in answers.items() if name not in silent
    }
    if not facts:
        return False
    yield "versions", judgement.judge_versions(facts)
    yield "names", judgement.judge_names(facts, addresses)
    yield "shared memory", judgement.judge_shared_memory(facts)
    yield "temporary files", judgement.judge_folders(facts, {})
    if len(facts) < 2:  # noqa: PLR2004  a pair
        return not silent
    targets = {f"{addresses[name]}:{each.port}": name for name, each in facts.items()}
    connect = {
        here: (*SURVEY, "reach", *(target for target, name in targets.items() if name != here))
        for here in facts
    }
    told = {name: text for name, text in _ask(hosts, "reach", connect).items() if text.startswith("[")}
    reached = {
        here: {targets[each.target]: each for each in msgspec.json.decode(text, type=list[Reached])}
        for here, text in told.items()
    }
    ports = judgement.judge_ports(reached)
    yield "ports", ports
    yield "clocks", judgement.judge_clocks(reached)
    return not ports.remedy and not silent


def _ask(hosts: Mapping[str, Host], what: str, commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Start a process on each host, all at once; return the first line of each, or why there is none."""
    environment = inherited(os.environ)
    streams = {}
    for name, argv in commands.items():
        # By that path the host's reaper knows what is the job's.
        own = {**environment, variable_of("record_dir"): hosts[name].directory}
        streams[name] = hosts[name].spawn(f"{what} {name}", argv, own)
    deadline = time.monotonic() + SURVEY_S
    answers = {}
    for name, (out, err) in streams.items():
        line = _line(out.descriptor, deadline)
        answers[name] = line or _line(err.descriptor, time.monotonic() + 1, last=True) or "it says nothing"
        os.close(err.descriptor)
        os.close(out.descriptor)
    return answers


def _line(descriptor: int, deadline: float, *, last: bool = False) -> str:
    """Read a line, the first or the last; nothing if there is none in time."""
    data = b""
    content = select.poll()  # unlike select() with as many descriptors as many hosts take
    content.register(descriptor, select.POLLIN)
    while (last or b"\n" not in data) and (left := deadline - time.monotonic()) > 0:
        piece = os.read(descriptor, READ_BYTES) if content.poll(1e3 * left) else b""
        if not piece:
            break
        data += piece
    lines = data.decode(errors="replace").strip().splitlines() or [""]
    return lines[-1] if last else lines[0]


def _start_mpi(ways: Mapping[str, Attached], reach: Reach, script: str, wanted: str) -> Finding:
    try:
        mpi = find_mpi()
    except ConfigurationError as error:
        return Finding("no MPI on this host that works", str(error))
    here = address_towards(next(iter(ways.values())).address)
    environment = {
        **inherited(os.environ),
        **dict(mpi.flavour.env),
        variable_of("record_dir"): f"{Path(script).parent}/{RECORDS}",
    }
    start = reach.ranks(mpi, list(ways), script, here, environment)
    told = {way.address: told_to_mpi(way, os.environ, chosen=bool(wanted)) for way in ways.values()}
    rank = (*PYTHON, "-c", _RANK, msgspec.json.encode(told).decode())
    try:
        done = subprocess.run(  # noqa: S603  the same argv that a job would start
            [*start, *rank],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=MPI_S,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else ""
        return judge_mpi(len(ways), None, said)
    return judge_mpi(len(ways), done.returncode, done.stdout)
