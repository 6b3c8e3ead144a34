"""The launcher's eyes on a running job: what its processes tell, their stacks, and who asks about them.

Owns its pipes and the socket, behind one descriptor that the supervisor waits on; never waits itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvstore_mpi import private_files
from kvstore_mpi.metrics.stacks import stack_pipe
from kvstore_mpi.metrics.status import decode
from kvstore_mpi.metrics.telling import STATUS_PIPE
from mpilaunch.plan import RECORDS
from mpilaunch.printer import LineBuffer
from mpilaunch.seeing import control
from mpilaunch.seeing.inspection import report
from mpilaunch.seeing.job_view import JobView, due

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mpilaunch.hosts.interface import Host
    from mpilaunch.jobspec import JobSpec
    from mpilaunch.printer import Printer
    from mpilaunch.seeing.job_view import Row

READ_BYTES = 64 * 1024
ANSWER_SECONDS = 2.0
"""How long processes may take to write their stacks; a healthy one takes milliseconds."""

QUIET_SECONDS = 0.2
"""When all have written and nothing has come for so long, they are done."""

LATE_SECONDS = 2.0
"""Who looks so much later than was due has stood still, and does not know who was silent meanwhile."""


class _Watched(NamedTuple):
    """A process: its pipe for stacks, what has it write them, and its host, also as people call it."""

    pipe: int
    ask: Callable[[], None]
    host: Host
    place: str


class _Inspection:
    """One that is under way."""

    def __init__(self, why: str, rows: list[Row], until: float) -> None:
        self.why = why
        # As they are when stacks are asked for: the signal itself may wake up who is stuck in a call.
        self.rows = rows
        self.until = self.latest = until
        self.dumps: dict[str, bytearray] = {}
        self.askers: list[socket.socket] = []


def on_one_line(command: Sequence[str]) -> str:
    """Return a command as people read it; line breaks and what else terminals act on are written out."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(command))


