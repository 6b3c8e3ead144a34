"""Questions to the launcher of a running job: a socket in the job's private directory, and who asks there.

The directory is the user's alone, and so are the answers. A question is one line of JSON, and so is an
answer, after which the connection ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.errors import PeerLostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONTROL = "control"
"""Name of the socket."""

PRIVATE_PREFIX = "kvstore_mpi-"
"""How the names of private directories begin, among the temporary files."""

ANSWER_SECONDS = 10.0
QUESTION_BYTES = 4096
_CREDENTIALS = struct.Struct("3i")

Question = dict[str, Any]
Answer = dict[str, Any]


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """Yield a path to a directory that is short enough for a socket's address, whatever TMPDIR is."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def listen(directory: Path) -> socket.socket:
    """Return the launcher's end.

    Raises:
        OSError: It cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(directory) as path:
        listener.bind(f"{path}/{CONTROL}")
    listener.listen()
    listener.setblocking(False)
    return listener


def answer(connection: socket.socket, content: Answer) -> None:
    """Answer and hang up, without waiting for who reads."""
    threading.Thread(target=_answer, args=(connection, content), daemon=True).start()


def _answer(connection: socket.socket, content: Answer) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(ANSWER_SECONDS)
        connection.sendall(json.dumps(content).encode() + b"\n")


class Job(NamedTuple):
    """A job that runs.

    Attributes:
        name: Its name.
        command: What it runs.
        pid: Of its launcher.
        directory: Its private directory.
    """

    name: str
    command: str
    pid: int
    directory: Path

    def __str__(self) -> str:
        """Return it as people read it."""
        return f"{self.name} ({self.command}, mpilaunch {self.pid})"


def ask(directory: Path, question: Question, timeout: float = ANSWER_SECONDS) -> Answer:
    """Ask a launcher.

    Raises:
        OSError: There is none, it is another user's, or it does not answer in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _short(directory) as path:
        connection.settimeout(timeout)
        connection.connect(f"{path}/{CONTROL}")
        _check_user(connection)
        connection.sendall(json.dumps(question).encode() + b"\n")
        with connection.makefile("rb") as lines:
            line = lines.readline()
    if not line:
        raise ConnectionResetError("the launcher has hung up")
    content: Answer = json.loads(line)
    return content


def _check_user(connection: socket.socket) -> None:
    """Refuse an answer of another user's: whoever asks believes it, and shows it on a terminal.

    Raises:
        PermissionError: The kernel says that another user listens.
    """
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    if user != os.geteuid():
        raise PermissionError(f"user {user} listens there, and not user {os.geteuid()}, who asks")


def running_jobs() -> list[Job]:
    """Return this user's jobs of which the launcher runs on this host and answers."""
    jobs = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PRIVATE_PREFIX}*/{CONTROL}")):
        # What another user has put there is not asked.
        with contextlib.suppress(OSError, ValueError):
            if path.parent.lstat().st_uid == os.geteuid():
                said = ask(path.parent, {"do": "name"}, 2.0)
                jobs.append(Job(said["job"], said["command"], said["pid"], path.parent))
    return jobs


def find_job(name: str, jobs: Callable[[], list[Job]] = running_jobs) -> Job:
    """Return the job that is meant: by the beginning of its name, or the only one.

    Raises:
        UsageError: None or several are; the error lists those that run.
    """
    known = jobs()
    meant = [job for job in known if job.name.startswith(name) or str(job.pid) == name]
    if len(meant) == 1:
        return meant[0]
    running = "; ".join(map(str, known)) or "none"
    what = f"no job {name!r} runs" if name else "say which job is meant" if known else "no job runs"
    raise UsageError(f"{what} on this host; running jobs of yours: {running}")


def ask_job(job: Job, question: Question, timeout: float = ANSWER_SECONDS) -> Answer:
    """Ask the launcher of a job.

    Raises:
        PeerLostError: It has ended, or does not answer.
    """
    try:
        return ask(job.directory, question, timeout)
    except (OSError, ValueError) as error:
        raise PeerLostError(f"the launcher of job {job.name} does not answer any more: {error}") from error
