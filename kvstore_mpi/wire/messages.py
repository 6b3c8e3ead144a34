"""Every message of the protocol, as it is encoded in the body of a frame.

Arrays of numbers (gradients, weights, states) never stand in a body: they follow as raw payload frames, in
the order of the entries, each of which covers a run of neighbouring slices. Groups tell the direction.
"""

from __future__ import annotations

from typing import Any

from kvstore_mpi.records import Announced, KeySpec, OptimizerNumbers
from kvstore_mpi.wire.message import Message
from kvstore_mpi.wire.state_parts import StatePart

# --- worker or server -> scheduler, and back -------------------------------------------------------


class Join(Message, frozen=True):
    """A process announces itself: where it listens, who it is for people, and in which run of it."""

    addresses: list[str]
    host: str
    pid: int
    incarnation: int = 0


class Peers(Message, frozen=True):
    """Where those listen whom a process connects to: name -> addresses.

    To a process that has joined, once everybody has whom it needs; later, those that came back elsewhere.
    """

    addresses: dict[str, list[str]]


class Declare(Message, frozen=True):
    """A worker wants a key; rank 0's declaration fixes shape, dtype and placement.

    With ``quorum`` the rounds of the store do not wait for all clients.
    """

    spec: KeySpec
    mode: str
    whole: bool
    quorum: bool = False


class Placed(Message, frozen=True):
    """The key as all workers agree on it: its number and its shards (server, lo, hi)."""

    store: int
    key: int | str
    key_id: int
    shards: list[tuple[int, int, int]]


class BarrierArrive(Message, frozen=True):
    """A worker has reached its n-th barrier, having made all ``pushes`` that it makes before that opens."""

    # Or the first barrier of a worker that is started again would open the later one of the others.
    number: int
    pushes: tuple[int, int] = (-1, -1)  # in rounds of all, in sums and lookups of a client; -1: maybe more
    closes: int = -1  # the store that it does not use any more, if it has come there to close one


class BarrierAwaits(Message, frozen=True):
    """The first worker waits at the n-th barrier: the others must not push more often before they come."""

    number: int
    pushes: tuple[int, int]  # as of ``BarrierArrive``
    who: str


class BarrierRelease(Message, frozen=True):
    """All workers have reached the n-th barrier."""

    number: int


class Numbers(Message, frozen=True):
    """What a worker's optimizer has had: the same as those of all others, where workers update."""

    numbers: OptimizerNumbers


class PushesDensely(Message, frozen=True):
    """A worker makes its first push of a key that could be a table, and it is none."""

    store: int
    key: int | str


class PushesRows(Message, frozen=True):
    """To a worker of an asynchronous store: another pushes rows of a key that is dense here."""

    store: int
    key: int | str


class Leave(Message, frozen=True):
    """A process ends in order; it will send nothing more, and needs nothing more."""

    pushes: int = 0  # that it has made for itself, as all ranks of its client have to


class Finished(Message, frozen=True):
    """A worker's program is over: it asks for nothing more, and stays for the rest of its client."""


class Interrupted(Message, frozen=True):
    """A worker ends too early, for people by ``reason``; ``asked``: by somebody who tells the user."""

    reason: str
    asked: bool = True


class StoresClosed(Message, frozen=True):
    """No worker uses some stores any more, of which these were the keys; who joins then is told, too."""

    stores: list[int]
    keys: list[int]


class Stop(Message, frozen=True):
    """All workers have left: a server may end."""


class PeerGone(Message, frozen=True):
    """The scheduler says that a process is lost or, to servers, has left; ``reason`` is for people.

    With a worker its whole client is lost; it ``returns`` if it is started again; ``asked``: see above.
    ``incarnation`` says which run: the next may have connected before the news of this one comes.
    """

    # An orderly end is told apart because it means something else to the workers that remain: in a round it
    # is a mismatch of their programs, of which a repetition helps nobody, and not a peer that was lost.
    name: str
    reason: str
    orderly: bool
    returns: bool = False
    asked: bool = False
    incarnation: int = 0


