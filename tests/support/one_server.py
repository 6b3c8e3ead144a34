"""A server without arrays, with one worker in each client and one key, and what its instructions say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kvstore_mpi.records import KeySpec, NodeId, Role, StoreTerms, Topology
from kvstore_mpi.server.records import Answer, Entry, Instruction, Unit, Update
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Kind = TypeVar("Kind")

WARN, STEP = 10.0, 600.0
SPEC = {"name": "sgd"}
GRADIENTS, WHOLE = StoreTerms(), StoreTerms(whole=True)


def leader(client: int) -> NodeId:
    """Return the one worker of a client."""
    return NodeId(Role.WORKER, client)


class Payload(str):
    """The bytes of a run of slices; those of a slice in it say where in it they are."""

    __slots__ = ()

    def __getitem__(self, part: Any) -> Payload:
        """Take the bytes of a slice."""
        return self if part.start == 0 else Payload(f"{self}+{part.start // 4}")


class Server:
    """A server with one key of two slices, [0, 5) and [5, 8), unless told otherwise."""

    def __init__(
        self,
        clients: int = 2,
        *,
        mode: str = "sync",
        servers: int = 1,
        create: bool = True,
        optimizer: str | None = None,
        whole: bool = False,
        workers: int = 0,
        apart: bool = False,
    ) -> None:
        """Make the server, with an optimizer whose hyper-parameters are a word.

        Args:
            clients: Of the job.
            mode: Of the store.
            servers: Of the job.
            create: The key is there.
            optimizer: Its hyper-parameters.
            whole: It needs whole tensors.
            workers: Of the job; one for each client unless told otherwise.
            apart: Each worker pushes for itself.
        """
        topology = Topology(clients, workers or clients, servers)
        self.apart = apart
        self.state = ServerState(topology, slice_elements=5, warn_after=WARN, step_timeout=STEP)
        self.mode = mode
        if optimizer is not None:
            self.state.set_optimizer(0, SPEC, optimizer, StoreTerms(whole=whole))
        if create:
            self.create()

    def create(
        self, key_id: int = 0, key: str = "w", slices: Sequence[tuple[int, int]] = ((0, 5), (5, 8))
    ) -> list[Instruction]:
        """Have rank 0 create a key."""
        spec = KeySpec(0, key, (8,), "float32", apart=self.apart)
        message = m.Create(spec, self.mode, key_id, (0, 8), list(slices))
        return self.state.create(leader(0), message, [Payload(f"initial@{lo}") for lo, _ in slices])

    def push(
        self,
        client: int,
        sequence: int,
        *,
        slices: Sequence[tuple[int, int]] = ((0, 5),),
        value: bool = True,
        now: float = 0.0,
        key_id: int = 0,
    ) -> list[Instruction]:
        """Have a client push runs of slices."""
        entries = [(key_id, lo, hi, sequence, value) for lo, hi in slices]
        payloads = [Payload(f"c{client}s{sequence}@{lo}") for lo, _ in slices]
        return self.state.rounds.push(leader(client), m.Push(entries, shared=False), payloads, now)

    def pull(self, client: int, after: int, lo: int = 0, hi: int = 5, key_id: int = 0) -> list[Instruction]:
        """Have a client ask for a run of slices."""
        return self.state.pull(leader(client), m.Pull([(key_id, lo, hi, after)]))

    def unit(self, lo: int = 0) -> Unit:
        """Return what a slice is updated with."""
        unit = self.state.keys.unit(0, lo)
        assert unit is not None
        return unit


def only(kind: type[Kind], instructions: Iterable[Any]) -> list[Kind]:
    """Return the instructions of one kind."""
    return [each for each in instructions if isinstance(each, kind)]


def failures(instructions: Iterable[Any]) -> dict[NodeId, m.Failure]:
    """Return who is told of a failure."""
    return {i.peer: i.message for i in only(Send, instructions) if isinstance(i.message, m.Failure)}


def answered(instructions: Iterable[Any]) -> list[tuple[NodeId, list[Entry]]]:
    """Return who is answered what, each peer's in order."""
    entries: dict[NodeId, list[Entry]] = {}
    for answer in only(Answer, instructions):
        entries.setdefault(answer.peer, []).append(answer.entry)
    return list(entries.items())


def summed(instructions: Iterable[Any]) -> list[tuple[int, list[list[Any]]]]:
    """Return for each update its number and what it sums, in order."""
    return [
        (update.number, [list(c.payloads.values()) for c in update.contributions])
        for update in only(Update, instructions)
    ]
