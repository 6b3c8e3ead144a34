"""Data-parallel training over parameter servers in virtual time, exact: what the order of sending does.

One iteration: every worker computes backward from the last layer to the first, then forward from the first
to the last, where a layer waits for its new value. When it ends nothing is under way, so that one iteration
is as long as any other.

Who goes first is decided by the code that decides it in a real job: ``SendQueue`` in front of each link,
``PriorityQueue`` in each server, ``Placement`` and ``cut``. This file only lets the time pass; it must not
order anything by itself. The priorities that those are given are this model's own; that a job's reach them,
in messages and replies, is seen in ``tests/paper/test_p3_turns.py``.

A link carries one message after the other; to receive costs nothing, for where all hosts send alike, each
receives as much as it sends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.p3.priority_queue import PriorityQueue
from kvstore_mpi.p3.send_queue import SendQueue
from kvstore_mpi.p3.slicing import cut
from kvstore_mpi.scheduler.placement import Placement
from support.virtual_time import Clock, Resource, Span, Time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.p3.schedule import Schedule


@dataclass(frozen=True)
class Layer:
    """A layer: its number of elements, and the length of its two passes."""

    size: int
    forward: Time = 1
    backward: Time = 1


@dataclass(frozen=True)
class Cluster:
    """Workers and servers, and what an element costs on its way.

    Attributes:
        workers: Each with the whole model.
        servers: Each with a shard of every layer that is large enough.
        colocated: Worker *i* and server *i* share a host and its link; between them nothing travels.
        push: Time of an element on the link of a worker.
        update: Time of an element in the update on a server.
        answer: Time of an element on the link of a server.
        parallel: A server updates all that is complete at once, not one after the other.
    """

    workers: int = 1
    servers: int = 1
    colocated: bool = False
    push: Time = 1
    update: Time = 0
    answer: Time = 0
    parallel: bool = False


@dataclass(frozen=True)
class Order:
    """In which order slices travel.

    Attributes:
        schedule: As in ``NodeConfig``.
        slice_size: Largest number of elements in a slice.
        window: Elements under way to one destination; 0 for one slice.
    """

    schedule: Schedule
    slice_size: int
    window: int = 0


class _Piece(NamedTuple):
    """A slice of a layer from or to a worker; ``number`` counts the slices of the layer."""

    layer: int
    number: int
    size: int
    worker: int


def train(layers: Sequence[Layer], cluster: Cluster, order: Order) -> list[Span]:
    """Run one iteration.

    Returns:
        The passes (b3, f3), pushes (p3), updates (u3) and answers (a3) of all layers, which count from 1.
        A message of several slices has the name of its first.
    """
    job = _Job(layers, cluster, order)
    job.clock.run()
    return job.clock.spans


def length(spans: Sequence[Span]) -> Time:
    """Return when the last worker is through."""
    return max((span.end for span in spans), default=0)


def lower_bound(layers: Sequence[Layer], cluster: Cluster, slice_size: int) -> Time:
    """Return the length of an iteration that no order of sending can fall below.

    The gradients of the layers up to one exist only from the end of its backward pass on, and all of them
    must have gone through every link and server before its forward pass; what is left of the compute comes
    on top.
    """
    compute = sum(layer.forward + layer.backward for layer in layers)
    placement = Placement(cluster.servers, slice_size)
    before: Time = 0
    bound: Time = compute
    for layer in layers:
        placement.place(layer.size, 1)
        bound = max(bound, compute - before + _busiest(cluster, placement.loads))
        before += layer.forward + layer.backward
    return bound


def _busiest(cluster: Cluster, loads: tuple[int, ...]) -> Time:
    """Return how long the busiest link or server works when the servers have these numbers of elements."""
    total = sum(loads)
    update = 0 if cluster.parallel else max(loads) * cluster.update
    if not cluster.colocated:
        return max(update, total * cluster.push, cluster.workers * max(loads) * cluster.answer)
    others = cluster.workers - 1
    return max(update, *((total - own) * cluster.push + others * own * cluster.answer for own in loads))


class _Job:
    """All that the processes share; ``slices`` has for each layer (server, size) of each slice."""

    def __init__(self, layers: Sequence[Layer], cluster: Cluster, order: Order) -> None:
        self.clock = Clock()
        self.layers, self.cluster, self.order = layers, cluster, order
        placement = Placement(cluster.servers, order.slice_size)
        self.slices = [
            [(server, piece.hi - piece.lo) for server, piece in cut(0, shards, order.slice_size)]
            for shards in [placement.place(layer.size, 1) for layer in layers]
        ]
        links = [Resource(self.clock, f"link {index}") for index in range(cluster.workers)]
        self.workers = [_Worker(self, index, link) for index, link in enumerate(links)]
        if not cluster.colocated:
            links = [Resource(self.clock, f"server link {index}") for index in range(cluster.servers)]
        self.servers = [_Server(self, index, link) for index, link in enumerate(links)]


class _Sender:
    """What a process sends: the real queue, and a link that acknowledges what has arrived."""

    def __init__(self, job: _Job, index: int, link: Resource, kind: str, cost: Time) -> None:
        order = job.order
        self._job, self._link, self._kind, self._cost = job, link, kind, cost
        self._local = index if job.cluster.colocated else -1
        self._in_flight: Counter[int] = Counter()
        self._queue: SendQueue[int, _Piece] = SendQueue(
            order.schedule, window_bytes=order.window or order.slice_size
        )
        job.clock.at_end_of_moment.append(self._flush)

    def put(self, to: int, piece: _Piece) -> None:
        self._queue.expect(to, 0, self._job.order.slice_size)
        self._queue.put(to, -piece.layer, piece.size, piece, travels=to != self._local)

    def _flush(self) -> None:
        clock = self._job.clock
        for to, pieces in self._queue.bundles(float(clock.now), self._in_flight.__getitem__):
            size = 0 if to == self._local else sum(piece.size for piece in pieces)
            self._in_flight[to] += size
            arrive = partial(self._arrive, to, pieces, size)
            if size:
                self._link.do(f"{self._kind}{pieces[0].layer + 1}", size * self._cost, arrive)
            else:
                clock.at(clock.now, arrive)

    def _arrive(self, to: int, pieces: list[_Piece], size: int) -> None:
        self._in_flight[to] -= size
        receivers: Sequence[_Worker | _Server] = (
            self._job.servers if self._kind == "p" else self._job.workers
        )
        receivers[to].receive(pieces)


class _Server:
    """Processes pushes by priority; when a unit is complete, updates it and answers all workers."""

    def __init__(self, job: _Job, index: int, link: Resource) -> None:
        schedule = job.order.schedule
        self._cluster = job.cluster
        self._sender = _Sender(job, index, link, "a", job.cluster.answer)
        self._processor = Resource(job.clock, f"server {index}", serial=not job.cluster.parallel)
        self._pushes: PriorityQueue[list[_Piece]] = PriorityQueue(by_priority=schedule.by_priority)
        self._in_slices = schedule.in_slices
        self._parts = [[server for server, _ in layer].count(index) for layer in job.slices]
        self._arrived: dict[tuple[int, int], list[_Piece]] = {}
        job.clock.at_end_of_moment.append(self._process)

    def receive(self, pieces: list[_Piece]) -> None:
        self._pushes.put(-pieces[0].layer, sum(piece.size for piece in pieces), pieces)

    def _process(self) -> None:
        while self._pushes and self._processor.idle:
            for piece in self._pushes.pop():
                self._count(piece)

    def _count(self, piece: _Piece) -> None:
        unit = (piece.layer, piece.number if self._in_slices else 0)
        arrived = self._arrived.setdefault(unit, [])
        arrived.append(piece)
        if len(arrived) == self._cluster.workers * (1 if self._in_slices else self._parts[piece.layer]):
            size = sum(each.size for each in arrived) // self._cluster.workers
            name = f"u{piece.layer + 1}"
            self._processor.do(name, size * self._cluster.update, partial(self._answer, arrived))

    def _answer(self, pieces: list[_Piece]) -> None:
        for piece in pieces:
            self._sender.put(piece.worker, piece)


class _Worker:
    """Computes, pushes each gradient when it is there, and waits for a value only where it is needed."""

    def __init__(self, job: _Job, index: int, link: Resource) -> None:
        self._index, self._layers, self._slices = index, job.layers, job.slices
        self._sender = _Sender(job, index, link, "p", job.cluster.push)
        self._compute = Resource(job.clock, f"worker {index}")
        self._missing = [len(layer) for layer in job.slices]
        self._next = 0
        for layer in reversed(range(len(job.layers))):
            self._compute.do(f"b{layer + 1}", job.layers[layer].backward, partial(self._push, layer))
        job.clock.at_end_of_moment.append(self._forward)

    def receive(self, pieces: list[_Piece]) -> None:
        for piece in pieces:
            self._missing[piece.layer] -= 1

    def _push(self, layer: int) -> None:
        for number, (server, size) in enumerate(self._slices[layer]):
            self._sender.put(server, _Piece(layer, number, size, self._index))

    def _forward(self) -> None:
        while self._next < len(self._layers) and not self._missing[self._next] and self._compute.idle:
            self._compute.do(f"f{self._next + 1}", self._layers[self._next].forward, lambda: None)
            self._next += 1