# --- any -> any ------------------------------------------------------------------------------------


class Failure(Message, frozen=True):
    """The sender cannot do what was asked: class name, which the receiver looks up, and text of the error.

    ``store`` and ``key`` name the operation that failed, ``key=None`` the whole connection, and
    ``request`` a blocking request.
    """

    error: str
    text: str
    store: int = -1
    key: int | str | None = None
    request: int = -1


class ClockProbe(Message, frozen=True):
    """Asks the coordinator for its clock, for the job's trace; ``sent_ns`` is the sender's."""

    sent_ns: int


class ClockAnswer(Message, frozen=True):
    """The coordinator's clock when it had the probe that was sent at ``sent_ns``."""

    sent_ns: int
    peer_ns: int


class Ok(Message, frozen=True):
    """A blocking request was carried out; ``result`` is what it asked for, if anything."""

    request: int
    result: Any = None


# --- leader <-> members of its client --------------------------------------------------------------


class Announce(Message, frozen=True):
    """The next collectives, in order; those of a whole pass, since each message wakes the member."""

    entries: list[Announced]


class Released(Message, frozen=True):
    """All ranks of the client have finished; only where all of them push does that need to be said."""


class Arrived(Message, frozen=True):
    """To the leader, to share them: this rank has new values: (key number, first slice, end of slices)."""

    entries: list[tuple[int, int, int]]


class Ready(Message, frozen=True):
    """To the leader: this rank's program has come to the next operation of these keys, by number."""

    keys: list[int]


# --- worker -> server ------------------------------------------------------------------------------


class Create(Message, frozen=True):
    """Rank 0 creates a key on a server; the payloads are initial values of runs of slices of the shard.

    A large shard takes several messages, which differ in ``runs`` only: (lo, hi) for each payload. The
    first value counts; who comes later is answered by what there is. With ``seed`` any client gives its own
    value to a server that has lost the key, and wants no answer.
    """

    spec: KeySpec
    mode: str
    key_id: int
    shard: tuple[int, int]
    runs: list[tuple[int, int]]
    seed: bool = False


class Share(Message, frozen=True):
    """Tells a server where the exchange buffer of a key lies (``transport.shared_memory.Place``)."""

    key_id: int
    place: tuple[str, str, bytes, int, int, int]


class Push(Message, frozen=True):
    """Gradients of one client, summed over its workers, or its parameters, the mean over its workers.

    Entries are runs of slices: (key number, lo, hi, sequence, wants the value); ``sequence`` counts this
    client's pushes on the key from 1. The gradients are the payloads, or, if ``shared``, lie in the buffers
    that the client has shared; the new values are then written there. ``priority`` is that of the most
    urgent entry; the answers have it, too. With a ``coding`` (the number of one in ``values.coding``) each
    entry is one slice, and its payload stands for it; so does the answer's.
    """

    # Tuples and no structures: a message may have thousands, and they are decoded several times as fast.
    # ``sequence`` is in each of them, because a message may carry slices of many keys.
    entries: list[tuple[int, int, int, int, bool]]
    shared: bool
    priority: int = 0
    coding: int = 0


class Pull(Message, frozen=True):
    """Asks for values that include this client's first ``after`` pushes: (key number, lo, hi, after)."""

    # Without ``after`` a pull could be answered from before the client's own push, whose round still waits
    # for others: the sender would read a weight older than the one that it has pushed for.
    entries: list[tuple[int, int, int, int]]
    priority: int = 0


class SetOptimizer(Message, frozen=True):
    """The update rule of a store as a declarative spec (``server_optimizers.OptimizerSpec``).

    ``first``: the sender has not given it one before; a rule that the store has by then, it keeps.
    ``given``: which of the sender's it is.
    """

    request: int
    store: int
    spec: dict[str, Any]
    first: bool = False
    given: int = 1


class AwaitOptimizer(Message, frozen=True):
    """Asks to be told (``Ok``, with the spec) when rank 0 has given a store its ``given``-th rule."""

    request: int
    store: int
    given: int = 1


