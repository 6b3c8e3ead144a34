"""The event loop of the launcher: starts processes, reads what they say, and does what the policy says.

Waits in one place, on descriptors only: pipes, signals (through a wake-up descriptor), ends of ranks.
What to do about an event is decided in ``policy``.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from kvstore_mpi.host_name import host_name
from kvstore_mpi.launcher_events import EVENTS
from kvstore_mpi.metrics.stacks import STACK_SIGNAL
from mpilaunch.events import (
    Began,
    Event,
    Exited,
    Inform,
    Interrupted,
    Joins,
    Met,
    RankDied,
    RankGone,
    RankOver,
    Ready,
    Send,
    Start,
    Tell,
    Tick,
)
from mpilaunch.mpi import rank_codes
from mpilaunch.outcome.root_cause import NO_RESOURCES
from mpilaunch.places import Places
from mpilaunch.plan import NEWS_PIPE, READY_PIPE, RECORDS, relaunched, shape_of
from mpilaunch.policy import Policy
from mpilaunch.printer import LineBuffer, Lines
from mpilaunch.rank.record import CAUSE, ExitRecord, RankName, named
from mpilaunch.running_ranks import RunningRanks, Watched
from mpilaunch.signals import SIGNALS, as_bytes, is_ignored

if TYPE_CHECKING:
    from mpilaunch.events import Action, Limits
    from mpilaunch.hosts.interface import Ended, Host
    from mpilaunch.outcome.root_cause import Verdict
    from mpilaunch.plan import Plan
    from mpilaunch.printer import Printer
    from mpilaunch.seeing.observer import Observer

READ_BYTES = 64 * 1024
LONGEST_WAIT_S = 3600.0
"""Then it looks again: the system takes no wait of 25 days."""
DRAIN_READS = 4
"""More than a full pipe (64 KiB) takes; a helper left behind that goes on talking is not listened to."""
_PROGRESS: dict[str, Callable[[RankName], Event]] = {"met": Met, "joins": Joins}

Handler = Callable[[], "list[Event]"]


class Supervisor:
    """Runs one job from its start to its end."""

    def __init__(
        self,
        plan: Plan,
        hosts: Mapping[str, Host],
        printer: Printer,
        environment: Mapping[str, str],
        limits: Limits,
        *,
        observer: Observer,
        output_failed: int | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            plan: The job.
            hosts: Where its processes are, by the names that the plan has for them.
            printer: Shows and logs what they say.
            environment: What all processes inherit.
            limits: What the user allows the job.
            observer: Sees what the processes tell; closed at the end.
            output_failed: Can be read when the printer's output has failed, if it does not tell at once.
        """
        self._plan = plan
        self._places = Places(plan, hosts)
        self._printer = printer
        self._environment = dict(environment)
        self._selector = selectors.DefaultSelector()
        self._incarnations: dict[str, int] = {}
        self._streams: dict[str, list[Lines]] = {}
        clients = [each.name for each in plan.clients]
        self._ranks = RunningRanks(clients, plan.client_size, shielded=plan.shielded)
        self._ready_text = b""
        events = f"{RECORDS}/{EVENTS}"
        self._events = {host.listen(events, lasting=True): LineBuffer() for host in self._places.hosts}
        self._news = -1  # the scheduler reads here what has become of processes
        self._observer = observer
        self._observer.listen(self._places.hosts)
        self._output_failed = output_failed
        self._has_told_cause = False
        self._policy = Policy(shape_of(plan, host_name()), limits, time.monotonic())

    # --- the loop ----------------------------------------------------------------------------------

    def run(self) -> Verdict:
        """Run the job; return how it has ended."""
        with as_bytes() as wakeup:
            self._watch(wakeup, partial(self._on_signal, wakeup))
            for pipe in self._events:
                self._watch(pipe, self._on_rank_events)
            for host in self._places.hosts:
                news = host.news()
                if news is not None:
                    self._watch(news, self._reap)
            self._watch(self._observer.descriptor(), self._on_observer)
            if self._output_failed is not None:
                self._watch(self._output_failed, self._on_output_failed)
            self._perform(self._policy.start(time.monotonic()))
            while not self._policy.done:
                self._step()
            self._unwatch(wakeup)
        self._close()
        return self._policy.verdict()

    def _step(self) -> None:
        times = [time for time in (self._policy.deadline, self._observer.deadline) if time is not None]
        left = min(times) - time.monotonic() if times else LONGEST_WAIT_S
        timeout = min(max(0.0, left), LONGEST_WAIT_S)
        # Who was stopped (SIGSTOP, Ctrl-Z) until the time was over has not looked at what is there.
        ready = self._selector.select(timeout) or self._selector.select(0)
        for key, _ in ready:
            if self._selector.get_map().get(key.fd) is key:  # an earlier handler may have closed it
                self._handle(key.data())
        if not ready:
            self._handle([Tick()])
        self._observer.tick(time.monotonic())
        lost = self._printer.lost_reader()
        if lost and not is_ignored(lost):
            self._handle([Interrupted(lost)])

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            self._perform(self._policy.handle(event, time.monotonic()))

    def _perform(self, actions: list[Action]) -> None:
        failed: list[Event] = []
        for action in actions:
            if isinstance(action, Start):
                failed += self._start(action)
            elif isinstance(action, Inform):
                self._inform(action)
            elif isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Tell):
                self._printer.say(action.text)
        self._handle(failed)  # what was to be done besides comes first

    def _watch(self, descriptor: int, handler: Handler) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
            os.close(descriptor)

    # --- processes ---------------------------------------------------------------------------------

    def _start(self, start: Start) -> list[Event]:
        """Start a process; one that cannot be started has ended at once, and the others may save."""
        try:
            self._spawn(start)
        except OSError as error:
            text = f"it cannot be started: {error}"
            self._printer.line(named(start.name, start.incarnation), text.encode(), is_error=True)
            return [Exited(start.name, NO_RESOURCES)]
        return []

    def _spawn(self, start: Start) -> None:
        process = self._places.process(start.name)
        is_client = process in self._plan.clients
        if is_client:
            self._watch_ranks(self._plan.clients.index(process), start.incarnation)
            self._ranks.starts(process.name)
        if process is self._plan.scheduler:
            self._open_pipes(self._places.of(process.name))
        self._incarnations[process.name] = start.incarnation
        environment = {**self._environment, **dict(relaunched(process, start.incarnation).env)}
        # What mpiexec itself says is of use only when it fails; its ranks have pipes of their own.
        name, host = named(process.name, start.incarnation), self._places.of(process.name)
        if not is_client:
            self._observer.starts(
                name, host, process.host, partial(host.signal, process.name, STACK_SIGNAL)
            )
        for said in host.spawn(process.name, process.argv, environment):
            stream = Lines(said.descriptor, name, is_error=said.is_error, quiet=is_client)
            self._watch_stream(process.name, stream)

    def _open_pipes(self, host: Host) -> None:
        """Hear where the scheduler listens, and be able to tell it of restarts."""
        ready = host.listen(READY_PIPE)
        self._watch(ready, partial(self._on_ready, ready))
        if self._plan.max_restarts:
            self._news = host.talk(NEWS_PIPE)

    def _inform(self, action: Inform) -> None:
        """Write a line for the scheduler, which may have ended; without restarts there are none."""
        if self._news >= 0:
            news = {"name": action.name, "incarnation": action.incarnation, "why": action.why}
            with contextlib.suppress(BlockingIOError):  # nobody reads any more
                os.write(self._news, (json.dumps(news) + "\n").encode())

    def _send(self, send: Send) -> None:
        """Send a signal; who is told to end finds in a file what has failed, if anything has."""
        cause = self._policy.cause
        if cause is not None and not self._has_told_cause:
            self._has_told_cause = True
            for host in self._places.hosts:
                with contextlib.suppress(OSError):  # without room for it they save without knowing why
                    host.put(f"{RECORDS}/{CAUSE}", cause.encode())
        self._signal(send.name, send.signum)

    def _signal(self, name: str, signum: int) -> None:
        """Signal a process, and ranks themselves."""
        for rank, leader, number in self._ranks.signalled(name, signum):
            self._places.of_rank(rank).signal_rank(leader, number)
        if signum == signal.SIGTERM and self._plan.shielded and self._places.is_service(name):
            signum = signal.SIGKILL  # they have nothing to do at their end
        if self._places.is_service(name) or self._ranks.signals_mpiexec(name, signum):
            self._places.of(name).signal(name, signum)

    def _watch_ranks(self, client: int, incarnation: int) -> None:
        for rank in range(self._plan.client_size):
            name = RankName(client, rank, incarnation)
            place = self._plan.host_of_rank(client, rank)
            ask = partial(self._ask_for_stacks, name)
            self._observer.starts(str(name), self._places.of_rank(name), place, ask)
            for suffix in ("out", "err"):
                pipe = self._places.of_rank(name).listen(f"{RECORDS}/{name.stem}.{suffix}")
                stream = Lines(pipe, str(name), is_error=suffix == "err", quiet=False)
                self._watch_stream(self._plan.clients[client].name, stream)

    def _ask_for_stacks(self, name: RankName) -> None:
        if name in self._ranks:
            self._places.of_rank(name).signal_rank(self._ranks[name].leader, STACK_SIGNAL)

    def _watch_stream(self, owner: str, stream: Lines) -> None:
        self._streams.setdefault(owner, []).append(stream)
        self._watch(stream.descriptor, partial(self._on_stream, stream))

    def _reap(self) -> list[Event]:
        """Return which processes have ended, after all that they and their ranks have said."""
        events: list[Event] = [Interrupted(each) for host in self._places.hosts for each in host.asked()]
        for ended in [each for host in self._places.hosts for each in host.reap()]:
            # What ranks elsewhere have said may be on its way, when their mpiexec here has ended already.
            settling = [host.settle() for host in self._places.of_ranks(ended.name)]
            waits = {wait for wait in settling if wait is not None}
            for wait in waits:
                self._watch(wait, partial(self._on_settled, wait, waits, ended))
            events += [] if waits else self._ended(ended)
        return events

    def _on_settled(self, wait: int, waits: set[int], ended: Ended) -> list[Event]:
        self._unwatch(wait)
        waits.discard(wait)
        return [] if waits else self._ended(ended)

    def _ended(self, ended: Ended) -> list[Event]:
        for stream in self._streams.pop(ended.name, []):
            self._drain(stream)
        events = self._on_rank_events()
        events += [event for rank in self._ranks.of(ended.name) for event in self._on_rank_gone(rank)]
        name = named(ended.name, self._incarnations[ended.name])
        self._observer.ended(name, failed=ended.code != 0)
        codes = rank_codes(list(self._printer.tails.get(name, ())))
        place, why = self._places.process(ended.name).host, self._places.why_lost(ended.name)
        return [*events, Exited(ended.name, ended.code, ended.pid, codes or (), place, why)]

    # --- what can happen ---------------------------------------------------------------------------

    def _on_stream(self, stream: Lines) -> list[Event]:
        try:
            data = os.read(stream.descriptor, READ_BYTES)
        except BlockingIOError:
            return []
        self._print(stream, stream.buffer.feed(data))
        if not data:
            self._print(stream, stream.buffer.flush())
            self._close_stream(stream)
        return []

    def _drain(self, stream: Lines) -> None:
        """Read all that is there, without waiting for who may still hold the other end."""
        if stream.descriptor < 0:
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(DRAIN_READS):
                self._print(stream, stream.buffer.feed(os.read(stream.descriptor, READ_BYTES)))
        self._print(stream, stream.buffer.flush())
        self._close_stream(stream)

    def _close_stream(self, stream: Lines) -> None:
        self._unwatch(stream.descriptor)
        stream.descriptor = -1  # the number may be somebody else's soon

    def _print(self, stream: Lines, lines: list[bytes]) -> None:
        for line in lines:
            self._printer.line(stream.name, line, is_error=stream.is_error, quiet=stream.quiet)

    def _on_ready(self, descriptor: int) -> list[Event]:
        """Read the scheduler's addresses; a scheduler that ends without a word is seen by its end."""
        data = os.read(descriptor, READ_BYTES)
        self._ready_text += data
        if data:
            return []
        self._unwatch(descriptor)
        if not self._ready_text:
            return []
        addresses = json.loads(self._ready_text)["addresses"]
        self._environment["KVMPI_SCHEDULER"] = ",".join(addresses)
        return [Ready()]

    def _on_rank_events(self) -> list[Event]:
        lines: list[bytes] = []
        for pipe, buffer in self._events.items():
            with contextlib.suppress(OSError):  # nothing is there, or its host is lost
                data = os.read(pipe, READ_BYTES)
                lines += buffer.feed(data)
                if not data:
                    self._unwatch(pipe)
        return [event for line in lines for event in self._on_rank_event(json.loads(line))]

    def _on_rank_event(self, said: dict[str, object]) -> list[Event]:
        name = RankName(int(str(said["client"])), int(str(said["rank"])), int(str(said["incarnation"])))
        if said["event"] == "joins":
            self._observer.view.joins(str(name))
        if said["event"] in _PROGRESS:
            return [_PROGRESS[str(said["event"])](name)]
        if said["event"] == "start":
            return self._watch_rank(name, int(str(said["pid"])), int(str(said["guard"])))
        pid = self._ranks[name].pid if name in self._ranks else 0
        if said["event"] == "lost":  # frozen, say: it would not end by itself
            return [RankDied(name, 128 + signal.SIGKILL, pid, is_silent=True)] if pid else []
        self._ranks.is_over(name)
        if said["event"] == "end":
            return [RankOver(name, self._places.record_of(name, pid) or ExitRecord.sent(said), pid)]
        self._observer.ended(str(name), failed=True)
        return [RankDied(name, int(str(said["code"])), int(str(said["pid"])))]

    def _watch_rank(self, name: RankName, pid: int, guard: int) -> list[Event]:
        """See the end of a rank or its guard at once where the system can; else when its mpiexec ends."""
        self._ranks.add(name, watched := Watched(pid, guard or pid, None))
        try:
            descriptor = self._places.of_rank(name).watch(watched.leader)
        except ProcessLookupError:
            return [Began(name), *self._on_rank_gone(name)]
        if descriptor is not None:
            self._ranks.is_watched(name, descriptor)
            self._watch(descriptor, partial(self._on_rank_gone, name))
        return [Began(name)]

    def _on_rank_gone(self, name: RankName) -> list[Event]:
        pid, _, descriptor, _ = self._ranks.remove(name)
        if descriptor is not None:
            self._unwatch(descriptor)
        record = self._places.record_of(name, pid)
        self._observer.ended(str(name), failed=record is None or record.code != 0)
        return [*self._on_rank_events(), RankOver(name, record, pid), RankGone(name)]  # others may tell why

    def _on_observer(self) -> list[Event]:
        self._observer.look()
        return []

    def _on_output_failed(self) -> list[Event]:
        assert self._output_failed is not None
        os.read(self._output_failed, READ_BYTES)  # the printer is asked after every event
        return []

    def _on_signal(self, wakeup: int) -> list[Event]:
        numbers = os.read(wakeup, READ_BYTES)
        events: list[Event] = [Interrupted(number) for number in numbers if number in SIGNALS]
        return events + (self._reap() if signal.SIGCHLD in numbers else [])

    def _close(self) -> None:
        self._observer.close()
        for streams in self._streams.values():
            for stream in streams:
                self._drain(stream)
        for key in list(self._selector.get_map().values()):
            self._unwatch(key.fd)
        self._selector.close()
        if self._news >= 0:
            os.close(self._news)
