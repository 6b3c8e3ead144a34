"""Small frozen records that every layer shares: who is who, and what a key is.

This file must not know about sockets, threads, MPI or MXNet.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

Key = int | str
"""The name of one parameter, as MXNet gives it."""


class Role(str, enum.Enum):
    """What a process of a job does."""

    SCHEDULER = "scheduler"
    SERVER = "server"
    WORKER = "worker"


class Mode(str, enum.Enum):
    """How the servers of a store treat pushes (MXNET-MPI section 4).

    In mode ``CLIENT`` they get none: the workers of a client sum among themselves, as without servers.
    """

    SYNC = "sync"
    ASYNC = "async"
    CLIENT = "client"


class StoreTerms(NamedTuple):
    """How a store treats what is pushed; without an optimizer it sums gradients over all clients.

    Made once from the optimizer's description (``server_optimizers.terms_of``), on servers and workers
    alike: where the two sides differed, one would answer what the other does not expect.

    Attributes:
        whole: The optimizer needs whole tensors: a key stays on one server and is updated at once.
        params: Parameters are pushed, not gradients: a push is an exchange with the center, of a client's
            ranks the mean is pushed, and a request may be repeated.
        before: An exchange is answered with the value before the update, not after it.
        bases: The servers remember what they last sent each client: an answer with the value before the
            update can be sent, and repeated, from nowhere else; compressed differences refer to it; some
            optimizers ask for it.
        pulls: What is pulled counts as sent: the optimizer asks for what a client has last seen.
        staleness: The optimizer asks how many updates a client has not seen.
        quorum: Clients that close a synchronous round once ``quorum_wait`` has passed; 0 stands for all.
        quorum_wait: Seconds for which a round with its quorum waits for the other clients.
        compress: Number of the coding (``values.coding``) in which pushes travel between hosts; 0 for none.
        clip_norm: Bound on the norm of the gradient of all keys together; 0 for none.
        unpushed: Keys of which no gradient is ever pushed, so that the norm does not wait for them.
    """

    whole: bool = False
    params: bool = False
    before: bool = False
    bases: bool = False
    pulls: bool = False
    staleness: bool = False
    quorum: int = 0
    quorum_wait: float = 0.0
    compress: int = 0
    clip_norm: float = 0.0
    unpushed: tuple[Key, ...] = ()

    def is_stable(self, mode: Mode) -> bool:
        """Return whether what a client is answered changes with its own next push only.

        What a server remembers for a client always does; the value does where no round is closed without
        that client. Anything else must be copied before it is sent, or the client might be given a mixture
        of two updates.
        """
        return (self.params and self.bases) or (mode is Mode.SYNC and not self.quorum)


class NodeId(NamedTuple):
    """One process of the job: its role and its index among those of that role.

    A worker's index is its global rank. Prints as ``scheduler``, ``server1`` or ``worker3``.
    """

    role: Role
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody wants here

    def __str__(self) -> str:
        """Return the name that logs and messages use."""
        return self.role.value if self.role is Role.SCHEDULER else f"{self.role.value}{self.index}"

    @classmethod
    def parse(cls, name: str) -> NodeId:
        """Read a name that ``str`` made.

        Raises:
            ValueError: The text names no role, or its index is not a number.
        """
        for role in Role:
            if name.startswith(role.value):
                digits = name[len(role.value) :]
                if role is Role.SCHEDULER and not digits:
                    return cls(role)
                if role is not Role.SCHEDULER and digits.isascii() and digits.isdigit():
                    return cls(role, int(digits))
        msg = f"{name!r} names no node"
        raise ValueError(msg)


SCHEDULER = NodeId(Role.SCHEDULER)

ITEMSIZES = {
    "bool": 1,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
"""Bytes of one element, by the NumPy name of each type that keys may have."""


@dataclass(frozen=True)
class Topology:
    """The shape of a job: workers are dealt to clients in blocks of equal size.

    Attributes:
        num_clients: MPI jobs that meet the servers as one party each; at least 1.
        num_workers: Processes that compute gradients, over all clients.
        num_servers: Processes that hold shards; 0 is pure MPI and needs one client.
        model_parallel: Ranks of each worker, neighbours in their client.
        model_rank: Of those, which this is the shape for: a part of the model has a store of its owners.
    """

    num_clients: int = 1
    num_workers: int = 1
    num_servers: int = 0
    model_parallel: int = 1
    model_rank: int = 0

    @property
    def client_size(self) -> int:
        """Workers in each client."""
        return self.num_workers // self.num_clients

    def client_of(self, rank: int) -> int:
        """Return the client that the worker of this global rank belongs to."""
        return rank // self.client_size

    def leader_of(self, client: int) -> NodeId:
        """Return the worker that speaks to the servers for a client."""
        return NodeId(Role.WORKER, client * self.client_size)

    def members_of(self, client: int) -> range:
        """Return the global ranks of a client."""
        first = client * self.client_size
        return range(first, first + self.client_size)

    def describe_worker(self, rank: int) -> str:
        """Name a worker as the launcher's log prefixes do, e.g. ``client0.1``."""
        client = self.client_of(rank)
        worker = rank - client * self.client_size
        return f"client{client}.{worker * self.model_parallel + self.model_rank}"


