"""This host: processes are children, the private directory is a temporary one, and a reaper removes both.

The reaper is a process of its own, so that the directory and the job's processes go even if the launcher is
killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi import private_files
from mpilaunch.hosts import reaper
from mpilaunch.hosts.child import Child
from mpilaunch.hosts.interface import Ended, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self


class LocalHost:
    """See ``interface.Host``; leaving the ``with`` block ends and removes everything of the job."""

    def __init__(self, directory: Path | None = None) -> None:
        """Make the private directory and start its reaper.

        Args:
            directory: Where; by default a new one among the temporary files.

        Raises:
            FileExistsError: It is there already.
            OSError: It cannot be made.
        """
        self._path = directory or Path(tempfile.mkdtemp(prefix="kvstore_mpi-"))
        if directory is not None:
            directory.mkdir(mode=0o700)
        self._began = time.time()
        self._reaper = start_reaper(self._path)
        self._children: dict[str, Child] = {}

    @property
    def directory(self) -> str:
        """See ``interface.Host``."""
        return str(self._path)

    def put(self, name: str, content: bytes) -> str:
        """See ``interface.Host``."""
        with os.fdopen(private_files.create(self._place(name)), "wb") as file:
            file.write(content)
        return str(self._path / name)

    def read(self, name: str) -> bytes | None:
        """See ``interface.Host``."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def listen(self, name: str, *, lasting: bool = False) -> int:
        """See ``interface.Host``; a pipe that lasts is opened for writing, too."""
        path = _make_pipe(self._place(name))
        return os.open(path, (os.O_RDWR if lasting else os.O_RDONLY) | os.O_NONBLOCK)

    def talk(self, name: str) -> int:
        """See ``interface.Host``; opened for reading, too, so that it need not be awaited."""
        path = _make_pipe(self._place(name))
        return os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def _place(self, name: str) -> Path:
        path = self._path / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return path

    def spawn(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], folder: str | None = None
    ) -> list[Stream]:
        """See ``interface.Host``; in a folder other than ours, if one is given."""
        self._children[name] = child = Child(name, argv, environment, folder)
        streams = [Stream(os.dup(stream.fileno()), is_error) for stream, is_error in child.streams]
        for stream, _ in child.streams:
            stream.close()
        return streams

    def signal(self, name: str, signum: int) -> None:
        """See ``interface.Host``."""
        if name in self._children:
            self._children[name].signal(signum)

    def signal_rank(self, pid: int, signum: int) -> None:
        """See ``interface.Host``; where ranks have no groups of their own, one alone is signalled."""
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signum)
            else:
                os.kill(pid, signum)

    def reap(self) -> list[Ended]:
        """See ``interface.Host``."""
        ended = [child for child in self._children.values() if child.ended()]
        for child in ended:
            del self._children[child.name]
        return [Ended(child.name, child.code, child.pid) for child in ended]

    def watch(self, pid: int) -> int | None:
        """See ``interface.Host``."""
        if not hasattr(os, "pidfd_open"):
            return None
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:  # the kernel is too old
            return None

    def asked(self) -> list[int]:
        """See ``interface.Host``: the launcher itself hears them."""
        return []

    def news(self) -> int | None:
        """See ``interface.Host``: its processes are children, whose ends SIGCHLD tells."""
        return None

    def stopped(self) -> float:
        """See ``interface.Host``: its processes do not ask."""
        return 0.0

    def lost(self) -> str:
        """See ``interface.Host``."""
        return ""

    def silence(self) -> float:
        """See ``interface.Host``: there is nobody between us and its processes."""
        return 0.0

    def settle(self) -> int | None:
        """See ``interface.Host``."""
        return None

    def pack(self, folder: str) -> int | None:
        """See ``interface.Host``."""
        del folder
        return None

    def __enter__(self) -> Self:
        """Return the host."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the reaper end what is left and remove the directory; do it here if the reaper is gone."""
        self._reaper.communicate()
        if self._reaper.returncode:
            reaper.kill_all(os.fsencode(self._path))
            reaper.remove(self._path, self._began)


def _make_pipe(path: Path) -> Path:
    """Make a pipe with a name; what fails says which, as elsewhere."""
    try:
        os.mkfifo(path, 0o600)
    except OSError as error:  # Python's has no path
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


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
