"""One worker's decisions without its threads: buffers and callbacks are strings here."""

from __future__ import annotations

from typing import Any

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.records import SCHEDULER, Announced, KeySpec, Mode, NodeId, Role, Topology
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.wire.message import Message
from kvstore_mpi.worker import late_operations
from kvstore_mpi.worker import state as ws
from kvstore_mpi.worker.collectives import Collective, Kind
from kvstore_mpi.worker.instructions import Collect, Complete, Failed
from kvstore_mpi.worker.io_thread import WorkerIo
from kvstore_mpi.worker.membership import Membership
from kvstore_mpi.worker.records import Operation
from kvstore_mpi.worker.rendezvous import Rendezvous

SLICE = 4
STEP = 600.0


def node(rank: int) -> NodeId:
    """Return a worker."""
    return NodeId(Role.WORKER, rank)


def server(index: int = 0) -> NodeId:
    """Return a server."""
    return NodeId(Role.SERVER, index)


class Raw(str):
    """The bytes of a buffer of float32; a part of them says which elements it has."""

    __slots__ = ()

    def __getitem__(self, part: Any) -> str:
        """Return which elements a part has."""
        return f"{self}[{part.start // 4}:{part.stop // 4}]"


class Worker:
    """A worker with keys that have been initialised; operations are named by what they are."""

    def __init__(
        self,
        rank: int = 0,
        *,
        clients: int = 1,
        workers: int = 1,
        servers: int = 1,
        mode: str = "sync",
        **options: Any,
    ) -> None:
        """Make the worker of a rank; ``options`` are those of ``NodeConfig``."""
        self.topology = Topology(clients, workers, servers)
        self.coordinator = SCHEDULER if servers else node(0)
        config = NodeConfig(
            num_servers=servers,
            slice_elements=SLICE,
            step_timeout=STEP - late_operations.SERVERS_FIRST_S * bool(servers),
            **options,
        )
        self.state = ws.WorkerState(
            config,
            self.topology,
            rank,
            [range(self.topology.client_size)],
            coordinator=self.coordinator,
            place=lambda _buffer: None,
        )
        self.membership = Membership(self.state, self.topology, rank, self.coordinator)
        nothing: Any = None  # of the shell only its dispatch of messages is used
        meets = Rendezvous(node(rank), self.coordinator, self.topology, nothing)
        self.io = WorkerIo(
            self.state, self.membership, meets, nothing, collect=nothing, resolve=nothing, abandon=nothing
        )
        self.state.keys.open_store(0, Mode(mode))
        self.mode = mode
        self.members_are_ready = True
        self.told: list[Any] = []

    def submit(self, kind: Any, key: str, priority: int = 0, now: float = 0.0, source: Any = None) -> Any:
        """The user calls an operation."""
        done = f"{kind.value} {key}"
        return self.state.submit(0, key, Operation(kind, priority, done, source), now)

    def declare(self, key: str, size: int = 6) -> Any:
        """The user initialises a key."""
        self.state.keys.add(KeySpec(0, key, (size,), "float32"), key, Raw(key))
        return self.submit(Kind.INIT, key)

    def flush(self) -> Any:
        """A pass of the I/O loop ends.

        Members have come to what the leader has come to, unless ``members_are_ready`` says otherwise; what
        this rank tells its leader of that is kept in ``told``.
        """
        for key in [*self.state.under_way] if self.members_are_ready else []:
            for member in self.state.late(key):
                assert self.hears(member, m.Ready([key.key_id])) == []
        out = self.state.flush(0.0, lambda _peer: 0)
        self.told += [key_id for _, message in sent(out, m.Ready) for key_id in message.keys]
        return [each for each in out if not (isinstance(each, Send) and isinstance(each.message, m.Ready))]

    def hears(self, sender: NodeId, message: Any, payloads: Any = (), now: float = 0.0) -> Any:
        """A message arrives."""
        return self.io.decide(sender, message, list(payloads), now)

    def placed(self, key: str, key_id: int, shards: Any) -> Any:
        """The coordinator says where a key is."""
        return self.hears(self.coordinator, m.Placed(0, key, key_id, shards))

    def init(self, key: str, key_id: int = 0, size: int = 6, shards: Any = None) -> Worker:
        """Initialise a key, and answer as servers and the rest of the client would."""
        self.declare(key, size)
        out = self.placed(key, key_id, [(0, 0, size)] if shards is None else shards) + self.flush()
        if not self.topology.num_servers and self.topology.client_size > 1:
            if not self.leads:
                (collect,) = self.announced((Collective.BROADCAST, key_id, 0, 0, len(self.slices(key))))
            else:
                (collect,) = only(Collect, out)
            out = self.state.collected(collect, 0.0)
        else:
            for send in only(Send, out):
                out = self.answer(send)
            for collect in only(Collect, self.flush() if self.leads else []):
                out = self.state.collected(collect, 0.0)
        assert Complete(f"init {key}") in out or not self.topology.num_servers
        return self

    def slices(self, key: str) -> Any:
        """Return the slices of a key, with their servers."""
        return self.state.keys.by_name[0, key].slices

    @property
    def leads(self) -> bool:
        """Whether this rank leads its client."""
        return self.state._leads

    def answer(self, send: Any) -> Any:
        """Answer a message as a server would at once."""
        message = send.message
        if isinstance(message, m.Create):
            return self.hears(
                send.peer, m.Applied([(message.key_id, lo, hi, 0) for lo, hi in message.runs])
            )
        entries = [entry[:4] for entry in message.entries]
        if isinstance(message, m.Push) and not message.entries[0][4]:
            return self.hears(send.peer, m.Applied(entries))
        return self.hears(send.peer, m.Values(entries, shared=False), [f"value@{e[1]}" for e in entries])

    def announced(self, *entries: Any) -> Any:
        """The leader has announced collectives."""
        leader = self.topology.leader_of(self.topology.client_of(self.state._rank))
        told = [Announced._make((int(code), *rest, 1)) for code, *rest in entries]
        return self.hears(leader, m.Announce(told))


def member(**shape: Any) -> Worker:
    """Rank 1 of a client of two."""
    return Worker(1, workers=2, **shape)


def leader(**shape: Any) -> Worker:
    """Rank 0 of a client of two."""
    return Worker(0, workers=2, **shape)


def only(kind: Any, instructions: Any) -> list[Any]:
    """Return the instructions of one kind."""
    return [i for i in instructions if isinstance(i, kind)]


def sent(instructions: Any, kind: Any = Message) -> list[Any]:
    """Return who is sent what."""
    return [(s.peer, s.message) for s in only(Send, instructions) if isinstance(s.message, kind)]


def completed(instructions: Any) -> list[Any]:
    """Return which operations have ended well."""
    return [i.done for i in only(Complete, instructions) if i.error is None]


def the_error(instructions: Any) -> Any:
    """Return what all communication has ended with."""
    (failed,) = only(Failed, instructions)
    return failed.error
