"""The hosts of a job that are reached by ssh, from the first connection to the last process.

Each host gets one connection, over which its agent is asked for everything (``remote``); the secret of the
job travels there as well. ``mpiexec`` makes its own connections, by a script in the private directory, so
that both use the same command and never ask for a password.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mpilaunch.hosts.local import LocalHost
from mpilaunch.hosts.networks import choose, networks_here
from mpilaunch.hosts.remote import Facts, RemoteHost
from mpilaunch.plan import RECORDS, Sites
from mpilaunch.rank.reporter import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from mpilaunch.hosts.hostlist import Placement
    from mpilaunch.hosts.interface import Host

ANSWER_SECONDS = 10.0
"""How long a host may take to answer, login and start of Python and all."""

CONNECT_SECONDS = 7
ALIVE_SECONDS, ALIVE_COUNT = 5, 4
"""A connection of which nothing comes for 20 s, as when a cable is cut, is lost."""

OPTIONS = (
    *("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"),
    *("-o", f"ServerAliveInterval={ALIVE_SECONDS}", "-o", f"ServerAliveCountMax={ALIVE_COUNT}"),
)

AGENT = "mpilaunch.hosts.agent"
SCRIPT = "ssh"
"""Name of the script that mpiexec runs instead of ssh."""


class SshHosts:
    """The hosts of a job; leaving the ``with`` block ends and removes everything of it on all of them.

    Attributes:
        local: The launcher's own host, whether it is one of the job's or not.
        hosts: All of the job by the names that the user has for them, and ours under no name.
    """

    def __init__(self, placement: Placement, ssh: str) -> None:
        """Reach nothing yet; ``ssh`` is the user's command."""
        self._placement = placement
        self._ssh = shlex.split(ssh)
        self._exits = contextlib.ExitStack()
        self._facts: dict[str, Facts] = {}
        self.local = LocalHost()
        self.hosts: dict[str, Host] = {"": self.local}

    def __enter__(self) -> Self:
        """Reach all hosts at once.

        Raises:
            ConfigurationError: One cannot be used; the error names it.
        """
        self._exits.enter_context(self.local)
        try:
            self._reach()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self._exits.close()

    def _reach(self) -> None:
        remote = {name: self._begin(name) for name in self._placement.hosts if not is_here(name)}
        # In this order: all are told to end before any is waited for.
        for host in remote.values():
            self._exits.callback(host.join)
        for host in remote.values():
            self._exits.callback(host.close)
        for name in self._placement.hosts:
            self.hosts[name] = remote.get(name, self.local)
            self._facts[name] = remote[name].facts(ANSWER_SECONDS) if name in remote else _facts_here()
        for host in remote.values():
            host.open(str(Path.cwd()), ANSWER_SECONDS)

    def _begin(self, name: str) -> RemoteHost:
        return RemoteHost(
            name,
            [*self._ssh, "-T", *OPTIONS, name, agent_command(os.environ)],
            directory=self.local.directory,
            silence=float(ALIVE_SECONDS * ALIVE_COUNT),
        )

    def sites(self, wanted: str, env: Mapping[str, str]) -> Sites:
        """Choose the network, tell it to the ranks of each host, and return where everything is.

        Args:
            wanted: An interface's name or a network, or nothing.
            env: Variables that the user has set for ranks.

        Raises:
            ConfigurationError: The hosts have no such network in common.
        """
        attached = choose({name: facts.networks for name, facts in self._facts.items()}, wanted)
        for name, way in attached.items():
            threads = max(1, self._facts[name].cores // max(1, self._ranks_on(name)))
            own = {"OMP_NUM_THREADS": str(threads), **({"UCX_NET_DEVICES": way.device} if wanted else {})}
            told = {key: value for key, value in own.items() if key not in {*os.environ, *env}}
            content = json.dumps({"KVMPI_INTERFACE": way.address, **told})
            self.hosts[name].put(f"{RECORDS}/{VARIABLES}", content.encode())
        addresses = {name: way.address for name, way in attached.items()}
        here = next((address for name, address in addresses.items() if self.hosts[name] is self.local), "")
        first = addresses[self._placement.hosts[0]]
        return Sites(self._placement, addresses, here or address_towards(first), self._script())

    def _ranks_on(self, name: str) -> int:
        return sum(ranks.count(name) for ranks in self._placement.ranks)

    def _script(self) -> str:
        command = shlex.join([*self._ssh, *OPTIONS])
        path = self.local.put(SCRIPT, f'#!/bin/sh\nexec {command} "$@"\n'.encode())
        Path(path).chmod(0o700)
        return path


def agent_command(environment: Mapping[str, str]) -> str:
    """Return what the shell of another host is told to start the agent: the same Python as ours."""
    variables = [f"{name}={environment[name]}" for name in ("PYTHONPATH",) if name in environment]
    return shlex.join(["exec", *(["env", *variables] if variables else []), sys.executable, "-m", AGENT])


def is_here(name: str) -> bool:
    """Return whether a name is one of this host: its addresses can be listened on."""
    try:
        addresses = {str(each[4][0]) for each in socket.getaddrinfo(name, None, socket.AF_INET)}
    except OSError:
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


def _facts_here() -> Facts:
    return Facts(socket.gethostname(), os.cpu_count() or 1, networks_here())
