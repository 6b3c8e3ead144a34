"""What a server answers: values, queued by priority and written where receivers want them, and notices.

This file must not know why a value is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.p3.send_queue import SendQueue
from kvstore_mpi.p3.window import ANSWERS_OVER_PUSHES
from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.values import row_sparse
from kvstore_mpi.values.coding import RAW, Coded
from kvstore_mpi.values.dense import merge
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.p3.schedule import Schedule
    from kvstore_mpi.records import Topology
    from kvstore_mpi.server.peer_buffers import PeerBuffers
    from kvstore_mpi.server.records import Answer, Entry, KeyRecord
    from kvstore_mpi.server.shards import ShardStore
    from kvstore_mpi.tracing.recorder import Recorder


class Replies:
    """What one server is going to send."""

    def __init__(
        self,
        topology: Topology,
        store: ShardStore,
        buffers: PeerBuffers,
        send: Callable[[Send], None],
        *,
        schedule: Schedule,
        window_bytes: int,
        slice_elements: int,
        all_push: bool,
        recorder: Recorder | None = None,
    ) -> None:
        """Start with nothing to send.

        Args:
            topology: The shape of the job.
            store: Where the values are.
            buffers: Where peers that share their buffers get them.
            send: Sends a message with payloads; who is gone is sent nothing.
            schedule: The order in which values leave.
            window_bytes: Bytes under way to one worker; 0 to find out.
            slice_elements: Largest number of elements in a slice.
            all_push: All ranks of a client push slices, and not one for all.
            recorder: Takes what is sent, if the job has a trace.
        """
        self._topology = topology
        self._store = store
        self._buffers = buffers
        self._send = send
        self._slice_elements = slice_elements
        self._all_push = all_push
        self._recorder = recorder
        self._applied: dict[NodeId, list[Entry]] = {}
        self._queue: SendQueue[NodeId, Answer] = SendQueue(
            schedule,
            window_bytes=window_bytes,
            # Larger than a worker's: on a host with both, answers come before pushes, for they are of
            # layers that are needed sooner.
            window_times=ANSWERS_OVER_PUSHES,
        )

    def expect_key(self, key: KeyRecord, *, times: int = 1) -> None:
        """Note that each client will get what is here of a key in each round; -1 times: no more.

        To each rank that pushes goes as much as it pushes: answers are windowed as pushes are.
        """
        if key.is_table:  # what will be wanted of it, nobody knows
            return
        # Of the shard and not of the key: what other servers answer goes through their windows.
        num_bytes = key.layout.num_bytes(key.shard.lo, key.shard.hi)
        slice_bytes = key.layout.num_bytes(0, self._slice_elements)
        for client in range(self._topology.num_clients):
            members = self._topology.members_of(client)
            # A rank that pushes nothing is answered nothing, and would only take room for a window.
            pushers = members if self._all_push else members[:1]
            for rank in pushers:
                share = times * (num_bytes // len(pushers))
                self._queue.expect(NodeId(Role.WORKER, rank), share, slice_bytes)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of answers that wait to leave."""
        return self._queue.num_bytes

    def drop(self, peer: NodeId) -> None:
        """Forget what waits for a peer."""
        # The peer's next incarnation asks for itself: an answer to the former one would end an
        # operation that it has not begun.
        self._queue.drop(peer)
        self._applied.pop(peer, None)

    def note_applied(self, peer: NodeId, entries: Sequence[Entry]) -> None:
        """A peer is to be told that slices which it has pushed, or given, have been taken."""
        # One message for all of a pass: a worker that pushes 26 tables waits for as many, and each message
        # would cost it, and this server, more than the update of a small one.
        self._applied.setdefault(peer, []).extend(entries)

    def refuse(self, peers: Iterable[NodeId], error: KVStoreError) -> None:
        """Tell peers an error, with which all that they wait for ends."""
        for peer in peers:
            self._send(Send(peer, m.Failure(type(error).__name__, str(error))))

    def refuse_clients(self, clients: Iterable[int], error: KVStoreError) -> None:
        """Tell it all ranks of some clients: all that have pushed wait for the value of an update."""
        ranks = [rank for client in clients for rank in self._topology.members_of(client)]
        self.refuse([NodeId(Role.WORKER, rank) for rank in ranks], error)

    def put(self, answer: Answer) -> None:
        """Queue an answer; what is coded is taken now, everything else is read when it leaves.

        The value that a stable answer reads cannot move before it has left.
        """
        key_id, lo, hi, _ = answer.entry
        # Also of what is shared, which takes no room in the window but a turn in the order.
        num_bytes = self._store.layouts[key_id].num_bytes(lo, hi)
        table = self._store.tables.get(key_id)
        if table is not None:
            # Taken now, as a coded answer is: which rows are sent depends on those that have changed.
            payload = table.payload(lo, answer.request)
            num_bytes, answer = len(payload), answer._replace(coded=Coded(payload, row_sparse.CODING))
        elif answer.base:
            # Taken now: it refers to the base as it was at the update, and the next update moves that.
            coded = self._store.take_coded(self._topology.client_of(answer.peer.index), key_id, lo)
            if coded is not None:
                # A peer that shares its buffer has not coded what it pushed.
                num_bytes, answer = len(coded.payload), answer._replace(coded=coded)
        self._queue.put(answer.peer, answer.priority, num_bytes, answer, travels=not answer.shared)

    def send_ready(self, now: float, in_flight: Callable[[NodeId], int]) -> None:
        """Send what may leave now.

        Args:
            now: The time.
            in_flight: Payload bytes under way to a peer.
        """
        if self._applied:
            applied, self._applied = self._applied, {}
            for peer, entries in applied.items():
                self._send(Send(peer, m.Applied(merge(entries))))
        # Asked in every pass, most of which have nothing to send: no generator is made for those.
        if self._queue:
            for peer, answers in self._queue.bundles(now, in_flight):
                self._send_bundle(peer, answers, asks=self._queue.wants_room(peer))
                if self._recorder is not None:
                    self._recorder.in_flight(peer, in_flight(peer))

    def _send_bundle(self, peer: NodeId, answers: list[Answer], *, asks: bool) -> None:
        """Send one message for each way in which values are read at the peer."""
        forms: dict[tuple[bool, int, bool], list[Answer]] = {}
        last: tuple[bool, int, bool] | None = None
        alike: list[Answer] = []
        # One message for each form: a receiver reads all entries of a message in the same way.
        for answer in answers:
            coding = RAW if answer.coded is None else answer.coded.coding
            form = (answer.shared, coding, answer.base)
            if form != last:  # nearly always all are of one form
                last, alike = form, forms.setdefault(form, [])
            alike.append(answer)
        # What is shared first: it costs no time on the way, so that nothing waits for it. The rest as they
        # were taken, the most urgent first.
        for (shared, coding, base), alike in sorted(forms.items(), key=lambda form: not form[0][0]):
            entries = [answer.entry for answer in alike]
            payloads: list[Any] = []
            if coding != RAW:
                payloads = [answer.coded.payload for answer in alike if answer.coded is not None]
            else:
                # From the base, if the answer is what it holds: another client may have moved the value
                # since.
                client = self._topology.client_of(peer.index) if base else None
                if shared:
                    # Written before the message leaves: the worker reads its buffer as soon as it has that.
                    unwritten = [answer.entry for answer in alike if not answer.written]
                    self._write_back(peer, merge(unwritten), client)
                # Neighbours that leave together are one piece of memory. What is coded is not: a payload is
                # one slice's.
                entries = merge(entries)
                if not shared:
                    # One that is not stable makes the whole message a copy: merged runs may have slices of
                    # both.
                    payloads = self._payloads(entries, client, stable=all(each.stable for each in alike))
            self._send(Send(peer, m.Values(entries, shared, coding, base), payloads, asks))
            if self._recorder is not None:
                self._recorder.mark("answered", peer, entries)

    def _payloads(self, entries: Sequence[Entry], client: int | None, *, stable: bool) -> list[Any]:
        payload = self._store.payload
        return [payload(key_id, lo, hi, stable=stable, client=client) for key_id, lo, hi, _ in entries]

    def _write_back(self, peer: NodeId, entries: Sequence[Entry], client: int | None) -> None:
        """Write values into the peer's buffers."""
        for key_id, lo, hi, _ in entries:
            self._store.write_back(key_id, lo, hi, self._buffers.views[peer, key_id], client)
