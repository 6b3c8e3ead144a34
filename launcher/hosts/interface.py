"""What the launcher needs of a host: to start processes there, signal them, and see what becomes of them.

A back end is one file beside this one. It may reach its host as it likes; what the launcher waits on are
descriptors of its own process, so nothing here ever waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Stream(NamedTuple):
    """What a process says, and whether that is its error output; the reader closes the descriptor."""

    descriptor: int
    is_error: bool


class Ended(NamedTuple):
    """A process that has ended; the code is 128 + n for signal n."""

    name: str
    code: int
    pid: int


class Host(Protocol):
    """A place where processes run, with a private directory of the job, which only the user can read.

    Processes that the launcher starts have names; ranks, which an ``mpiexec`` starts, have process numbers.
    """

    @property
    def directory(self) -> str:
        """The private directory, as processes there see it."""
        ...

    def put(self, name: str, content: bytes) -> str:
        """Make a file in the private directory; return its path there."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a file in the private directory, or ``None`` if there is none."""
        ...

    def listen(self, name: str, *, lasting: bool = False) -> int:
        """Make a pipe in the private directory to which processes write; return its reading end.

        It ends when all have closed it, unless it is ``lasting``.
        """
        ...

    def talk(self, name: str) -> int:
        """Make a pipe in the private directory from which a process reads; return its writing end."""
        ...

    def spawn(self, name: str, argv: Sequence[str], environment: Mapping[str, str]) -> list[Stream]:
        """Start a process; return what it says.

        Raises:
            OSError: It cannot be started.
        """
        ...

    def signal(self, name: str, signum: int) -> None:
        """Send a signal to a process and what it has started; nothing happens if it has ended."""
        ...

    def signal_rank(self, pid: int, signum: int) -> None:
        """Send a signal to a rank and its process group; nothing happens if it has ended."""
        ...

    def reap(self) -> list[Ended]:
        """Return the processes that have ended since the last call, after a SIGCHLD."""
        ...

    def asked(self) -> list[int]:
        """Return the signals by which that host has asked for the end of the job since the last call."""
        ...

    def news(self) -> int | None:
        """Return a descriptor that can be read when ``reap``, ``asked`` or ``lost`` has news.

        ``None`` where SIGCHLD tells. Whoever reads it takes all there is.
        """
        ...

    def stopped(self) -> float:
        """Return for how many seconds at least this process was stopped, if that host took it for dead."""
        ...

    def lost(self) -> str:
        """Return why the host cannot be reached any more; nothing as long as it can."""
        ...

    def silence(self) -> float:
        """Return for how many seconds nothing has come from that host, which is asked for a word now.

        Zero where nothing needs to come.
        """
        ...

    def settle(self) -> int | None:
        """Return a descriptor that can be read once all is here that processes have said so far.

        ``None`` where it is here already. Whoever reads it closes it.
        """
        ...

    def pack(self, folder: str) -> int | None:
        """Return a descriptor from which a folder of the private directory can be read as a tar archive.

        ``None`` where the folder is here. The archive is cut off if the host is lost; whoever reads it
        closes it.
        """
        ...

    def watch(self, pid: int) -> int | None:
        """Return a descriptor that can be read once a rank has ended; ``None`` where nothing tells.

        Raises:
            ProcessLookupError: It has ended.
        """
        ...
