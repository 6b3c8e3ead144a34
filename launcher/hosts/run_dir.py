"""The private directory of one job: its secret, its named pipes, and the reaper that removes it.

Only the user can read it. The reaper is a process of its own, so that the directory and the job's
processes go even if the launcher is killed.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.launcher_events import EVENTS
from mpilaunch.hosts import reaper
from mpilaunch.plan import Paths
from mpilaunch.rank.reporter import RankName

if TYPE_CHECKING:
    from typing_extensions import Self


class Pipe(NamedTuple):
    """The reading end of what one rank says on one stream."""

    name: RankName
    is_error: bool
    descriptor: int


class RunDir:
    """A job's private directory; leaving the ``with`` block ends and removes everything of the job."""

    def __init__(self) -> None:
        """Make the directory, name the job and start its reaper."""
        self.path = Path(tempfile.mkdtemp(prefix="kvstore_mpi-"))
        self._reaper = start_reaper(self.path)
        self.job = secrets.token_hex(8)
        self.records = self.path / "records"
        self.records.mkdir(mode=0o700)
        self._write_job_file()

    @property
    def paths(self) -> Paths:
        """What the processes of the job are told of this directory."""
        return Paths(job_file=str(self.path / "job.json"), record_dir=str(self.records))

    def _write_job_file(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(self.paths.job_file, flags, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump({"job": self.job, "secret": secrets.token_hex(32)}, file)

    def make_pipes(self, client: int, client_size: int, incarnation: int) -> list[Pipe]:
        """Make the named pipes of a client's ranks and open their reading ends, which never block."""
        names = [RankName(client, rank, incarnation) for rank in range(client_size)]
        return [
            Pipe(name, suffix == "err", self._make_pipe(f"{name.stem}.{suffix}", os.O_RDONLY))
            for name in names
            for suffix in ("out", "err")
        ]

    def make_events_pipe(self) -> int:
        """Make and open the pipe on which ranks report; opened for writing too, so that it never ends."""
        return self._make_pipe(EVENTS, os.O_RDWR)

    def _make_pipe(self, name: str, mode: int) -> int:
        path = self.records / name
        os.mkfifo(path, 0o600)
        return os.open(path, mode | os.O_NONBLOCK)

    def __enter__(self) -> Self:
        """Return the directory."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the reaper end what is left and remove the directory; do it here if the reaper is gone."""
        self._reaper.communicate()
        if self._reaper.returncode:
            reaper.kill_all(os.fsencode(self.path))
            reaper.remove(self.path)


def start_reaper(directory: Path) -> subprocess.Popen[bytes]:
    """Start the process that cleans up when its standard input, held by us alone, ends."""
    return subprocess.Popen(  # noqa: S603  our own interpreter and our own file
        [sys.executable, "-I", "-S", reaper.__file__, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
        start_new_session=True,
    )