DENSE = "dense"
"""The layout of a key that is no table of rows."""

OWN = "\0"
"""The first character of names that are made here, and of none of a user's."""


def name_of_table(key: Key, number: int = 1) -> Key:
    """Return the name for a table that takes the place of a key, which all processes know already.

    ``number`` counts those of a key from 1: what a name has stood for, it stands for to the end of the job.
    """
    return f"{OWN}table{number if number > 1 else ''} {type(key).__name__} {key}"


def parameter_of(name: Key) -> Key:
    """Return the user's name of a key, by which optimizers know its numbers, from ``name_of_table`` too."""
    if not isinstance(name, str) or not name.startswith(OWN):
        return name
    _, kind, key = name.split(" ", 2)
    return int(key) if kind == "int" else key


class RowInit(NamedTuple):
    """How the rows of a table begin, as plain data that can travel in a message.

    Attributes:
        name: ``zeros``; ``constant`` (``a``); ``uniform`` (from ``a`` to ``b``); ``normal`` (of mean ``a``
            and standard deviation ``b``); or ``xavier`` (uniform, of variance 1 / width, so that a row's
            norm is 1 on average).
        a: See there.
        b: See there.
        seed: Tables with different seeds have independent values.
    """

    name: str = "zeros"
    a: float = 0.0
    b: float = 0.0
    seed: int = 0


RECENT, FREQUENT = "recent", "frequent"


class Retention(NamedTuple):
    """Which rows a table keeps, as plain data that can travel in a message; by default all that are pushed.

    Attributes:
        max_rows: Of the table, of which each piece has its part; 0 for no bound. Where a push would make
            more, others go first.
        max_age: Updates after which a row goes that none of them was for; they are sought at each sixteenth
            of that. 0 for never.
        admit_after: A row is made by the push with this number for it. Until then it has its initial
            value, and its gradients are dropped, since memory for them is what admission saves.
        keep: Which rows stay where there are too many: those that were pushed most recently
            (``recent``), or most frequently (``frequent``; of these the recent ones).
    """

    max_rows: int = 0
    max_age: int = 0
    admit_after: int = 1
    keep: str = RECENT


class Growth(NamedTuple):
    """How the rows of a table come into being when they are first pushed, as plain data.

    Attributes:
        init: What a row is until then.
        retention: Which rows stay.
    """

    init: RowInit = RowInit()
    retention: Retention = Retention()


