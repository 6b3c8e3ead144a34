"""The shells of workers and servers without their threads and files, to be run by turns in virtual time.

Who runs when is not known here: see ``simulation.py``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.server.server import Server
from kvstore_mpi.server.snapshot_chain import fold
from kvstore_mpi.server.snapshot_records import Layout, Snapshot
from kvstore_mpi.server.snapshots import Snapshots
from kvstore_mpi.tensor_collectives.choice import Algorithm
from kvstore_mpi.tensor_collectives.group import Group
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker.mpi_thread import MpiThread
from kvstore_mpi.worker.worker import Worker
from support import simulated_rows

if TYPE_CHECKING:
    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.records import NodeId, Topology
    from kvstore_mpi.scheduler.state import SchedulerState
    from kvstore_mpi.server.records import Unit, Update
    from kvstore_mpi.server.snapshot_chain import Copied
    from kvstore_mpi.tensor_collectives.profile import Profile
    from kvstore_mpi.tensor_collectives.runs import BufferRun, Name
    from kvstore_mpi.tracing.events import Step
    from kvstore_mpi.wire.io_loop import IoLoop
    from kvstore_mpi.worker import instructions as wi
    from support.simulated_mpi import SimulatedCommunicator

Program = Generator[float | Callable[[], bool], None, None]
"""A part of a worker's script: yields seconds to sleep, or a condition to wait for."""


class _OneByOne(Group):
    """Carries out every piece by itself: what a simulated rank calls for takes effect after the call."""

    def carry_out(self, name: Name, bucket: Sequence[BufferRun]) -> Iterator[Sequence[BufferRun]]:
        """See ``Group``."""
        for piece in bucket:
            yield from super().carry_out(name, [piece])


class _SimulatedMpiThread(MpiThread):
    """An MPI thread without the thread: what it is given takes effect when the simulated MPI says so."""

    def __init__(self, group: Group, communicator: SimulatedCommunicator) -> None:
        super().__init__(group)
        self._communicator = communicator
        self._then = communicator.then

    def carry_out(self, bucket: Sequence[wi.Collect]) -> None:
        """See ``MpiThread``."""
        [job] = bucket
        if job.key.table is None:
            super().carry_out(bucket)
        else:
            self._then(simulated_rows.call(self._communicator, job))
            self._ended("reduced", bucket, 0)

    def start(
        self, report: Callable[[Sequence[wi.Collect]], None], failed: Callable[[BaseException], None]
    ) -> None:
        """See ``MpiThread``; there is nothing to start."""
        self._report, self._failed = report, failed

    def put(self, job: wi.Collect) -> None:
        """See ``MpiThread``."""
        self.carry_out([job])

    def _ended(self, step: Step, jobs: Sequence[wi.Collect], since: int) -> None:
        self._then(partial(super()._ended, step, jobs, since))


class SimulatedWorker(Worker):
    """A worker without threads, driven by ``Simulation``; its script is a set of programs."""

    def __init__(
        self,
        config: NodeConfig,
        topology: Topology,
        communicator: SimulatedCommunicator,
        loop: IoLoop,
        scheduler: SchedulerState | None,
    ) -> None:
        """Be a worker that has not started."""
        super().__init__(config, topology, communicator, loop, scheduler=scheduler)
        self.programs: list[tuple[Program, Callable[[], bool]]] = []
        self._waits: list[Future[Any]] = []
        self._parted = False
        self._mpi_thread.start(self.io.post_collected, self.io.post_mpi_failure)

    def _make_mpi_thread(self, communicator: Any, _profile: Profile | None) -> MpiThread:
        group = _OneByOne(communicator, algorithm=Algorithm(self._config.collective))
        return _SimulatedMpiThread(group, communicator)

    def begin(self, addresses: list[str], listens_on: list[str]) -> None:
        """Start to meet the others."""
        hello = m.Join(listens_on, "simulated", self.rank, self._config.incarnation)
        self._loop.post(partial(self.io.start_joining, addresses, hello))

    def joined(self) -> bool:
        """Return whether it has met the others, or has failed."""
        return self.io.rendezvous.joined.done()

    @property
    def parting(self) -> bool:
        """Whether its programs are over."""
        return self._closed

    @property
    def has_copies(self) -> bool:
        """Whether it has a copy of each value that a server may lose."""
        return all(key.kept is not None for key in self._state.keys)

    def answered(self) -> bool:
        """Return whether all blocking requests have ended."""
        return all(future.done() for future in self._waits)

    def spawn(self, program: Program) -> None:
        """Run a program beside the others, as another thread of the script would."""
        self.programs.append((program, lambda: True))

    def part(self) -> None:
        """Its programs are over: part from its client; when that is done, say that it leaves, and stop."""
        if not self._closed:
            self._closed = self.io.parting = True
            if self._state.error is None:
                self._loop.post(self.io.close)
        elif not self._parted and (self.io.may_end.is_set() or self._state.error is not None):
            self._parted = True
            if self._state.error is None:
                self._loop.post(partial(self.io.leave, Future()))
            self._loop.stop()

    def _wait(self, future: Future[Any], timeout: float, what: Callable[[], str], whom: NodeId) -> Any:
        """Do not block: a program waits for ``answered`` instead."""
        self._waits.append(future)


