"""The values that a server sends: queued by priority, and written where their receivers want them.

This file must not know why a value is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.p3.send_queue import SendQueue
from kvstore_mpi.p3.window import ANSWERS_OVER_PUSHES
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.runs import merge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.p3.schedule import Schedule
    from kvstore_mpi.records import NodeId, Topology
    from kvstore_mpi.server.peer_buffers import PeerBuffers
    from kvstore_mpi.server.records import Compressed, Entry, Reply
    from kvstore_mpi.server.shards import Store
    from kvstore_mpi.tracing.recorder import Recorder


class _Value(NamedTuple):
    """The value of a slice, to be sent; see ``server_records.Reply``.

    It is in ``compressed``, or in the base of ``client``, or where all values are.
    """

    entry: Entry
    stable: bool
    shared: bool
    client: int | None = None
    compressed: Compressed | None = None


class Replies:
    """What one server is going to send."""

    def __init__(
        self,
        topology: Topology,
        store: Store,
        buffers: PeerBuffers,
        send: Callable[[NodeId, m.Message, Sequence[Any]], None],
        *,
        schedule: Schedule,
        slice_bytes: int,
        window_bytes: int,
        recorder: Recorder | None = None,
    ) -> None:
        """Start with nothing to send.

        Args:
            topology: The shape of the job.
            store: Where the values are.
            buffers: Where peers that share their buffers get them.
            send: Sends a message with payloads.
            schedule: The order in which values leave.
            slice_bytes: Size of an ordinary slice.
            window_bytes: Bytes under way to one worker; 0 to find out.
            recorder: Takes what is sent, if the job has a trace.
        """
        self._topology = topology
        self._store = store
        self._buffers = buffers
        self._send = send
        self._recorder = recorder
        self._remembers = False  # some values are in bases
        self._queue: SendQueue[NodeId, _Value] = SendQueue(
            schedule,
            slice_bytes=slice_bytes,
            window_bytes=window_bytes,
            window_times=ANSWERS_OVER_PUSHES,
        )

    def expect(self, peer: NodeId, num_bytes: int) -> None:
        """Note that a peer will get so many bytes more in each round."""
        self._queue.expect(peer, num_bytes)

    def drop(self, peer: NodeId) -> None:
        """Forget what waits for a peer."""
        self._queue.drop(peer)

    def put(self, reply: Reply) -> None:
        """Queue a reply; what is compressed is taken now, everything else when it leaves."""
        client = None
        if reply.base:
            self._remembers = True
            client = self._topology.client_of(reply.peer.index)
        for entry in reply.entries:
            num_bytes = (entry[2] - entry[1]) * self._store.itemsize(entry[0])
            value = _Value(entry, reply.stable, reply.shared, client)
            if client is not None:
                compressed = self._store.take_compressed(client, entry[0], entry[1])
                if compressed is not None:
                    num_bytes = len(compressed.payload)
                    value = value._replace(compressed=compressed)
            self._queue.put(reply.peer, reply.priority, num_bytes, value, travels=not reply.shared)

    def send_ready(self, now: float, in_flight: Callable[[NodeId], int]) -> None:
        """Send what may leave now.

        Args:
            now: The time.
            in_flight: Payload bytes under way to a peer.
        """
        if self._queue:
            for peer, values in self._queue.bundles(now, in_flight):
                self._send_bundle(peer, values)
                if self._recorder is not None:
                    self._recorder.in_flight(peer, in_flight(peer))

    def _send_bundle(self, peer: NodeId, values: list[_Value]) -> None:
        for shared in (True, False):
            chosen = [value for value in values if value.shared is shared]
            if self._remembers:
                self._send_from_base(peer, [each for each in chosen if each.client is not None])
                chosen = [each for each in chosen if each.client is None]
            if chosen:
                self._send_values(peer, chosen, shared, None)

    def _send_from_base(self, peer: NodeId, values: list[_Value]) -> None:
        """Answer with what the peer's client is sent now, and again if it asks again."""
        groups: dict[tuple[bool, int], list[_Value]] = {}
        for value in values:
            bits = value.compressed.bits if value.compressed is not None else 0
            groups.setdefault((value.shared, bits), []).append(value)
        for (shared, bits), chosen in groups.items():
            if bits:
                payloads = [value.compressed.payload for value in chosen if value.compressed]
                entries = [value.entry for value in chosen]
                self._send_message(peer, m.Values(entries, shared=False, bits=bits, base=True), payloads)
            else:
                self._send_values(peer, chosen, shared, chosen[0].client)

    def _send_values(self, peer: NodeId, values: list[_Value], shared: bool, client: int | None) -> None:
        entries = merge(value.entry for value in values)
        payloads: list[Any] = []
        if shared:
            self._write_back(peer, entries, client)
        else:
            stable = all(value.stable for value in values)
            payloads = [
                self._store.payload(key_id, lo, hi, stable=stable, client=client)
                for key_id, lo, hi, _ in entries
            ]
        self._send_message(peer, m.Values(entries, shared, 0, client is not None), payloads)

    def _write_back(self, peer: NodeId, entries: list[Any], client: int | None) -> None:
        """Write values into the peer's buffers."""
        for key_id, lo, hi, _ in entries:
            itemsize = self._store.itemsize(key_id)
            view = self._buffers.view(peer, key_id, lo * itemsize, hi * itemsize)
            self._store.write_back(key_id, lo, hi, view, client)

    def _send_message(self, peer: NodeId, message: m.Values, payloads: list[Any]) -> None:
        self._send(peer, message, payloads)
        if self._recorder is not None:
            self._recorder.mark("answered", peer, message.entries)
