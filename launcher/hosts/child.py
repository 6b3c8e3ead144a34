"""One process that the launcher has started: its streams and its signals."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import IO, TYPE_CHECKING

from mpilaunch.mpi import normalise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Child:
    """A process in a session of its own, so that Ctrl-C reaches it only through us."""

    def __init__(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], folder: str | None = None
    ) -> None:
        """Start it, in a folder other than ours if one is given.

        Raises:
            OSError: It cannot be started.
        """
        self.name = name
        self._process = subprocess.Popen(  # noqa: S603  an argv list from the plan; no shell
            argv,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid

    @property
    def streams(self) -> list[tuple[IO[bytes], bool]]:
        """Output and errors, and which is which (``True`` for errors)."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        return [(self._process.stdout, False), (self._process.stderr, True)]

    def ended(self) -> bool:
        """Return whether it has ended; never waits."""
        return self._process.poll() is not None

    @property
    def code(self) -> int:
        """Its exit code, 128 + n for signal n; valid once it has ended."""
        return normalise(self._process.returncode)

    def signal(self, signum: int) -> None:
        """Send a signal; SIGKILL goes to all of its process group, the others it passes on itself."""
        if self.ended():
            return
        if signum == signal.SIGKILL:
            os.killpg(self.pid, signum)
        else:
            os.kill(self.pid, signum)