class Disk(dict[int, list[Snapshot]]):
    """The newest snapshot of each server: a base and its links.

    Attributes:
        is_full: Nothing can be written.
    """

    is_full = False


class SimulatedSnapshots(Snapshots):
    """Snapshots that are on the disk at once, or not at all; each key is copied in a pass of its own."""

    copy_bytes = 1

    def __init__(self, disk: Disk, every: float, job: str, layout: Layout, now: float) -> None:
        """Save to a disk that outlives the server."""
        super().__init__("", every, job=job, layout=layout, now=now)
        self._disk = disk
        self._index = layout[0]

    def _start_to_write(self, copied: Copied) -> None:
        self._write(copied)

    def _put(self, snapshot: Snapshot) -> None:
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        links = self._disk.get(self._index, []) if snapshot.header.link else []
        self._disk[self._index] = [*links, snapshot]

    def _read(self) -> Snapshot | None:
        links = self._disk.get(self._index)
        return fold(links) if links else None


class SimulatedServer(Server):
    """A server that checks after every pass that no count of a round goes back.

    Attributes:
        watch: Is told of each update before it is carried out.
    """

    def __init__(self, disk: Disk, *arguments: Any) -> None:
        """Be a server that has not started; its snapshots are on the disk."""
        self._disk = disk
        super().__init__(*arguments, job="simulated")
        self._seen: dict[Unit, list[int]] = {}
        self.watch: Callable[[Update], None] = lambda _update: None

    def _update(self, update: Update) -> None:
        self.watch(update)
        super()._update(update)

    def units(self, store: int) -> list[Unit]:
        """Return what is updated together, to look at."""
        return list(self._state.keys.units(store))

    def _make_snapshots(self, job: str, layout: Layout) -> Snapshots:
        return SimulatedSnapshots(self._disk, self._config.snapshot_every, job, layout, self._loop.now())

    @property
    def num_keys(self) -> int:
        """How many keys have their initial value."""
        return len(self._state.keys.all_filled())

    def value(self, unit: Unit, lo: int, hi: int) -> Any:
        """Return a part of the value of a unit's key, as it is stored."""
        table = self._store.tables.get(unit.key.key_id)
        if table is not None:
            return table.layout.rows_in(table.payload(lo, None), lo // 2)[1].values.reshape(-1)
        payload = self._store.payload(unit.key.key_id, lo, hi, stable=False)
        return np.frombuffer(payload, unit.key.spec.dtype)

    def values(self) -> list[Any]:
        """Return the values of what is updated together, as they are stored."""
        return [self.value(unit, unit.slices[0].lo, unit.slices[-1].hi) for unit in self.units(0)]

    def _begin_incarnation(self, peer: NodeId, incarnation: int) -> None:
        super()._begin_incarnation(peer, incarnation)
        if incarnation:
            self._seen.clear()

    def on_pass(self, now: float) -> None:
        """See ``io_loop.Node``."""
        super().on_pass(now)
        if self._snapshots is not None:
            self._snapshots.save_if_due(now, self._state, self._store)
        for unit in self._state.keys.units(0):
            counts = [*unit.applied, *unit.pushed, unit.updates]
            before = self._seen.get(unit, counts)
            if any(new < old for new, old in zip(counts, before)):
                raise AssertionError(f"{self.node}: counts of key {unit.key.key!r}: {before} -> {counts}")
            self._seen[unit] = counts