@dataclass(frozen=True)
class KeySpec:
    """What all workers must agree on about one key.

    Attributes:
        store: Number of the store in order of creation; keys of several stores do not collide.
        key: The user's name of the parameter.
        shape: Shape of the whole array; ``()`` for a zero-dimensional one.
        dtype: NumPy name of the element type, e.g. ``float32``.
        layout: How its elements lie on the servers and travel (``values.layout``).
        partitions: Into how many pieces a table is cut; 0 for what is no table.
        growth: Of a table, how its rows come into being; ``None`` where all are there from the beginning.
        apart: Of a table, each worker pushes its rows for itself, and not each client those of its ranks.
        scratch: It is of no use to a job that goes on later: snapshots leave it out.
        homes: Of a table, the servers to which rows are dealt, whatever their pieces; 1: by pieces alone.
    """

    store: int
    key: Key
    shape: tuple[int, ...]
    dtype: str
    layout: str = DENSE
    partitions: int = 0
    growth: Growth | None = None
    apart: bool = False
    scratch: bool = False
    homes: int = 1

    def __str__(self) -> str:
        """Return e.g. ``key 'fc1_weight' (128, 64) float32``."""
        return f"key {self.describe()}"

    def describe(self) -> str:
        """Return the same without its first word."""
        table = f" in {self.partitions} pieces ({self.layout})" if self.partitions else ""
        growth = f" growing by {self.growth}" if self.growth else ""
        apart = " pushed by each worker for itself" if self.apart else ""
        return f"{parameter_of(self.key)!r} {self.shape} {self.dtype}{table}{growth}{apart}"


class Announced(NamedTuple):
    """A collective that the ranks of a client are to carry out on slices ``first`` to ``last`` of a key.

    ``operation`` is the value of a ``worker.collectives.Collective``, ``sequence`` the number of the push
    on the key, and ``together`` how many collectives can be carried out at once, from this one on.
    """

    operation: int
    key_id: int
    sequence: int
    first: int
    last: int
    together: int


class OptimizerNumbers(NamedTuple):
    """What the optimizer of one worker has had until a step.

    Attributes:
        store, given: Number of the store, and of the optimizer among those that it was given.
        key, step: How often which key has been pushed; 0 is for the order in which it has its parameters.
        digest: Of all its numbers in all steps so far.
        shown: Some of them as they are now, by names for people.
    """

    store: int
    given: int
    key: Key
    step: int
    digest: int
    shown: dict[str, float]


class Shard(NamedTuple):
    """The contiguous elements ``[lo, hi)`` of a key that one server owns."""

    server: int
    lo: int
    hi: int


class Slice(NamedTuple):
    """The unit of transport: elements ``[lo, hi)`` of a key (P3 section 4.1)."""

    key_id: int
    lo: int
    hi: int


class Rows(NamedTuple):
    """Some rows of a table.

    Attributes:
        ids: int64, 1-D, ascending, without repetitions.
        values: 2-D and C-contiguous, one row for each id.
    """

    ids: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]


class FetchedVersions:
    """At which versions of a table's pieces some rows were fetched; workers fill it as rows come.

    Attributes:
        of_pieces: By the numbers of the pieces; empty before the first answer.
    """

    __slots__ = ("_layout", "of_pieces")

    def __init__(self) -> None:
        """Start before the rows were fetched."""
        self._layout: object = None
        self.of_pieces: dict[int, int] = {}

    def begin(self, layout: object) -> None:
        """Rows are about to be fetched; of a table that was cut anew since, nothing is known."""
        if self._layout is not layout:
            self._layout, self.of_pieces = layout, {}


@dataclass(slots=True)
class RowCount:
    """What has travelled of a table, counted by the rank that it came to.

    Attributes:
        layout: How the table is cut.
        pieces: Into how many.
        row_bytes: Of the values of a row, as they travel to and from servers.
        pushes: Operations that have pushed rows.
        rank: Rows that this rank has pushed.
        client: Rows that its client has pushed, of which each counts once; where other ranks push some of
            the pieces as well, only its own.
        job: Rows that it was sent as changed.
        sent: Bytes of payloads to servers.
        received: Bytes of payloads from servers.
        apart: Each rank pushes for itself, so that ``client`` and ``job`` are counted by every rank.
    """

    layout: str
    pieces: int
    row_bytes: int
    apart: bool = False
    pushes: int = 0
    rank: int = 0
    client: int = 0
    job: int = 0
    sent: int = 0
    received: int = 0
