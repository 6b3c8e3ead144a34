"""The seams of the system: what the core asks of transports, communicators and optimizers.

Implementations live in ``transport/``, ``comm/`` and ``server_optimizers/``; only ``node.py`` chooses
between them. This file must not import any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kvstore_mpi.sums_interface import BeginsSums

if TYPE_CHECKING:
    import numpy as np

    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.records import Key, OptimizerNumbers

    Array = np.ndarray[Any, Any]

Buffer = bytes | bytearray | memoryview
Link = Hashable  # names one connection of a transport; it changes when the peer reconnects


class Clock(Protocol):
    """Monotonic time; only differences mean anything."""

    def __call__(self) -> float:
        """Return the time in seconds."""
        ...


class Transport(Protocol):
    """Moves whole multipart messages between processes; may lose, never reorders within a link.

    Owned by one thread; only ``wake`` may be called by others. ``send`` never blocks; what it cannot hand
    over at once may leave only while ``receive`` waits. Buffers given to ``send`` must stay unchanged until
    the peer's acknowledgement says that they have arrived.
    """

    def screen(self, proves: Callable[[memoryview], bool], secret: bytes = b"") -> None:
        """Hold a connection to the size of a handshake until it has shown that it is of the job.

        Args:
            proves: Tells whether the first frame of a message shows that.
            secret: Of the job; a transport that encrypts makes its keys of it.
        """
        ...

    def receive_into(self, place: Callable[[memoryview, int], memoryview | None]) -> None:
        """Write large payloads where they belong, as they come; call it before ``bind`` and ``connect``.

        Args:
            place: Asked when a payload has begun to come, with the first frame of its message and its
                number; returns memory of its size, or ``None`` for memory of its own.
        """
        ...

    def bind(self, interface: str) -> list[str]:
        """Listen on a port that the system chooses; return the addresses, best first."""
        ...

    def connect(self, addresses: Sequence[str]) -> Link:
        """Start to connect to a peer that listens on these addresses; the best usable one is taken."""
        ...

    def send(self, link: Link, frames: Sequence[Buffer]) -> None:
        """Send one message, or drop it when the link is gone or full."""
        ...

    def receive(self, timeout: float | None) -> list[tuple[Link, list[memoryview]]]:
        """Wait for messages, a wake-up or the timeout (seconds; ``None`` waits for ever)."""
        ...

    def wake(self) -> None:
        """Make a waiting ``receive`` return; the one method that any thread may call."""
        ...

    def close(self, linger: float) -> None:
        """Release everything; what is still queued is given ``linger`` seconds to leave."""
        ...


class Communicator(BeginsSums, Protocol):
    """The ordered ranks of one client and their collectives; all calls come from one thread."""

    rank: int
    size: int

    def allreduce(self, array: np.ndarray[Any, Any]) -> None:
        """Sum a contiguous 1-D array over all ranks, in place, in a fixed order."""
        ...

    def prepare_allreduce(self, array: np.ndarray[Any, Any]) -> Callable[[], None]:
        """Return ``allreduce`` of this array as a call to repeat; what can be done once is done."""
        ...

    def reduce(self, array: np.ndarray[Any, Any], root: int) -> None:
        """Sum a contiguous 1-D array over all ranks into ``root``'s; in place, fixed order.

        On the other ranks the array keeps its values.
        """
        ...

    def broadcast(self, array: np.ndarray[Any, Any], root: int) -> None:
        """Overwrite a contiguous 1-D array with ``root``'s."""
        ...

    def minimum(self, number: int) -> int:
        """Return the least of all ranks' numbers."""
        ...

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """Return ``root``'s bytes on every rank; for the start of a job, never on the hot path."""
        ...

    def exchange(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """Send contiguous 1-D arrays to ranks and fill others from ranks, all at once; wait for all.

        Messages between two ranks arrive in order; the sizes must agree.
        """
        ...

    def library(self) -> str:
        """Return what the MPI library says of itself, its name first; nothing where there is none."""
        ...

    def barrier(self, ranks: tuple[int, ...]) -> None:
        """Wait until all these ranks, the own one among them, have called this with the same ones."""
        ...

    def hosts(self) -> list[list[int]]:
        """Return the ranks of each host, in order; called by all ranks."""
        ...

    def local_rank(self) -> int:
        """Return this rank's number among those of its host; called by all ranks."""
        ...

    def close(self) -> None:
        """Free the communicator."""
        ...


State = Any
"""Optimizer state of one slice: ``None`` or a tuple of arrays of the slice's length."""


class ServerOptimizer(Protocol):
    """An update rule as a pair of functions on NumPy arrays."""

    def bind(self, key: int | str, shape: tuple[int, ...]) -> ServerOptimizer:
        """Return the optimizer for one key, whose arrays come flat; element-wise ones need nothing."""
        ...

    def init(self, weight: np.ndarray[Any, Any]) -> State:
        """Make the state for a weight: a tuple of arrays, possibly empty."""
        ...

    def update(
        self,
        weight: Array,
        gradient: Array,
        state: State,
        hyper: Hyper,
        count: int,
        *,
        origin: Origin = ...,
    ) -> None:
        """Update ``weight`` and ``state`` in place; ``gradient`` may be used as scratch memory."""
        ...


class Origin(Protocol):
    """Where the pushed arrays of one update come from."""

    @property
    def contributions(self) -> int:
        """Number of clients whose arrays were summed."""
        ...

    @property
    def staleness(self) -> int:
        """Updates of the weight since the client was last given it."""
        ...

    @property
    def base(self) -> np.ndarray[Any, Any] | None:
        """What the client was last given, or ``None`` if that is the weight as it is now."""
        ...


class Hyper(Protocol):
    """The numbers of one update that may change from step to step."""

    @property
    def lr(self) -> float:
        """Learning rate, schedule and multiplier of the key applied."""
        ...

    @property
    def wd(self) -> float:
        """Weight decay, multiplier of the key applied."""
        ...

    @property
    def rescale_grad(self) -> float:
        """Factor on the gradient, before clipping."""
        ...

    @property
    def clip_gradient(self) -> float | None:
        """Bound on the gradient's elements, or ``None``."""
        ...


Done = Callable[[BaseException | None], None]
"""Called once when an operation has ended: with ``None``, or with the error that ended it.

``errors.SkippedError`` is no failure: an exchange of parameters has passed by a server that is down.
"""


class KVWorker(Protocol):
    """What an adapter for a framework needs: the framework-neutral worker.

    Every key has one *exchange buffer*, given at ``init`` and used for everything that travels: a push
    sends its content, a pull fills it, a pushpull does both (and may send another array instead). It is
    the worker's from the call until ``done``, else the caller's. Calls return at once, may come from any
    thread, and operations on one key take effect in the order of the calls.
    """

    rank: int
    num_workers: int
    local_rank: int
    client: int
    num_clients: int
    mpi_rank: int
    mpi_size: int
    client_hosts: int
    num_servers: int
    gpu_kernels: bool
    model_rank: int
    model_parallel: int
    dense: str
    routes: str
    has_snapshots: bool
    takes_up: frozenset[str]  # modes in which servers may have later values than this worker gives

    @property
    def step_timeout(self) -> float:
        """Seconds that an operation may take."""
        ...

    def open_store(self, mode: str) -> int:
        """Open the next store; all workers open theirs in the same order.

        The mode is ``sync``, ``async`` or ``client``. In the last the workers of a client sum among
        themselves, as all do without servers.
        """
        ...

    def close_store(self, store: int, *, settled: bool = False) -> None:
        """Give up a store and its memory, here and on servers; waits until all workers have called this.

        What is under way ends first, and no thread begins more of it. Then calls about it raise.
        """
        ...

    def exchange_buffer(self, size: int, dtype: str) -> np.ndarray[Any, Any]:
        """Allocate a 1-D exchange buffer, aligned to a cache line; one of 256 KB or more to a page."""
        ...

    def init(
        self,
        store: int,
        key: Key,
        shape: tuple[int, ...],
        buffer: Array,
        done: Done,
        *,
        scratch: bool = False,
    ) -> None:
        """Create a key; when done, the buffer has rank 0's value. Snapshots lack ``scratch`` ones."""
        ...

    def push(self, store: int, key: Key, priority: int, done: Done, arrived: Done | None = None) -> None:
        """Add the buffer into the key's sum over workers; afterwards the buffer's content is undefined.

        Without servers (pure MPI) the buffer holds the sum afterwards, and that is the key's value.

        Args:
            store: Number of the store.
            key: Which one.
            priority: Larger goes first.
            done: See ``Done``.
            arrived: The key's new value is wanted as well, as by ``pushpull``; called with ``None`` before
                ``done`` when the buffer holds it. The first rank of a client (``mpi_rank`` 0) decides for
                all of it: of a key on servers it always gets what it wants, and other ranks get what the
                first one has wanted. Not under a rule that takes parameters.
        """
        ...

    def pull(self, store: int, key: int | str, priority: int, done: Done) -> None:
        """Fill the buffer with the key's value, which includes this worker's earlier pushes.

        Without servers the buffer is left as the last operation left it.
        """
        ...

    def pushpull(
        self, store: int, key: Key, priority: int, done: Done, source: Array | None = None
    ) -> None:
        """Push the buffer, or ``source`` instead of it, then fill it with the new value, as one request.

        ``source`` is contiguous, of the buffer's length and dtype, and must not change until ``done``; it
        keeps alive whatever owns its memory.
        """
        ...

    def sends_source(self, store: int, key: int | str) -> bool:
        """Return whether parts of the key's ``source`` would be sent from where they lie, not copied."""
        ...

    def travelled(self, store: int, key: Key) -> float | None:
        """Return the bytes of values that this client and the servers exchange for a dense key in a step.

        Counted from its first push on, by rank 0 of the client, from the part that this rank pushes;
        ``None`` where nothing is counted. Values that servers share with a worker count, too.
        """
        ...

    def stats(self) -> dict[str, float]:
        """Return this process's numbers as they are now; ``metrics.counters.COUNTERS`` explains them."""
        ...

    def set_optimizer(self, store: int, spec: dict[str, Any]) -> dict[str, Any]:
        """Give the servers of a store their update rule; waits until all of them have it.

        Rank 0's counts. Under a rule that takes parameters, a push is an exchange with the center: the
        buffers of a client's ranks are averaged, not summed, and a pushpull is answered with the center
        before or after its update, as the rule says. All ranks of a client then pull together.

        Returns:
            The spec that counts.
        """
        ...

    def set_hyper(self, store: int, hyper: dict[str, Any]) -> None:
        """Change hyper-parameters of the update rule, from this worker's next push on (rank 0 only).

        Earlier pushes must have ended: one that has not left yet may be updated with the new numbers.
        """
        ...

    def optimizer_states(self, store: int, *, arrays: bool = True) -> dict[int | str, Any]:
        """Fetch the servers' optimizer states: key -> (update count, list of ``arrays`` or none); waits."""
        ...

    def load_optimizer_states(self, store: int, states: dict[int | str, Any]) -> None:
        """Replace some keys' states on the servers (rank 0 only); waits until all servers have them."""
        ...

    def barrier(self, *, settled: bool = False) -> None:
        """Wait until all workers of all clients have called this.

        Args:
            settled: The caller has let all operations of this worker end, and begins none on any thread
                until this returns. Whoever then pushes more often than it is told so at once, instead of
                when a deadline runs out. All workers say so, or none.
        """
        ...

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every operation so far has ended."""
        ...

    def note_numbers(self, numbers: OptimizerNumbers) -> None:
        """Keep what an own optimizer has had so far until ``tell_numbers``, a barrier or ``close``."""

    def tell_numbers(self) -> None:
        """Tell what has been noted since; if others differ, all get a ``MismatchError``; never waits."""

    def interrupt(self, reason: str, error: KVStoreError | None = None) -> None:
        """End everything that is pending with an error, here and wherever this worker is waited for.

        Args:
            reason: What has happened to this worker, for the others.
            error: What it ends with here; if not given, this process has been told to end.
        """
        ...

    def failure(self) -> BaseException | None:
        """Return the error that ended this worker's communication, if any."""
        ...

    def close(self) -> None:
        """Leave the job in order: drain, tell the others, stop the threads. Safe to call twice."""
        ...
