"""What a rank knows about itself, and how it reports to the launcher.

All of it lies in one private directory (``KVMPI_RECORD_DIR``): a named pipe for each rank's output and one
for its errors (so that lines of different ranks never mix, whatever mpiexec does), one pipe on which ranks
say that they have started or are done, a record of each rank's end, and a file in which the launcher says
why it ends the job. Imports nothing but the standard
library, because every rank pays for it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi import private_files
from kvstore_mpi.host_name import host_name
from kvstore_mpi.launcher_events import open_pipe, tell
from mpilaunch.rank.record import CAUSE, RankName, record_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpilaunch.rank.record import ExitRecord

RECORD_DIR = "KVMPI_RECORD_DIR"

VARIABLES = "variables.json"
"""Name of the file with what ranks of one host are told beyond what mpiexec tells all of a client."""

_RANK_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""How the process managers tell a rank its number and their count, in order of trust."""


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int | None]:
    """Return what the process manager told this process; rank 0 and no size if it told nothing."""
    for rank, size in _RANK_VARIABLES:
        if environment.get(rank, "").isdigit():
            told = environment.get(size, "")
            return int(environment[rank]), int(told) if told.isdigit() else None
    return 0, None


class Reporter:
    """A rank's side of the private directory."""

    def __init__(self, directory: Path, name: RankName) -> None:
        """Speak for ``name``."""
        self.directory = directory
        self.name = name
        self.pid = os.getpid()

    @classmethod
    def from_mapping(cls, environment: Mapping[str, str]) -> Reporter:
        """Read where to report from the environment that mpilaunch and mpiexec made."""
        rank, _ = rank_and_size(environment)
        client = int(environment.get("KVMPI_CLIENT", "0"))
        incarnation = int(environment.get("KVMPI_INCARNATION", "0"))
        return cls(Path(environment[RECORD_DIR]), RankName(client, rank, incarnation))

    def connect_streams(self) -> None:
        """Put this process's output and errors on the pipes that the launcher reads, and end its input."""
        # Hydra gives all ranks but the first a pipe that nobody closes: who reads it would wait for ever.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        for descriptor, suffix in ((1, "out"), (2, "err")):
            pipe = open_pipe(self.directory / f"{self.name.stem}.{suffix}")
            os.dup2(pipe, descriptor)
            os.close(pipe)

    def take_variables(self) -> None:
        """Set what the launcher tells the ranks of this host, where it does."""
        with contextlib.suppress(FileNotFoundError):
            os.environ.update(json.loads((self.directory / VARIABLES).read_bytes()))

    def announce_start(self, guard: int = 0) -> None:
        """Tell the launcher which process this rank is, and which one its guard if it has one."""
        self._say("start", pid=self.pid, guard=guard, host=host_name())

    def announce_death(self, pid: int, code: int) -> None:
        """Tell the launcher, as the rank's guard, that it has ended badly and without a record."""
        self._say("death", pid=pid, code=code)

    @property
    def has_recorded(self) -> bool:
        """The rank has left the record of its end."""
        return (self.directory / record_name(self.name)).exists()

    def announce_meeting(self) -> None:
        """Tell the launcher that this rank has come out of MPI_Init."""
        self._say("met")

    def record_shared_memory(self) -> None:
        """Note the files in /dev/shm that MPI has mapped: MPICH leaves them there when a rank is killed."""
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        paths = {"/dev/shm/" + line.partition("/dev/shm/")[2] for line in maps if "/dev/shm/" in line}  # noqa: S108  read only
        kept = sorted(path for path in paths if not path.endswith(" (deleted)"))
        # Where there is no room for the note, nothing but those files depends on it.
        with contextlib.suppress(OSError):
            (self.directory / f"{self.name.stem}.shm").write_text("\n".join(kept), encoding="utf-8")

    def record_end(self, record: ExitRecord) -> None:
        """Leave the record of the end, whole or not at all, and tell the launcher."""
        more = {}
        try:
            with private_files.replacing(self.directory / record_name(self.name)) as file:
                file.write(record.write())
        except OSError:  # a pipe needs no room on the disk
            more = {"record": record.brief().write().decode()}
        self._say("end", **more)

    def cause_of_end(self) -> str | None:
        """Return what has failed, if the launcher ends the job; an empty text if nothing has.

        ``None`` while it does not end the job.
        """
        try:
            return (self.directory / CAUSE).read_text(encoding="utf-8")
        except OSError:
            return None

    def _say(self, event: str, **more: object) -> None:
        tell(self.directory, self.name, event, **more)
