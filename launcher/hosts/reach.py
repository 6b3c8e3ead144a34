"""How a back end gets to the hosts of a job: what starts an agent there, and what starts ranks. Pure.

A back end is one file beside this one with a class that has these methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpilaunch.mpi import Mpi

AGENT = "mpilaunch.hosts.agent"


class Reach(Protocol):
    """How one back end gets to hosts.

    Attributes:
        name: What users call it.
        answer_seconds: How long a host may take to answer, login and start of Python and all.
        patience: How long nothing may come from an agent, which speaks several times in that time.
        script: What mpiexec is to run where it would run ``ssh``; empty where it starts no ranks.
        shielded: Whether a signal of the workload manager reaches all processes of the job at once, before
            the launcher has said what is to become of them.
    """

    name: str
    answer_seconds: float
    patience: float
    script: str
    shielded: bool

    def agent(self, host: str) -> list[str]:
        """Return the command that starts the agent on a host, and carries what it says and hears."""
        ...

    def remedy(self, host: str, said: str) -> str:
        """Return what to do about a host on which no agent has started, from what that command has said."""
        ...

    def ranks(
        self, mpi: Mpi, hosts: Sequence[str], script: str, here: str, variables: Iterable[str]
    ) -> tuple[str, ...]:
        """Return the command that starts the ranks of a client, up to theirs.

        Args:
            mpi: What they run on.
            hosts: Of each rank; those of one host stand together.
            script: Where ``script`` lies.
            here: Our own address, at which hosts reach us.
            variables: Names of those that the ranks are to have, all of which mpiexec will have.
        """
        ...

    def threads(self, cores: int, ranks: int) -> int:
        """Return with how many threads each of a host's ranks is to compute."""
        ...


def share(cores: int, ranks: int) -> int:
    """Return the threads of a rank where all of a host's share its cores."""
    return max(1, cores // max(1, ranks))