class SetHyper(Message, frozen=True):
    """New hyper-parameters of the update rule, for all pushes that follow on this connection.

    ``confirm`` asks for ``HyperSet``: where other ranks of the client push as well, they must not be first.
    """

    store: int
    hyper: dict[str, Any]
    confirm: bool = False


class Resume(Message, frozen=True):
    """To a server that is back: its keys, and the sequence of this client's last push on each.

    Pushes up to there are in its snapshot or lost. It answers ``Missing``. Keys are whole, without values.
    """

    # Counts in the snapshot may be older than the client's: a round that waited for the pushes between
    # the two would wait for ever. And the snapshot may be of a job in which tables were cut otherwise.
    keys: list[tuple[Create, int]]


class GetStates(Message, frozen=True):
    """Asks for the optimizer states of a store, or of some keys; or without arrays for the counts alone."""

    request: int
    store: int
    keys: list[int] | None = None
    arrays: bool = True


class Drop(Message, frozen=True):
    """No worker uses a key any more."""

    key_id: int


class StepNorm(Message, frozen=True):
    """Of a step of a store that clips: a server's sum of squares, of ``keys`` keys, or rank 0's factor."""

    store: int
    value: float
    keys: int = 0


class PutStates(Message, frozen=True):
    """Replaces optimizer states; one payload per part. ``last`` ends the request, which is answered."""

    request: int
    store: int
    parts: list[StatePart]
    last: bool


# --- server -> worker ------------------------------------------------------------------------------


class HyperSet(Message, frozen=True):
    """A ``SetHyper`` that asked for it has taken effect."""


class Missing(Message, frozen=True):
    """Keys of a ``Resume`` that the server does not have: whoever has a value for them may give it."""

    keys: list[int]


class KeepValues(Message, frozen=True):
    """The server cannot save its shard: its clients keep copies of values, in case that it is lost."""


class Shared(Message, frozen=True):
    """The server has mapped the buffer of a key: from now on only references need to travel."""

    key_id: int


class Values(Message, frozen=True):
    """New values: (key number, lo, hi, sequence or ``after``).

    They are the payloads, one for each entry, or, if ``shared``, are in the shared buffers already.
    ``coding`` as in ``Push``. With ``base`` they are what the server remembers to have sent to this client.
    """

    entries: list[tuple[int, int, int, int]]
    shared: bool
    coding: int = 0
    base: bool = False


class Applied(Message, frozen=True):
    """Pushes that asked for no value have been applied: (key number, lo, hi, sequence).

    Sequence 0 stands for the initial values of a ``Create``.
    """

    # Pushes count from 1. A creator has to hear of this one: only now its buffer is its own again.
    entries: list[tuple[int, int, int, int]]


class States(Message, frozen=True):
    """Optimizer states of a store; one payload per part. ``last`` ends the answer."""

    request: int
    parts: list[StatePart]
    last: bool


ToScheduler = Join | Declare | PushesDensely | BarrierArrive | Numbers | Finished | Leave | Interrupted
"""What a scheduler reacts to, also where rank 0 is the scheduler (pure MPI)."""
_AtBarriers = BarrierAwaits | BarrierRelease | StoresClosed
_FromScheduler = Peers | Placed | PushesRows | _AtBarriers | Stop | PeerGone
_Anywhere = Failure | ClockProbe | ClockAnswer | Ok | StepNorm
_InClient = Announce | Released | Arrived | Ready
_OfKeys = Create | Share | Push | Pull | Resume | Drop
_OfOptimizers = SetOptimizer | AwaitOptimizer | SetHyper | GetStates | PutStates
_FromServer = HyperSet | Missing | KeepValues | Shared | Values | Applied | States
AnyMessage = ToScheduler | _FromScheduler | _Anywhere | _InClient | _OfKeys | _OfOptimizers | _FromServer
"""What a decoder accepts; a message that is missing here can be sent, and fails the receiver's session."""
