"""A host that is reached by a command such as ``ssh``: an agent there does what a ``Host`` is asked for.

Two threads for each host: one writes what the agent is to do (``orders``), one reads what it says and
passes it on to pipes of this process, so that whoever waits for a host waits for a descriptor. Neither is
waited for.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import select
import signal
import subprocess
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi import __version__
from kvstore_mpi.errors import ConfigurationError
from mpilaunch.hosts import messages as m
from mpilaunch.hosts.interface import Ended, Stream
from mpilaunch.hosts.networks import Attached
from mpilaunch.hosts.orders import Orders

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

READ_BYTES = 256 * 1024
LOST = 69
"""Exit code of a process whose host cannot be reached any more."""

END_SECONDS = 15.0
"""How long an agent may take to end what is left of a job: its reaper waits for 10 s at most."""

_LINES = 5


class Facts(NamedTuple):
    """What a host says of itself.

    Attributes:
        name: What it calls itself.
        cores: Of its processors.
        networks: That it is attached to.
    """

    name: str
    cores: int
    networks: list[Attached]


class RemoteHost:
    """See ``interface.Host``; leaving the ``with`` block ends and removes everything of the job there."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        remedy: Callable[[str], str],
        directory: str,
        silence: float,
        patience: float | None = None,
    ) -> None:
        """Begin to reach a host; ``facts`` waits until that has succeeded.

        Args:
            name: As the user calls it.
            command: Starts the agent there, and carries its standard input, output and errors.
            remedy: Says what to do if it cannot be reached, from what the command has said.
            directory: The private directory.
            silence: Seconds without a word after which the agent takes us for dead.
            patience: Seconds without a word after which we take the agent for dead; for ever if not given.
        """
        self.name = name
        self._remedy = remedy
        self._directory = directory
        self._silence = silence
        self._patience = patience
        self._process = subprocess.Popen(  # noqa: S603  an argv list; the user's own ssh
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._orders = Orders(self._process.stdin, name, silence)
        self._numbers = itertools.count(1)
        # Only the reading thread writes to them and closes them; added before it can hear of their numbers.
        self._pipes: dict[int, int] = {}
        self._records: dict[str, bytes] = {}
        self._running: set[str] = set()
        self._ended: deque[Ended] = deque()
        self._asked: list[int] = []
        self._lock = threading.Lock()
        self._news_out, self._news_in = os.pipe()
        os.set_blocking(self._news_out, False)
        os.set_blocking(self._news_in, False)
        self._why_lost = ""
        self._heard = time.monotonic()
        self._said: deque[str] = deque(maxlen=_LINES)
        self._greeting: queue.SimpleQueue[m.Here | m.Opened | m.Knocked | str] = queue.SimpleQueue()
        self._complaints = threading.Thread(target=self._read_errors, name=f"{name} errors", daemon=True)
        self._complaints.start()  # first: the reading thread waits for it in the end
        threading.Thread(target=self._read, name=f"{name} in", daemon=True).start()

    # --- the beginning -------------------------------------------------------------------------------

    def facts(self, timeout: float) -> Facts:
        """Wait for the host to answer.

        Raises:
            ConfigurationError: It does not, or its agent is of another version.
        """
        said = self._answer(timeout, "did not answer")
        assert isinstance(said, m.Here)
        if said.version != __version__:
            raise ConfigurationError(
                f"host {self.name} has kvstore_mpi {said.version}, this one {__version__}: "
                "install the same on all hosts"
            )
        return Facts(said.host, said.cores, [Attached(*each) for each in said.networks])

    def open(self, folder: str, timeout: float, grace: float = 0.0) -> None:
        """Make the private directory there.

        Args:
            folder: Processes are started in it.
            timeout: Seconds that this may take.
            grace: Seconds that ranks have to save when the agent takes us for dead.

        Raises:
            ConfigurationError: That is not possible.
        """
        self._tell(m.Open(self._directory, folder, self._silence, grace))
        said = self._answer(timeout, "did not make its private folder")
        assert isinstance(said, m.Opened)
        if said.problem:
            raise ConfigurationError(f"host {self.name}: {said.problem}")

    def ask_to_knock(self, addresses: Sequence[str]) -> None:
        """Have the host see whether it reaches others; ``knocked`` waits for what it finds."""
        self._tell(m.Knock(list(addresses)))

    def knocked(self, timeout: float) -> dict[str, str]:
        """Return which of them it does not reach, and why.

        Raises:
            ConfigurationError: It does not say.
        """
        said = self._answer(timeout, "did not try to reach the others")
        assert isinstance(said, m.Knocked)
        return said.problems

    def _answer(self, timeout: float, what: str) -> m.Here | m.Opened | m.Knocked:
        try:
            said = self._greeting.get(timeout=timeout)
        except queue.Empty:
            said = "; ".join([f"{what} within {timeout:g} s", *self._said])
        if isinstance(said, str):
            raise ConfigurationError(f"host {self.name} cannot be used: {said}; {self._remedy(said)}")
        return said

    # --- what the launcher asks for ------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """See ``interface.Host``."""
        return self._directory

    def put(self, name: str, content: bytes) -> str:
        """See ``interface.Host``."""
        self._tell(m.Put(name, content))
        return f"{self._directory}/{name}"

    def read(self, name: str) -> bytes | None:
        """See ``interface.Host``; records of ranks only, which come before what tells of them."""
        with self._lock:
            return self._records.get(name)

    def listen(self, name: str, *, lasting: bool = False) -> int:
        """See ``interface.Host``."""
        number, descriptor = self._pipe()
        self._tell(m.Listen(number, name, lasting))
        return descriptor

    def talk(self, name: str) -> int:
        """See ``interface.Host``; a thread carries what is written there."""
        number = next(self._numbers)
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._tell(m.Talk(number, name))
        threading.Thread(target=self._carry, args=(reading, number), daemon=True).start()
        return writing

    def _carry(self, reading: int, number: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while data := pipe.read(READ_BYTES):
                self._tell(m.Data(number, data))

    def spawn(self, name: str, argv: Sequence[str], environment: Mapping[str, str]) -> list[Stream]:
        """See ``interface.Host``; what cannot be started says so, and has ended."""
        (out, said), (err, complained) = self._pipe(), self._pipe()
        with self._lock:
            self._running.add(name)
        self._tell(m.Spawn(name, list(argv), dict(environment), out, err))
        if self._why_lost:
            self._lose_processes()
        return [Stream(said, is_error=False), Stream(complained, is_error=True)]

    def signal(self, name: str, signum: int) -> None:
        """See ``interface.Host``."""
        self._tell(m.Signal(name, signum))

    def signal_rank(self, pid: int, signum: int) -> None:
        """See ``interface.Host``."""
        self._tell(m.SignalRank(pid, signum))

    def reap(self) -> list[Ended]:
        """See ``interface.Host``."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._news_out, READ_BYTES)
        with self._lock:
            ended = list(self._ended)
            self._ended.clear()
        return ended

    def asked(self) -> list[int]:
        """See ``interface.Host``."""
        with self._lock:
            asked, self._asked = self._asked, []
        return asked

    def watch(self, pid: int) -> int | None:
        """See ``interface.Host``."""
        number, descriptor = self._pipe()
        self._tell(m.Watch(number, pid))
        return descriptor

    def news(self) -> int | None:
        """See ``interface.Host``."""
        return self._news_out

    def stopped(self) -> float:
        """See ``interface.Host``."""
        return self._orders.stopped()

    def lost(self) -> str:
        """See ``interface.Host``."""
        return self._why_lost

    def silence(self) -> float:
        """See ``interface.Host``; an agent answers."""
        self._tell(m.Alive())
        return time.monotonic() - self._heard

    def settle(self) -> int | None:
        """See ``interface.Host``."""
        number, descriptor = self._pipe()
        self._tell(m.Settle(number))
        return descriptor

    def pack(self, folder: str) -> int | None:
        """See ``interface.Host``."""
        number, descriptor = self._pipe()
        self._tell(m.Pack(number, folder))
        return descriptor

    def _pipe(self) -> tuple[int, int]:
        """Make a pipe for what comes under a number; return the number and the end that is read."""
        number = next(self._numbers)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        with self._lock:
            if self._why_lost:
                os.close(writing)  # its end is all there is to read
            else:
                self._pipes[number] = writing
        return number, reading

    def _tell(self, message: m.Message | None) -> None:
        self._orders.put(message)

    # --- the threads ---------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self._process.stdout is not None
        stream, why, source = m.Stream(greeted=False), "", self._process.stdout.fileno()
        try:
            while self._hears(source, stream) and (data := os.read(source, READ_BYTES)):
                self._heard = time.monotonic()
                for message in stream.feed(data):
                    self._take(message)
        except ValueError as error:
            why = f"something else speaks there: {error}"
            self._process.kill()
        self._lose(why or stream.strange)

    def _hears(self, source: int, stream: m.Stream) -> bool:
        """Wait for the agent; of one that answers no more, end what carries its words."""
        poller = select.poll()
        poller.register(source, select.POLLIN)
        # Before the greeting ``facts`` has a limit.
        if poller.poll(self._patience * 1000 if self._patience and stream.greeted else None):
            return True
        self._said.clear()  # what was said before has nothing to do with it
        self._said.append(f"nothing has come from its agent for {self._patience:g} s")
        self._process.kill()
        return False

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line.decode(errors="replace").strip())

    def _take(self, message: m.Any) -> None:
        if isinstance(message, m.Data):
            self._pass_on(message)
        elif isinstance(message, m.End):
            with self._lock:
                pipe = self._pipes.pop(message.number, None)
            if pipe is not None:
                os.close(pipe)
        elif isinstance(message, m.File):
            with self._lock:
                self._records[message.name] = message.content
        elif isinstance(message, m.Gone):
            self._note_end(Ended(message.name, message.code, message.pid))
        elif isinstance(message, m.Asked):
            with self._lock:
                self._asked.append(message.signum)
            self._tell_news()
        elif isinstance(message, (m.Here, m.Opened, m.Knocked)):
            self._greeting.put(message)

    def _pass_on(self, message: m.Data) -> None:
        with self._lock:
            pipe = self._pipes.get(message.number)
        if pipe is None:
            return
        rest = memoryview(message.content)
        try:
            while rest:
                rest = rest[os.write(pipe, rest) :]
        except BrokenPipeError:  # whoever has read it has had enough
            with self._lock:
                del self._pipes[message.number]
            os.close(pipe)

    def _note_end(self, ended: Ended) -> None:
        with self._lock:
            if ended.name in self._running:
                self._running.discard(ended.name)
                self._ended.append(ended)
        self._tell_news()

    def _tell_news(self) -> None:
        with contextlib.suppress(OSError):  # full, or nobody waits any more
            os.write(self._news_in, b"!")

    def _lose(self, why: str) -> None:
        """The agent has gone, with all it has started."""
        self._process.wait()
        self._complaints.join(1.0)  # the last words of ssh
        told = "; ".join(line for line in self._said if line)
        what = f"exit code {self._process.returncode} of the connection"
        with self._lock:
            self._why_lost = told or why or what
            pipes, self._pipes = list(self._pipes.values()), {}
        for pipe in pipes:
            os.close(pipe)
        self._greeting.put(self._why_lost)
        self._lose_processes()

    def _lose_processes(self) -> None:
        with self._lock:
            running = list(self._running)
        for name in running:
            self._note_end(Ended(name, LOST, 0))
        self._tell_news()

    # --- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let the agent end; ``join`` waits for it."""
        self._tell(None)

    def join(self) -> None:
        """Wait until the agent has ended everything; one that does not is left to its own limit."""
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