class Observer:
    """What can be seen of one job.

    Attributes:
        view: The processes.
    """

    def __init__(self, spec: JobSpec, job: str, directory: str, printer: Printer) -> None:
        """Look at nothing yet.

        Args:
            spec: The job.
            job: Its name.
            directory: The private directory on this host.
            printer: Knows the last lines of all, and says what is found.
        """
        now = time.monotonic()
        # Without servers the first rank of each part of the model is what the scheduler is elsewhere: the
        # others watch it.
        first = [f"client0.{part}" for part in range(spec.node.model_parallel)]
        watched = None if spec.node.num_servers else first
        self.view = JobView(lease=spec.node.peer_timeout, watched=watched)
        self._name = {"job": job, "command": on_one_line(spec.command), "pid": os.getpid()}
        self._printer = printer
        self._selector = selectors.DefaultSelector()
        self._watched: dict[str, _Watched] = {}
        self._threads: dict[str, dict[str, str]] = {}
        self._inspection: _Inspection | None = None
        self._count = 0
        self._began = now
        self._is_due = False  # and has been looked at: once for each hang
        self._job_due = None if spec.timeout is None else now + due(spec.timeout)
        self._listener: socket.socket | None = None
        with contextlib.suppress(OSError):  # a job that cannot be asked about runs all the same
            self._listener = control.listen(Path(directory))
            self._selector.register(self._listener, selectors.EVENT_READ, self._on_connection)

    # --- what the supervisor says ---

    def descriptor(self) -> int:
        """Return a descriptor of the caller's that can be read when ``look`` has something to do."""
        return os.dup(self._selector.fileno())

    def listen(self, hosts: Iterable[Host]) -> None:
        """Hear what processes on some hosts tell."""
        for host in hosts:
            pipe = host.listen(f"{RECORDS}/{STATUS_PIPE}", lasting=True)
            self._selector.register(
                pipe, selectors.EVENT_READ, partial(self._on_status, pipe, LineBuffer())
            )

    def starts(self, name: str, host: Host, place: str, ask: Callable[[], None]) -> None:
        """A process is about to be started.

        Args:
            name: Of this run of it, as in the output.
            host: Where.
            place: What people call the host.
            ask: Has it write its stacks.
        """
        self.view.started(name, place, time.monotonic())
        pipe = host.listen(f"{RECORDS}/{stack_pipe(name)}", lasting=True)
        self._watched[name] = _Watched(pipe, ask, host, place)
        self._selector.register(pipe, selectors.EVENT_READ, partial(self._on_stack, name))

    def ended(self, name: str, *, failed: bool) -> None:
        """A process has ended."""
        self.view.ended(name, failed=failed)
        watched = self._watched.pop(name, None)
        if watched is not None:
            self._close(watched.pipe)

    def look(self) -> None:
        """Take what has come."""
        for key, _ in self._selector.select(0):
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    @property
    def deadline(self) -> float | None:
        """When ``tick`` has something to do, if nothing happens before."""
        if self._inspection is not None:
            return self._inspection.until
        silence = self.view.next_due()
        times = [None if self._is_due else silence, self._job_due]
        return min((each for each in times if each is not None), default=None)

    def tick(self, now: float) -> None:
        """See to what is due."""
        deadline = self.deadline
        if deadline is not None and now > deadline + LATE_SECONDS:
            self.view.forget_silence(now)
        if self._inspection is not None:
            if now >= self._inspection.until:
                self._finish(self._inspection)
            return
        if self._job_due is not None and now >= self._job_due:
            self._job_due = None
            self._inspect(f"the job has run for {now - self._began:.0f} s and ends soon (--timeout)", now)
            return
        why = self.view.why_due(now)
        if why:
            # What says otherwise may have come, and wait here to be read.
            self.look()
            why = self.view.why_due(now)
        if why and not self._is_due:
            self._inspect(why, now)
        self._is_due = bool(why)

    def close(self) -> None:
        """The job is over."""
        if self._inspection is not None:
            self._finish(self._inspection)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):  # it knows its descriptor, and closes that itself
                self._selector.unregister(key.fileobj)
                key.fileobj.close()
            else:
                self._close(key.fd)
        self._selector.close()

    def _close(self, pipe: int) -> None:
        if pipe in self._selector.get_map():
            self._selector.unregister(pipe)
            os.close(pipe)

    # --- what processes say ---

    def _on_status(self, pipe: int, buffer: LineBuffer) -> None:
        data = self._read(pipe)
        now = time.monotonic()
        for line in buffer.feed(data):
            status = decode(line)
            if status is not None:
                self.view.take(status, now)
                name = f"{status.name}~{status.incarnation}" if status.incarnation else status.name
                self._threads[name] = status.threads

    def _on_stack(self, name: str) -> None:
        data = self._read(self._watched[name].pipe)
        inspection = self._inspection
        if inspection is None:
            return
        inspection.dumps.setdefault(name, bytearray()).extend(data)
        if self._watched.keys() <= inspection.dumps.keys():
            inspection.until = min(inspection.latest, time.monotonic() + QUIET_SECONDS)

    def _read(self, pipe: int) -> bytes:
        try:
            data = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:  # its host is lost
            self._close(pipe)
        return data

    # --- who asks ---

    def _on_connection(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._selector.register(
                connection, selectors.EVENT_READ, partial(self._on_question, connection)
            )

    def _on_question(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        try:
            question = json.loads(connection.recv(control.QUESTION_BYTES))["do"]
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        if question == "inspect":
            now = time.monotonic()
            if self._inspection is None:
                self._inspect("somebody asked (mpilaunch inspect)", now)
            assert self._inspection is not None
            self._inspection.askers.append(connection)
        elif question == "top":
            control.answer(connection, self._top())
        else:
            control.answer(connection, dict(self._name))

    def _top(self) -> control.Answer:
        now = time.monotonic()
        rows = msgspec.to_builtins(self.view.rows(now))
        return {**self._name, "seconds": now - self._began, "rows": rows}

    # --- inspections ---

    def _inspect(self, why: str, now: float) -> None:
        rows = [row for row in self.view.rows(now) if not row.is_over]
        self._inspection = _Inspection(why, rows, now + ANSWER_SECONDS)
        for watched in self._watched.values():
            watched.ask()
            watched.host.silence()  # has it say something

    def _unheard(self, inspection: _Inspection) -> dict[str, str]:
        """Return the processes on hosts from which nothing comes, and these."""
        watched = self._watched
        silence = {name: each.host.silence() for name, each in watched.items()}
        return {
            row.name: watched[row.name].place
            for row in inspection.rows
            if max(ANSWER_SECONDS, row.age) <= silence.get(row.name, 0.0)
        }

    def _finish(self, inspection: _Inspection) -> None:
        self._inspection = None
        self._count += 1
        dumps = {name: bytes(dump).decode(errors="replace") for name, dump in inspection.dumps.items()}
        unheard = self._unheard(inspection)
        verdict, text = report(
            inspection.why, inspection.rows, dumps, self._threads, self._printer.tails, unheard=unheard
        )
        path = self._printer.log_folder / f"inspection-{self._count}.txt"
        try:
            with private_files.replacing(path) as file:
                file.write(text.encode())
            where = str(path)
        except OSError as error:
            where = f"not written: {error.strerror}"
        for line in (f"inspection: {inspection.why}", *verdict, f"stacks of all processes: {where}"):
            self._printer.say(line)
        for asker in inspection.askers:
            control.answer(asker, {"path": where, "verdict": verdict, "text": text})
