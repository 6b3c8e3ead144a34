"""Hosts of a Slurm job, on each of which a step beside all others runs the agent. Pure.

Each client is a step of its own, whose ranks meet by Slurm's PMI. Slurm's default is to give them none, and
then every rank would be 0 of 1; so it is always named, unless the user does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpilaunch.hosts.allocation import SLURM
from mpilaunch.hosts.judgement import step_remedy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mpilaunch.mpi import Mpi

MPI_TYPE = "SLURM_MPI_TYPE"
"""Slurm's own variable for the kind of PMI; who sets it knows the cluster better than we do."""


def _step_on(host: str) -> tuple[str, ...]:
    return (
        *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", f"--nodelist={host}"),
        *("--mpi=none", "--cpu-bind=none", "--export=ALL", "--unbuffered"),
    )


class SlurmReach:
    """See ``reach.Reach``; a signal of Slurm reaches all processes of a job."""

    name = SLURM
    answer_seconds = 30.0
    script = ""
    patience = 20.0
    shielded = True

    def __init__(self, env: Mapping[str, str], agent: Sequence[str]) -> None:
        """Take what Slurm says in the launcher's environment; ``agent`` is to run on each host."""
        self._cores = env.get("SLURM_CPUS_PER_TASK", "1")
        self._is_told_mpi = MPI_TYPE in env
        self._agent = agent

    def agent(self, host: str) -> list[str]:
        """See ``reach.Reach``; the step shares processors and memory with all others of the job."""
        return [*_step_on(host), *self._agent]

    def remedy(self, host: str, said: str) -> str:
        """See ``reach.Reach``."""
        return step_remedy(host, _step_on(host), said)

    def ranks(
        self, mpi: Mpi, hosts: Sequence[str], script: str, here: str, variables: Iterable[str]
    ) -> tuple[str, ...]:
        """See ``reach.Reach``; that a host stands in the list for each of its ranks makes them go there."""
        del script, here, variables  # all go along
        return (
            *("srun", "--exact", "--export=ALL", "--kill-on-bad-exit=1", "--wait=0"),
            *(() if self._is_told_mpi else (f"--mpi={mpi.flavour.pmi}",)),
            *(f"--nodes={len(set(hosts))}", f"--ntasks={len(hosts)}", f"--cpus-per-task={self._cores}"),
            *("--distribution=arbitrary", f"--nodelist={','.join(hosts)}"),
        )

    def threads(self, cores: int, ranks: int) -> int:
        """See ``reach.Reach``; ranks are bound to the processors that each task was given."""
        del cores, ranks
        return int(self._cores)
