"""A worker's decisions: which operation may start, which collective comes next, what is sent where.

Pure: buffers, payloads and callbacks pass through untouched. Operations on one key run one after the
other, in the order of the calls; operations on different keys overlap. The way of a pushpull::

    alone:    submit -> push slices -> values come back -> complete (also rows, of hosts of one rank each)
    member:   submit -> tell the leader -> wait -> reduced -> wait -> shared -> complete
    leader:   submit -> all members ready: announce REDUCE -> slice reduced -> push it -> value: announce
              SHARE -> complete
    pure MPI: submit -> all members ready: announce ALLREDUCE -> reduced -> complete

The leader announces what all ranks of its client have come to, in priority order, and all carry it out in
that order (``client.py``). With ``leaders`` all, members push slices as well; the leader announces those,
too, and is told when the values have arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import KVStoreError, MismatchError
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.records import Key, Mode, NodeId, Role, Topology, parameter_of
from kvstore_mpi.values.dense import neighbours
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.balance import Balance
from kvstore_mpi.worker.client import LeaderSchedule, MemberSchedule
from kvstore_mpi.worker.collectives import REDUCED, SHARED_LATER, Collective, Kind
from kvstore_mpi.worker.instructions import Collect, Complete, Failed, Instructions
from kvstore_mpi.worker.key_creation import declare
from kvstore_mpi.worker.keys import WorkerKeys
from kvstore_mpi.worker.late_operations import LateOperations
from kvstore_mpi.worker.operations import without_partner
from kvstore_mpi.worker.pending_requests import PendingRequests
from kvstore_mpi.worker.records import KeyState, Operation, wants_value
from kvstore_mpi.worker.servers import Mark, Place, Servers, answered
from kvstore_mpi.worker.shutdown import Shutdown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.config import NodeConfig


class WorkerState:
    """One worker of a job.

    Attributes:
        hosts: Its client's ranks on each host.
        keys: Its stores and keys.
        servers: The servers as it sees them.
        requests: The blocking requests that are not answered.
        balance: Whether it pushes as often as workers that wait at a barrier.
        ready: Told what a member of this rank's client has come to; ``flush`` announces what all have.
        late: Says which members have not come to a key's operation, to which the leader has.
        shutdown: How far its client has come to the end.
        under_way: The operations that have begun and not ended, one for each key.
        me: Names it in errors.
        error: Why all communication has ended, if it has.
    """

    def __init__(
        self,
        config: NodeConfig,
        topology: Topology,
        rank: int,
        hosts: Sequence[Sequence[int]],
        *,
        coordinator: NodeId,
        place: Place,
        mark: Mark | None = None,
    ) -> None:
        """Start before the others are known.

        Args:
            config: Of its process; slices, windows, schedule, leaders and deadlines are asked for here.
            topology: The shape of the job.
            rank: Global rank of this worker.
            hosts: The ranks of its client on each host.
            coordinator: Who agrees on keys and barriers: the scheduler, or rank 0 in pure MPI.
            place: Where a buffer lies, if servers of this host can map it.
            mark: Told that runs of slices are queued for a server, if the job has a trace.
        """
        self._rank, self.hosts = rank, hosts
        self._coordinator = coordinator
        self._leader = topology.leader_of(topology.client_of(rank))
        self.me = f"{topology.describe_worker(rank)} (rank {rank})"
        self._leads = rank == self._leader.index
        self._mpi_rank = rank - self._leader.index
        all_push = config.all_push(topology.client_size)
        num_pushers = topology.client_size if all_push else 1
        members = [NodeId(Role.WORKER, r) for r in topology.members_of(topology.client_of(rank))[1:]]
        self.keys = WorkerKeys(config, topology, hosts, mpi_rank=self._mpi_rank, num_pushers=num_pushers)
        self.servers = Servers(
            config, topology, place, num_pushers=num_pushers, mpi_rank=self._mpi_rank, mark=mark
        )
        self._to_announce = LeaderSchedule(
            members, hosts, by_priority=Schedule(config.schedule).by_priority, all_push=all_push
        )
        self._announced = MemberSchedule(self.me, self._leader, hosts, all_push=all_push)
        self.ready, self.late = self._to_announce.ready, self._to_announce.late
        self._watch = LateOperations(config, self._to_announce, self.keys.by_id, self.me, coordinator)
        self.shutdown = Shutdown(self._leader, members, leads=self._leads, all_push=all_push)
        self.balance = Balance(self.me)
        self.requests = PendingRequests()
        self.under_way: dict[KeyState, Operation] = {}
        self.error: KVStoreError | None = None

    # --- the user's calls ---

    def submit(self, store: int, key: Key, operation: Operation, now: float) -> Instructions:
        """The user calls an operation; it starts when those before it on the key have ended."""
        if self.error is not None:
            return [Complete(operation.done, self.error)]
        state = self.keys.by_name[store, key]
        # They share the buffer: a second gradient would overwrite one that is still being sent.
        state.queue.append(operation)
        return self._start(state, now) if len(state.queue) == 1 else []

    def _start(self, key: KeyState, now: float) -> Instructions:
        operation = key.queue[0]
        # When it begins and not when it was called: those before it on the key have deadlines of their own.
        operation.since = now
        self.under_way[key] = operation
        if key.answered is not None:
            key.answered.clear()
        if operation.kind is Kind.INIT:
            # Before anybody cuts the key: whose keys differ is told so, and not by sums that do not fit.
            store = key.spec.store
            message = declare(key, whole=self.keys.is_whole(store), quorum=self.keys.has_quorum(store))
            return [Send(self._coordinator, message)]
        is_push = operation.kind in {Kind.PUSH, Kind.PUSHPULL}
        together = operation.lookup is not None or self._is_together(key)
        if key.number(operation, together=together):
            # Before it leaves: its round, or what the client does together, would wait for workers that do
            # no more of it.
            self.balance.pushes[0 if is_push and key.waits_for_all else 1] += 1
            if self.balance.others and (error := self.balance.error()) is not None:
                return self.fail(error)
        if not is_push:
            return self._start_pull(key, operation, now)
        operation.remaining = len(key.slices)
        # Decided once for the whole push: see ``Servers.push``.
        if self.servers.down and key.on_servers:
            operation.missed = self.servers.down & key.servers
        out: Instructions = [*key.tell_of_first_push(self._coordinator)]
        out += key.fill(operation) if operation.source is not None else []
        if not key.alone:
            return out + self._meet(key, operation)
        if not key.on_servers:
            return out + self._end(key, now)
        out += self._push(key, operation, range(len(key.slices)), now)
        return [*out, *self.unequal()] if self.shutdown.began else out

    def _end(self, key: KeyState, now: float) -> Instructions:
        """The key's operation has ended: tell the caller and start the next one."""
        # Out of all lists first: the next operation of the key may begin below, and fail at once.
        del self.under_way[key]
        operation = key.queue.popleft()
        out = key.ended(operation)
        # By a loop: many pulls would otherwise each begin within the one before, and fill the stack.
        while key.queue and key.queue[0].kind is Kind.PULL and not key.on_servers:
            out.append(Complete(key.queue.popleft().done))  # without servers the value is there
        return [*out, *self._start(key, now)] if key.queue else out

    # --- init ---

    def placed(self, message: m.Placed | m.PushesRows, now: float) -> Instructions:
        """A key has its place: rank 0 gives servers its value, others ask; or others made it a table."""
        if isinstance(message, m.PushesRows):
            self.keys.tables_elsewhere.add((message.store, message.key))
            return []
        key, shards = self.keys.place(message)
        operation = key.queue[0]
        operation.remaining = len(key.slices)
        if key.on_servers:
            self.servers.expect(key, shards)
            share = self.servers.share(key)
            # One value counts, or clients would begin with different ones. The others ask for it at once;
            # they are answered when it is there, however late rank 0 is.
            if self._rank == 0:
                operation.spreads = self._is_together(key)
                operation.awaited.update(range(len(key.slices)))
                created = [*self.servers.create(key, shards), *self.servers.tell_others(key, shards)]
                return [*self.servers.present([*created, *share])]
            return [*self.servers.present(share), *self._start_pull(key, operation, now)]
        return self._end(key, now) if key.alone else self._meet(key, operation)

    # --- collectives inside the client ---

    def _meet(self, key: KeyState, operation: Operation) -> Instructions:
        """An operation of this rank is ready for its first collective; which goes on when all ranks are."""
        # Nothing begins here: were each rank to begin what its own program has come to, two could be inside
        # different MPI calls, and each wait there for the other for ever.
        if self._leads:
            what = Collective.REDUCE_GIVE if operation.given else key.collectives[operation.kind]
            self._to_announce.begin(key, operation, what)
        else:
            self._announced.is_ready(key)
        return [*self.unequal()] if self.shutdown.began else []

    def announced(self, message: m.Announce) -> Instructions:
        """The leader announces collectives, for which all ranks are ready."""
        # Begun in the order of the announcement, and all of it in this pass: the MPI threads carry out
        # together what was announced so, and wait for the rest of a bucket of which they have a part.
        out: Instructions = []
        try:
            for entry in message.entries:
                out.append(self._announced.begin(entry, self.keys.by_id))
        except MismatchError as error:
            return [*out, *self.fail(error)]
        return out

    def collected(self, done: Collect, now: float) -> Instructions:
        """A collective has been carried out on slices of a key."""
        # After ``fail`` the buffers are the callers' again: nothing may be pushed from them.
        if self.error is not None:
            return []
        key, operation = done.key, done.key.queue[0]
        (self._to_announce if self._leads else self._announced).ended(done)
        ended = done.last - done.first
        out: Instructions = []
        if done.operation is Collective.UNITE:
            return [*self.servers.pull(key, operation), *self._rows_have_come(key, operation)]
        # Slices that this rank pushes now end when a server answers; others here, or by the SHARE to come.
        operation.skipped |= done.operation is Collective.SKIP
        operation.given |= done.operation is Collective.REDUCE_GIVE
        if done.operation in REDUCED:
            for rank, first, last in key.by_pusher(done.first, done.last):
                if rank == self._mpi_rank:
                    out += self._push(key, operation, range(first, last), now)
                    ended -= last - first
        self._settle(key, ended)
        if done.operation not in SHARED_LATER and ended:
            out += self._finished(key, ended, now)
        return [*out, *self.unequal()] if self.shutdown.began else out

    def _settle(self, key: KeyState, num_slices: int) -> None:
        """A member has nothing to wait for any more with slices that it had begun."""
        if not (self._leads or key.alone):
            self._announced.begun -= num_slices

    def arrived(self, message: m.Arrived) -> Instructions:
        """Values that a member pushed have come to it."""
        for key_id, first, last in message.entries:
            # The operation that has pushed: it cannot have ended on any rank before this.
            key = self.keys.by_id[key_id]
            operation = key.queue[0]
            if not operation.lookup:
                self._to_announce.put(key, operation, Collective.SHARE, range(first, last))
            elif operation.lookup.one_has_come(key.askers.number):
                self._to_announce.put(key, operation, Collective.GIVE, range(first, last))
        return []

    def _rows_have_come(self, key: KeyState, operation: Operation) -> Instructions:
        """Go on with a lookup, once this rank has all rows for which it has asked for its host."""
        if operation.awaited:
            return []
        self._settle(key, len(key.slices))
        if self._mpi_rank not in key.askers.of_pieces:
            return []
        message = m.Arrived([(key.key_id, 0, len(key.slices))])
        return self.arrived(message) if self._leads else [Send(self._leader, message)]

    # --- push, pull ---

    def _push(self, key: KeyState, operation: Operation, positions: range, now: float) -> Instructions:
        pulls, missed = self.servers.push(key, operation, positions)
        return [*pulls, *self.miss(key, operation, missed, now)] if missed else [*pulls]

    def _start_pull(self, key: KeyState, operation: Operation, now: float) -> Instructions:
        if not key.on_servers:
            return self._end(key, now)
        operation.remaining = len(key.slices)
        if operation.lookup:
            return self._meet(key, operation)
        if self._is_together(key):
            if not self._leads:
                return self._meet(key, operation)
            operation.spreads = True
        pulls = self.servers.pull(key, operation)
        operation.remaining = len(operation.awaited)  # of a table perhaps nothing
        return [*pulls] if operation.remaining else self._end(key, now)

    def flush(self, now: float, in_flight: Callable[[NodeId], int]) -> Instructions:
        """End of a pass of the I/O loop: announce and send, by priority, what may leave now.

        ``in_flight`` tells the payload bytes that are under way to a server.
        """
        if self.error is not None:
            return []
        # Members push what is announced: they would overtake hyper-parameters that this rank has sent.
        announced = [] if self.servers.unconfirmed else self._to_announce.next()
        return [*announced, *self._announced.messages(), *self.servers.messages(now, in_flight)]

    def values(self, message: m.Values, payloads: list[Any], now: float) -> Instructions:
        """A server answers with values of slices."""
        out: Instructions = []
        arrived: list[tuple[int, int, int]] = []
        for key, lo, hi, payload in answered(
            self.keys.by_id, message.entries, payloads, answers_push=message.base
        ):
            operation = key.queue[0]
            out += key.take(operation, message, lo, hi, payload)
            indices = key.indices(lo, hi)
            # First, for what follows may end it; a server that dies is asked again for what is awaited.
            operation.awaited.difference_update(indices)
            if operation.lookup:
                out += self._rows_have_come(key, operation)
            elif not wants_value(operation) or key.alone:
                out += self._finished(key, len(indices), now)
            elif self._leads:
                self._to_announce.put(key, operation, Collective.SHARE, indices)
            else:
                self._settle(key, len(indices))
                arrived.append((key.key_id, indices.start, indices.stop))
        # In one message: with one for each run the leader would be woken each time.
        return [*out, Send(self._leader, m.Arrived(arrived))] if arrived else out

    def applied(self, message: m.Applied, now: float) -> Instructions:
        """A server has what it was pushed or given, and sends no value."""
        out: Instructions = []
        for key, lo, hi, _ in answered(self.keys.by_id, message.entries, [], answers_push=False):
            indices = key.indices(lo, hi)
            key.queue[0].awaited.difference_update(indices)
            self._settle(key, len(indices))
            out += self._finished(key, len(indices), now)
        return out

    def _finished(self, key: KeyState, num_slices: int, now: float) -> Instructions:
        """Slices of the key's operation are finished; the last ones end it."""
        # Whatever ends a slice comes here, once for each: counted twice, the operation would end while the
        # buffer is still being written, and the caller would read half of an old value.
        operation = key.queue[0]
        operation.remaining -= num_slices
        if operation.remaining:
            return []
        # So far the leader alone has the value: the other ranks get it by a collective over all slices.
        if operation.spreads:
            # First: when all slices have been shared, this is called once more.
            operation.spreads = False
            operation.remaining = len(key.slices)
            return self._meet(key, operation)
        return self._end(key, now)

    def _is_together(self, key: KeyState) -> bool:
        """Return whether the ranks of a client pull a key together, so that they have the same bits."""
        # Parameters must not differ between the ranks, and others' pushes may come between two pulls.
        begins = key.queue[0].kind is Kind.INIT and key.mode is Mode.ASYNC
        # Of a table in the place of a dense key all have a value, and one rank alone may come to it.
        begins = begins and parameter_of(key.spec.key) == key.spec.key
        return not key.alone and (key.is_exchanged or begins)

    # --- what ends otherwise ---

    def miss(self, key: KeyState, operation: Operation, missed: list[int], now: float) -> Instructions:
        """Slices were pushed to a server that was down.

        Gradients are dropped, and a value that was wanted as well is pulled when the server is back. An
        exchange of parameters does not wait: what was pushed stands for the center that it would have got,
        and a step towards that is none.
        """
        # Of gradients a value that is wanted is still awaited: the server gives it when it is back.
        if not missed or (wants_value(operation) and not key.is_exchanged):
            return []
        operation.awaited.difference_update(missed)
        if operation.kind is Kind.PUSHPULL:
            operation.skipped = True
            if not key.alone:
                for run in neighbours(missed):
                    self._to_announce.put(key, operation, Collective.SKIP, run)
                return []
        return self._finished(key, len(missed), now)

    def fail(self, error: KVStoreError) -> Instructions:
        """End all communication with an error: what is pending and what comes later ends with it."""
        if self.error is not None:
            return []
        self.error = error  # first: what a callback calls from now on ends with it, and does not begin
        out: Instructions = [Failed(error)]
        for key in self.keys:
            out += (Complete(operation.done, error) for operation in key.queue)
            key.queue.clear()
        self.under_way.clear()
        return [*out, *self.requests.fail(error)]

    def unequal(self) -> Instructions:
        """Find operations that can never be carried out because one of the client has finished."""
        known = self.under_way, self.late, self.shutdown, self.me
        text = without_partner(*known, busy=self._announced.begun > 0)
        text = text or self.balance.surplus(self.keys.pushes_apart)
        # All of it, and not this operation alone: by what is announced next ranks mean different things.
        return self.fail(MismatchError(text)) if text else []

    def tick(self, now: float) -> Instructions:
        """Say what has waited for long, and fail an operation that has for too long."""
        news, error = self._watch.tick(self.under_way, now)
        return self.fail(error) if error is not None else [*news]
