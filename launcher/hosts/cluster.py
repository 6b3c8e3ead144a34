"""The hosts of a job, from the first connection to the last process, whatever reaches them (``reach``)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.host_name import host_name
from mpilaunch.cores import cores_here
from mpilaunch.hosts.allocation import LSF, SLURM
from mpilaunch.hosts.local import LocalHost
from mpilaunch.hosts.lsf import LsfReach
from mpilaunch.hosts.networks import choose, knock, networks_here, told_to_mpi, told_unreached
from mpilaunch.hosts.reach import AGENT
from mpilaunch.hosts.remote import Facts, RemoteHost
from mpilaunch.hosts.slurm import SlurmReach
from mpilaunch.hosts.ssh import SshReach
from mpilaunch.mpi import PYTHON
from mpilaunch.plan import RECORDS, Sites, inherited
from mpilaunch.rank.reporter import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from mpilaunch.hosts.hostlist import Placement
    from mpilaunch.hosts.interface import Host
    from mpilaunch.hosts.networks import Attached
    from mpilaunch.hosts.reach import Reach

SILENCE_SECONDS = 20.0
"""After so long without a word an agent takes us for dead."""

SCRIPT = "ssh"
"""Name of the script that mpiexec runs instead of ssh."""


class ClusterHosts:
    """The hosts of a job; leaving the ``with`` block ends and removes everything of it on all of them.

    Attributes:
        local: The launcher's own host, whether it is one of the job's or not.
        hosts: All of the job by the names that the user has for them, and ours under no name.
    """

    def __init__(self, placement: Placement, reach: Reach, grace: float) -> None:
        """Reach nothing yet; ranks have ``grace`` seconds to save on hosts that take us for dead."""
        self._placement = placement
        self._grace = grace
        self._reach = reach
        self._exits = contextlib.ExitStack()
        self._facts: dict[str, Facts] = {}
        self._remote: dict[str, RemoteHost] = {}
        self.local = LocalHost()
        self.hosts: dict[str, Host] = {"": self.local}

    def __enter__(self) -> Self:
        """Reach all hosts at once.

        Raises:
            ConfigurationError: One cannot be used; the error names it.
        """
        self._exits.enter_context(self.local)
        try:
            self._connect()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self._exits.close()

    def _connect(self) -> None:
        self._remote = remote = {
            name: connect(name, self._reach, self.local.directory)
            for name in self._placement.hosts
            if not is_here(name)
        }
        # In this order: all are told to end before any is waited for.
        for host in remote.values():
            self._exits.callback(host.join)
        for host in remote.values():
            self._exits.callback(host.close)
        for name in self._placement.hosts:
            self.hosts[name] = remote.get(name, self.local)
            self._facts[name] = (
                remote[name].facts(self._reach.answer_seconds) if name in remote else facts_here()
            )
        for host in remote.values():
            host.open(str(Path.cwd()), self._reach.answer_seconds, self._grace)

    def sites(self, wanted: str, env: Mapping[str, str]) -> Sites:
        """Choose the network, tell it to the ranks of each host, and return where everything is.

        Args:
            wanted: An interface's name or a network, or nothing.
            env: Variables that the user has set for ranks.

        Raises:
            ConfigurationError: The hosts have no such network in common, or do not reach each other on it.
        """
        attached = choose({name: facts.networks for name, facts in self._facts.items()}, wanted)
        self._try(attached)
        given = {*os.environ, *env}
        for names in self._same():
            way = attached[names[0]]
            ranks, has = sum(map(self._ranks_on, names)), self._facts[names[0]].cores
            own = {"OMP_NUM_THREADS": str(self._reach.threads(has, ranks)), **_waits(has, ranks)}
            told = {name: value for name, value in own.items() if name not in given}
            told |= told_to_mpi(way, given, chosen=bool(wanted))
            content = json.dumps({"KVMPI_INTERFACE": way.address, **told})
            self.hosts[names[0]].put(f"{RECORDS}/{VARIABLES}", content.encode())
        addresses = {name: way.address for name, way in attached.items()}
        here = next((address for name, address in addresses.items() if self.hosts[name] is self.local), "")
        first = addresses[self._placement.hosts[0]]
        script = write_script(self.local, self._reach)
        cores = {name: facts.cores for name, facts in self._facts.items()}
        mine = here or address_towards(first)
        # A workload manager knows a host by one name; by ssh this one may be called what /etc/hosts says.
        called = frozenset(name for name, host in self.hosts.items() if host is self.local and script)
        variables = frozenset(inherited(os.environ))
        return Sites(self._placement, addresses, mine, self._reach, script, cores, called, variables)

    def _same(self) -> list[list[str]]:
        """Return the names of each host: this one may have several."""
        named: dict[int, list[str]] = {}
        for name in self._placement.hosts:
            named.setdefault(id(self.hosts[name]), []).append(name)
        return list(named.values())

    def _try(self, attached: Mapping[str, Attached]) -> None:
        """See whether each host reaches each other, which a job would wait for in vain."""
        addresses = {name: way.address for name, way in attached.items()}
        others = {
            name: [each for each in addresses.values() if each != addresses[name]] for name in addresses
        }
        for name, host in self._remote.items():
            host.ask_to_knock(others[name])
        here = {name: knock(others[name]) for name in addresses if name not in self._remote}
        seconds = self._reach.answer_seconds
        there = {name: host.knocked(seconds) for name, host in self._remote.items()}
        problem = told_unreached(attached, {**here, **there})
        if problem:
            raise ConfigurationError(problem)

    def _ranks_on(self, name: str) -> int:
        return sum(ranks.count(name) for ranks in self._placement.ranks)


def _waits(cores: int, ranks: int) -> dict[str, str]:
    """Return how a host's ranks of Open MPI are to wait: it takes the places that we name for processors.

    Four, three of them on two cores, took 39 s for 100 steps of 4 KB, and 3 s if they gave up their core.
    """
    return {"OMPI_MCA_mpi_yield_when_idle": "1"} if ranks > cores else {}


def connect(name: str, reach: Reach, directory: str) -> RemoteHost:
    """Begin to reach a host; its private directory will have the path of ours."""
    return RemoteHost(
        name,
        reach.agent(name),
        remedy=partial(reach.remedy, name),
        directory=directory,
        silence=SILENCE_SECONDS,
        patience=reach.patience,
    )


def write_script(local: LocalHost, reach: Reach) -> str:
    """Make the script that mpiexec runs instead of ssh, if it is to run one; return its path."""
    if not reach.script:
        return ""
    path = local.put(SCRIPT, reach.script.encode())
    Path(path).chmod(0o700)
    return path


def make_reach(ssh: str, backend: str, env: Mapping[str, str]) -> Reach:
    """Return what reaches the hosts of a job.

    Raises:
        ConfigurationError: The program that would is not there.
    """
    variables = [f"{name}={env[name]}" for name in ("PYTHONPATH",) if name in env]
    agent = [*(["env", *variables] if variables else []), *PYTHON, "-m", AGENT]
    reach: Reach
    if backend == SLURM:
        reach = SlurmReach(env, agent)
    elif backend == LSF:
        reach = LsfReach(agent)
    else:
        reach = SshReach(ssh, agent)
    program = reach.agent("")[0]
    if shutil.which(program) is None:
        raise ConfigurationError(
            f"--backend {backend}: {program} is not on PATH; say --backend local to run here"
        )
    return reach


def is_here(name: str) -> bool:
    """Return whether a name is one of this host: its addresses can be listened on."""
    try:
        addresses = {str(each[4][0]) for each in socket.getaddrinfo(name, None, socket.AF_INET)}
    except (OSError, UnicodeError):  # the latter where it cannot be a name of the DNS
        return False  # ssh may know it by its own configuration
    return bool(addresses) and all(map(_is_own, addresses))


def _is_own(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def address_towards(address: str) -> str:
    """Return the address of this host from which another one is reached; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def facts_here() -> Facts:
    """Return what a host says of itself, for this one."""
    return Facts(host_name(), cores_here(), networks_here())
