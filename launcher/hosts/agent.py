"""``python -m mpilaunch.hosts.agent``: does on its host what the launcher, which is on another, asks for.

It speaks over its standard input and output, which whoever has started it carries. When the launcher is
gone, it ends everything of the job on this host; when the launcher has not said a word for long, ranks may
save before that. It is one side of ``remote.RemoteHost`` and does all by ``local.LocalHost``.
"""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import signal
import sys
import tarfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi import __version__
from kvstore_mpi.host_name import host_name
from mpilaunch.cores import cores_here
from mpilaunch.hosts import messages as m
from mpilaunch.hosts.local import LocalHost
from mpilaunch.hosts.networks import knock, networks_here
from mpilaunch.hosts.outgoing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

READ_BYTES = 64 * 1024
SETTLE_READS = 64
"""More than a pipe can hold; a helper left behind that goes on talking is not waited for."""

RECORDS = "records/*.exit.json"
"""What the launcher reads of files: it is sent with what tells of it, or before."""


LEFT_OUT = b"\n(from here on output is missing: the launcher did not read it)\n"


class _Sink(io.RawIOBase):
    """What tarfile writes a stream to."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    def write(self, data: Buffer, /) -> int:
        taken = bytes(data)
        self._take(taken)
        return len(taken)


class Agent:
    """One host of one job."""

    def __init__(self, source: int, sink: int) -> None:
        """Speak over two descriptors; start nothing."""
        self._source = source
        self._sink = sink
        self._outgoing = Outgoing(sink)
        self._stream = m.Stream()
        self._selector = selectors.DefaultSelector()
        self._host: LocalHost | None = None
        self._folder = "/"
        self._pipes: dict[int, int] = {}  # descriptors that are read, by number
        self._reads_pipes = True
        self._left_out: set[int] = set()  # pipes of which something was thrown away
        self._talks: dict[int, int] = {}
        self._records: set[str] = set()
        self._silence, self._grace = 60.0, 0.0  # until the launcher says
        self._ranks: set[int] = set()  # those that the launcher has us watch, which are all
        self._running: set[str] = set()
        self._ends_at: float | None = None  # once ranks were told to end because of the launcher's silence
        self._heard = time.monotonic()
        self._over = False

    def run(self) -> None:
        """Serve the launcher until it is gone; then end what is left of the job here."""
        self._outgoing.put(m.GREETING)
        networks = [(each.device, each.address, each.prefix) for each in networks_here()]
        self._say(m.Here(__version__, host_name(), cores_here(), networks))
        wakeup = _wake_up_at_signals()
        self._watch(self._source, self._on_launcher)
        self._watch(wakeup, partial(self._on_signal, wakeup))
        try:
            while not self._over:
                self._step()
        finally:
            if self._host is not None:
                self._host.__exit__()

    def _step(self) -> None:
        self._choose_what_to_watch()
        limit = self._heard + self._silence if self._ends_at is None else self._ends_at
        left = limit - time.monotonic()
        for key, _ in self._selector.select(max(0.0, left)):
            if self._selector.get_map().get(key.fd) is key:  # an earlier handler may have closed it
                key.data()
        now = time.monotonic()
        if now - self._heard <= self._silence:
            self._ends_at = None
            self._left_out.clear()
        else:
            self._end_in_silence(now)

    def _choose_what_to_watch(self) -> None:
        # Ranks that are to save may say so, and would wait for ever: in silence all is read.
        if self._reads_pipes is (self._outgoing.is_full and self._ends_at is None):
            self._reads_pipes = not self._reads_pipes
            for number, descriptor in self._pipes.items():
                if self._reads_pipes:
                    self._watch(descriptor, partial(self._on_pipe, number))
                else:
                    self._selector.unregister(descriptor)
        writes = self._sink in self._selector.get_map()
        if self._outgoing.waiting and not writes:
            self._selector.register(self._sink, selectors.EVENT_WRITE, self._write)
        elif writes and not self._outgoing.waiting:
            self._selector.unregister(self._sink)

    def _end_in_silence(self, now: float) -> None:
        """Let ranks save, for the launcher may be stopped or cut off, and all that was computed be lost."""
        if self._ends_at is None:
            self._ends_at = now + self._grace
            self._tell_ranks_to_end()
        if now >= self._ends_at or not (self._ranks or self._running):
            self._over = True

    def _tell_ranks_to_end(self) -> None:
        if self._host is not None:
            for pid in self._ranks:
                self._host.signal_rank(pid, signal.SIGUSR1)

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def _say(self, message: m.Message) -> None:
        try:
            self._outgoing.put(m.encode(message))
        except OSError:  # the launcher is gone
            self._over = True

    def _write(self) -> None:
        try:
            self._outgoing.write()
        except OSError:
            self._over = True

    # --- what the launcher says ----------------------------------------------------------------------

    def _on_launcher(self) -> None:
        data = os.read(self._source, READ_BYTES)
        self._heard = time.monotonic()
        if not data:
            self._over = True
        for message in self._stream.feed(data):
            self._handle(message)

    def _handle(self, message: m.Any) -> None:
        if isinstance(message, m.Open):
            self._open(message)
            return
        if isinstance(message, m.Knock):
            self._say(m.Knocked(knock(message.addresses)))
            return
        if isinstance(message, m.Alive):
            self._say(message)
            return
        if self._host is None:
            return
        with contextlib.suppress(OSError):  # what cannot be written is missed by whoever waits for it
            if isinstance(message, (m.Put, m.Listen, m.Talk, m.Data, m.Pack)):
                self._do_with_files(self._host, message)
            else:
                self._do_with_processes(self._host, message)

    def _do_with_files(self, host: LocalHost, message: m.Put | m.Listen | m.Talk | m.Data | m.Pack) -> None:
        if isinstance(message, m.Put):
            host.put(message.name, message.content)
        elif isinstance(message, m.Pack):
            self._pack(message.number, Path(host.directory, message.folder))
        elif isinstance(message, m.Listen):
            self._listen(message.number, host.listen(message.name, lasting=message.lasting))
        elif isinstance(message, m.Talk):
            self._talks[message.number] = host.talk(message.name)
        else:
            os.write(self._talks[message.number], message.content)

    def _do_with_processes(self, host: LocalHost, message: m.Any) -> None:
        if isinstance(message, m.Spawn):
            self._spawn(host, message)
        elif isinstance(message, m.Signal):
            host.signal(message.name, message.signum)
        elif isinstance(message, m.SignalRank):
            host.signal_rank(message.pid, message.signum)
        elif isinstance(message, m.Watch):
            self._watch_process(host, message)
        elif isinstance(message, m.Settle):
            self._settle(message.number)

    def _open(self, message: m.Open) -> None:
        self._silence, self._grace, self._folder = message.silence, message.grace, message.folder
        problem = _problem_with(message)
        if not problem:
            try:
                self._host = LocalHost(Path(message.directory))
            except FileExistsError:
                problem = (
                    f"{message.directory} is there already: hosts must not share their temporary folders; "
                    "set TMPDIR to one that each has for itself"
                )
            except OSError as error:
                problem = f"{message.directory} cannot be made: {error.strerror}; set TMPDIR"
        self._say(m.Opened(problem))

    def _listen(self, number: int, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._pipes[number] = descriptor
        if self._reads_pipes:
            self._watch(descriptor, partial(self._on_pipe, number))

    def _spawn(self, host: LocalHost, message: m.Spawn) -> None:
        try:
            streams = host.spawn(message.name, message.argv, message.environment, folder=self._folder)
        except OSError as error:
            self._say(m.Data(message.err, f"it cannot be started: {error}\n".encode()))
            for number in (message.out, message.err):
                self._say(m.End(number))
            self._say(m.Gone(message.name, 71, 0))
            return
        self._running.add(message.name)
        for stream in streams:
            self._listen(message.err if stream.is_error else message.out, stream.descriptor)

    def _watch_process(self, host: LocalHost, message: m.Watch) -> None:
        try:
            descriptor = host.watch(message.pid)
        except ProcessLookupError:
            self._say(m.End(message.number))
            return
        self._ranks.add(message.pid)
        if descriptor is not None:
            self._watch(descriptor, partial(self._on_process_end, message, descriptor))

    def _pack(self, number: int, folder: Path) -> None:
        def take(data: bytes) -> None:
            self._say(m.Data(number, data))
            # As fast as it is read: a folder may be larger than memory.
            self._outgoing.make_room(self._silence)

        sink = _Sink(take)
        try:
            with tarfile.open(fileobj=sink, mode="w|", bufsize=READ_BYTES) as archive:
                archive.add(folder, arcname="")
        finally:
            self._say(m.End(number))

    def _settle(self, number: int) -> None:
        for each in list(self._pipes):
            for _ in range(SETTLE_READS):
                if not self._read(each):
                    break
        self._say(m.End(number))

    # --- what happens here ---------------------------------------------------------------------------

    def _on_pipe(self, number: int) -> None:
        self._read(number)

    def _read(self, number: int) -> bool:
        """Send what there is of a pipe; return whether there may be more."""
        descriptor = self._pipes.get(number)
        if descriptor is None:
            return False
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        self._send_records()
        if data:
            self._pass_on(number, data)
            return True
        self._close(descriptor)
        del self._pipes[number]
        self._say(m.End(number))
        return False

    def _pass_on(self, number: int, data: bytes) -> None:
        if self._ends_at is None or not self._outgoing.is_full:
            self._say(m.Data(number, data))
        elif number not in self._left_out:  # a launcher that was stopped may come back
            self._left_out.add(number)
            self._say(m.Data(number, LEFT_OUT))

    def _close(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
        os.close(descriptor)

    def _on_process_end(self, watch: m.Watch, descriptor: int) -> None:
        self._ranks.discard(watch.pid)
        self._close(descriptor)
        self._send_records()
        self._say(m.End(watch.number))

    def _on_signal(self, wakeup: int) -> None:
        numbers = os.read(wakeup, READ_BYTES)
        if signal.SIGTERM in numbers:
            self._say(m.Asked(signal.SIGTERM))
        if self._host is None:
            return
        for ended in self._host.reap():
            self._running.discard(ended.name)
            for number in list(self._pipes):
                self._read(number)
            self._say(m.Gone(ended.name, ended.code, ended.pid))

    def _send_records(self) -> None:
        """Send the records that ranks have left since; whoever tells of one has written it before."""
        assert self._host is not None
        directory = Path(self._host.directory)
        for path in directory.glob(RECORDS):
            if path.name not in self._records:
                self._records.add(path.name)
                self._say(m.File(str(path.relative_to(directory)), path.read_bytes()))


def _problem_with(message: m.Open) -> str:
    """Return what keeps the job from running here, or nothing."""
    if not Path(message.folder).is_dir():
        return f"there is no folder {message.folder} here; the job's folder must be the same on all hosts"
    parent = Path(message.directory).parent
    if not parent.is_dir():
        return f"there is no folder {parent} here for temporary files; set TMPDIR to one of all hosts"
    return ""


def _wake_up_at_signals() -> int:
    """Return a descriptor with the signals that come, SIGCHLD when a process that was started has ended."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    # A connection's end is heard as the end of our input, and then there is much to do. Not ignored: what
    # is ignored here, processes that are started here would ignore as well.
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, lambda _number, _frame: None)
    return reading


if __name__ == "__main__":
    # What else writes to standard output would be taken for a message.
    sink = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    Agent(sys.stdin.fileno(), sink).run()
