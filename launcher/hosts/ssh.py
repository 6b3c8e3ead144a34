"""Hosts that ssh reaches. Pure.

Each host gets one connection, over which its agent is asked for everything (``remote``); the secret of the
job travels there as well. ``mpiexec`` makes its own connections, by a script in the private directory, so
that both use the same command and never ask for a password.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kvstore_mpi.errors import UsageError
from mpilaunch.hosts.allocation import SSH
from mpilaunch.hosts.judgement import ssh_remedy
from mpilaunch.hosts.reach import share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpilaunch.mpi import Mpi

CONNECT_SECONDS = 7
ATTEMPTS = 6
"""Of a host that refuses, one a second: its sshd may be about to start, as in a container that is new."""

ALIVE_SECONDS, ALIVE_COUNT = 5, 4
"""A connection of which nothing comes for 20 s, as when a cable is cut, is lost."""

OPTIONS = (
    *("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"),
    *("-o", f"ConnectionAttempts={ATTEMPTS}"),
    *("-o", f"ServerAliveInterval={ALIVE_SECONDS}", "-o", f"ServerAliveCountMax={ALIVE_COUNT}"),
)


class SshReach:
    """See ``reach.Reach``."""

    name = SSH
    answer_seconds = 10.0
    patience = 30.0  # ssh itself sees a link that is cut, and says it better
    shielded = False

    def __init__(self, ssh: str, agent: Sequence[str]) -> None:
        """Use the user's command for ssh; ``agent`` is what is to run on each host."""
        try:
            self._ssh = shlex.split(ssh)
        except ValueError as error:
            raise UsageError(f"--ssh {ssh}: {error}") from None
        if not self._ssh:
            raise UsageError("--ssh is empty: give the command that reaches a host, such as ssh")
        self._agent = shlex.join(["exec", *agent])
        self.script = f'#!/bin/sh\nexec {shlex.join([*self._ssh, *OPTIONS])} "$@"\n'

    def agent(self, host: str) -> list[str]:
        """See ``reach.Reach``."""
        return [*self._ssh, "-T", *OPTIONS, host, self._agent]

    def remedy(self, host: str, said: str) -> str:
        """See ``reach.Reach``."""
        return ssh_remedy(host, said)

    def ranks(
        self, mpi: Mpi, hosts: Sequence[str], script: str, here: str, variables: Iterable[str]
    ) -> tuple[str, ...]:
        """See ``reach.Reach``."""
        options = mpi.flavour.across(self.name, script, here, hosts, variables)
        return (mpi.mpiexec, *options, "-n", str(len(hosts)))

    def threads(self, cores: int, ranks: int) -> int:
        """See ``reach.Reach``."""
        return share(cores, ranks)
