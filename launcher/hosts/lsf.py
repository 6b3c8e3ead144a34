"""Hosts of an LSF job, which ``blaunch`` reaches. Pure.

What ``blaunch`` is told to run are plain words, so that it does not matter whether a shell reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpilaunch.hosts.allocation import LSF
from mpilaunch.hosts.judgement import step_remedy
from mpilaunch.hosts.reach import share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpilaunch.mpi import Mpi


class LsfReach:
    """See ``reach.Reach``."""

    name = LSF
    answer_seconds = 30.0
    script = '#!/bin/sh\nexec blaunch "$@"\n'
    patience = 20.0
    shielded = False

    def __init__(self, agent: Sequence[str]) -> None:
        """``agent`` is what is to run on each host."""
        self._agent = agent

    def agent(self, host: str) -> list[str]:
        """See ``reach.Reach``."""
        return ["blaunch", host, *self._agent]

    def remedy(self, host: str, said: str) -> str:
        """See ``reach.Reach``."""
        return step_remedy(host, ["blaunch", host], said)

    def ranks(
        self, mpi: Mpi, hosts: Sequence[str], script: str, here: str, variables: Iterable[str]
    ) -> tuple[str, ...]:
        """See ``reach.Reach``."""
        options = mpi.flavour.across(self.name, script, here, hosts, variables)
        return (mpi.mpiexec, *options, "-n", str(len(hosts)))

    def threads(self, cores: int, ranks: int) -> int:
        """See ``reach.Reach``."""
        return share(cores, ranks)
