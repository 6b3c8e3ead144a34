"""What the ranks of a client do together, in which order, and how they end: one schedule for all.

The members tell the leader which operations their programs have come to. What all have come to the leader
announces by priority, and every rank carries it out at once, in that order: who has begun with a collective
waits for no program of another rank, wherever that waits for values itself. Pure.
This file must not know when a collective is possible, or what it does.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.p3.priority_queue import PriorityQueue
from kvstore_mpi.records import Announced, parameter_of
from kvstore_mpi.tensor_collectives.choice import PAIR
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.collectives import REDUCED, WANTED, Collective
from kvstore_mpi.worker.instructions import Collect, Instructions
from kvstore_mpi.worker.records import KeyState, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvstore_mpi.records import NodeId

COLLECTIVE_BYTES = 1 << 20
"""Neighbouring slices share a collective up to this size, as they share a message to a server."""

AHEAD_BYTES = 4 << 20
"""Bytes that are announced before the first of them have been carried out: what is announced cannot be
overtaken, and the MPI threads shall not wait for announcements."""

BUCKET_BYTES = 2 << 20
"""Collectives of one kind that follow each other are carried out together up to this size."""

BUCKETS_AHEAD = 2
"""With two buckets under way the MPI threads have work, and the next one may fill up meanwhile. Nothing
waits for longer than that: there is no time limit."""

ALONE_BYTES = 64 << 10
"""Larger sums are not copied together (``group.STAGED_BYTES``), and begin by themselves."""

OVERLAPPING = 16
"""As many buckets ahead, and sums under way, where they may overlap, as they do among ranks that have a
host each (``MpiThread``): the message that announces a sum then leaves before the bytes of those before
it, and does not wait behind them. And a sum is up to two messages, one after the other: while one is on
its way, the link carries those of other sums. With 2 MB of dense keys in a step beside rows of 26 tables, 4
hosts and 200 Mbit/s, 16 took 174 ms and 4 took 180 (medians of three jobs of each in turn of
``benchmarks/sparse_step.py --models ctr --variants hybrid``, before this was committed; 173 - 176 and
178 - 183)."""


def overlapping(hosts: Sequence[Sequence[int]], *, all_push: bool) -> frozenset[Collective]:
    """Return which collectives of a client are begun while others are under way.

    Args:
        hosts: Its ranks on each host.
        all_push: All its ranks push slices, and not one for all.
    """
    # Where some ranks share a host, they go through its memory, a bucket at a time.
    if len(hosts) == 1 or any(len(host) > 1 for host in hosts):
        return frozenset()
    # What goes to one rank or comes from one goes directly: of more than two ranks, one that pushes for all
    # would send and get everything several times, where the library's trees do with twice.
    if len(hosts) > PAIR and not all_push:
        return frozenset((Collective.ALLREDUCE,))
    return frozenset((Collective.ALLREDUCE, *REDUCED, Collective.SHARE, Collective.SKIP))


class _Schedule:
    """The buckets that have been announced, and that the MPI thread of this rank has not carried out."""

    def __init__(self, hosts: Sequence[Sequence[int]], *, all_push: bool) -> None:
        """Start without any; arguments as of ``overlapping``."""
        self._overlapping = overlapping(hosts, all_push=all_push)
        self._buckets_ahead = OVERLAPPING if self._overlapping else BUCKETS_AHEAD
        # Bytes and not numbers of collectives: the MPI thread reports a reduction slice by slice, so that
        # one that was announced ends in several steps.
        self._announced_bytes = 0
        self._ended_bytes = 0
        self._ends: deque[int] = deque()  # bytes announced up to the end of each bucket

    def _add(self, num_bytes: int, *, ends: bool) -> None:
        """Note what has been announced; ``ends``: it is all of a bucket, or the last of it."""
        self._announced_bytes += num_bytes
        if ends:
            self._ends.append(self._announced_bytes)

    def ended(self, done: Collect) -> None:
        """Note that a collective that was announced, or a part of it, has ended here."""
        # A bucket has ended when as many bytes have as were announced up to its end, because parts of
        # several are reported in between. One that never ended here would keep small keys waiting for ever:
        # nothing is announced unasked, and of nothing the leader is told, once there are enough.
        self._ended_bytes += done.key.num_bytes(done.first, done.last)
        while self._ends and self._ends[0] <= self._ended_bytes:
            self._ends.popleft()

    @property
    def _has_enough(self) -> bool:
        """The MPI thread has enough to do."""
        return len(self._ends) >= self._buckets_ahead


class LeaderSchedule(_Schedule):
    """What the leader has to announce to its client: by priority, a few ahead of the MPI threads."""

    def __init__(
        self,
        members: Iterable[NodeId],
        hosts: Sequence[Sequence[int]],
        *,
        by_priority: bool,
        all_push: bool = False,
    ) -> None:
        """Start with nothing to announce.

        Args:
            members: The client's ranks but the leader.
            hosts: The ranks on each host.
            by_priority: Otherwise first come, first served.
            all_push: All ranks push slices, and not one for all.
        """
        super().__init__(hosts, all_push=all_push)
        self._members = list(members)
        self._ready: dict[int, set[NodeId]] = {}  # members, by the number of a key
        self._waiting: dict[int, tuple[Operation, Collect]] = {}  # for members; likewise
        self._queue: PriorityQueue[Collect] = PriorityQueue(by_priority=by_priority)
        self._waiting_bytes = 0

    def begin(self, key: KeyState, operation: Operation, what: Collective) -> None:
        """The leader's own program has come to an operation, for which the ranks meet first in ``what``."""
        # Its place in the queue it gets when all are ready: until then it must hold up nothing there.
        first = Collect(what, key, operation.sequence, 0, len(key.slices))
        self._waiting[key.key_id] = operation, first
        self._put_if_all_are_ready(key.key_id)

    def ready(self, member: NodeId, key_ids: Iterable[int]) -> None:
        """A member's program has come to the next operation of some keys."""
        # A set will do: a member comes to the next operation of a key when the one before has ended there,
        # for which the leader has announced it, and with that forgotten who was ready.
        for key_id in key_ids:
            self._ready.setdefault(key_id, set()).add(member)
            self._put_if_all_are_ready(key_id)

    def late(self, key: KeyState) -> list[NodeId]:
        """Return the members that have not come to the operation of a key that the leader has come to.

        Any thread may ask.
        """
        # Without a lock: at worst one is named that has come in this moment.
        if key.key_id not in self._waiting:
            return []
        ready = self._ready.get(key.key_id, set())
        return [member for member in self._members if member not in ready]

    def early(self) -> dict[int, set[NodeId]]:
        """Return the members that have come to an operation to which the leader has not, by key."""
        return {key_id: who for key_id, who in self._ready.items() if key_id not in self._waiting}

    def _put_if_all_are_ready(self, key_id: int) -> None:
        # Not before: a program may wait for a value before it comes to the next operation, and would never
        # come to it once the others wait in a collective of that one.
        if key_id in self._waiting and len(self._ready.get(key_id, ())) == len(self._members):
            self._ready.pop(key_id, None)
            operation, first = self._waiting.pop(key_id)
            self.put(first.key, operation, first.operation, range(first.last))

    def put(self, key: KeyState, operation: Operation, what: Collective, positions: range) -> None:
        """Queue a collective on some slices, cut into runs that others may overtake."""
        # A collective that has begun cannot be interrupted: a whole layer of 100 MB in one would hold up
        # the most urgent slice for as long as all of it takes, which is what slicing is there to prevent
        # (P3).
        most = max(1, COLLECTIVE_BYTES // max(1, key.slice_bytes))
        for first in range(positions.start, positions.stop, most):
            last = min(first + most, positions.stop)
            num_bytes = key.num_bytes(first, last)
            self._queue.put(
                operation.priority, num_bytes, Collect(what, key, operation.sequence, first, last)
            )
            self._waiting_bytes += num_bytes

    def next(self) -> Instructions:
        """Announce, and carry out here as well, as many as keep the MPI threads at work."""
        chosen: list[Collect] = []
        entries: list[Announced] = []
        while self._queue and self._wants_more():
            bucket = self._next_bucket()
            for collect, together in zip(bucket, self._together(bucket)):
                what, key, sequence, first, last, _ = collect
                entries.append(Announced(int(what), key.key_id, sequence, first, last, together))
                chosen.append(collect._replace(together=together))
        if not chosen:
            return []
        # To the members before it is carried out here: a leader that is in the collective first only waits
        # there for them.
        return [*(Send(member, m.Announce(entries)) for member in self._members), *chosen]

    def _together(self, bucket: Sequence[Collect]) -> list[int]:
        """Return how many of a bucket can be carried out together, from each on."""
        counts: list[int] = []
        for collect in reversed(bucket):
            follow = counts[-1] if counts else 0
            counts.append(0 if self._is_alone(collect) else 1 + follow)
        return [max(1, count) for count in reversed(counts)]

    def _is_alone(self, collect: Collect) -> bool:
        """Return whether one begins by itself, before others have ended."""
        # Nothing is lost: a sum of this size is a call of its own anyway.
        key = collect.key
        if key.table is not None or collect.operation not in self._overlapping:
            return False
        return key.num_bytes(collect.first, collect.last) > ALONE_BYTES

    def _wants_more(self) -> bool:
        """Return whether the next bucket shall be announced: it is full, or there is little to do."""
        # A bucket that is full costs nothing to send. One that is not is worth waiting for only while the
        # MPI threads have something else to do: a single small key must not wait for company that never
        # comes.
        full = self._waiting_bytes >= BUCKET_BYTES
        ahead_bytes = self._announced_bytes - self._ended_bytes
        return ahead_bytes < AHEAD_BYTES and (full or not self._has_enough)

    def _next_bucket(self) -> list[Collect]:
        """Take the most urgent collective, and those after it that can be carried out with it."""
        bucket: list[Collect] = []
        total = 0
        while self._queue:
            num_bytes, collect = self._queue.peek()
            # Only what follows by priority: looking further for more of one kind would let it overtake. A
            # single one may be larger than a bucket, or it would never leave.
            if bucket and (
                collect.operation is not bucket[0].operation or total + num_bytes > BUCKET_BYTES
            ):
                break
            bucket.append(self._queue.pop())
            total += num_bytes
        self._waiting_bytes -= total
        self._add(total, ends=True)
        return bucket


class MemberSchedule(_Schedule):
    """The collectives of one member: what it is ready for, and what the leader has announced.

    Attributes:
        begun: Slices that it has begun to reduce, share or push, and that have not ended.
    """

    def __init__(self, me: str, leader: NodeId, hosts: Sequence[Sequence[int]], *, all_push: bool) -> None:
        """Start without any; ``me`` names the member in errors, the rest is as of ``LeaderSchedule``."""
        super().__init__(hosts, all_push=all_push)
        self._me = me
        self._leader = leader
        self._ready: list[int] = []  # numbers of keys, of which the leader has not been told yet
        self.begun = 0

    def is_ready(self, key: KeyState) -> None:
        """This rank's program has come to an operation of a key for which the ranks meet."""
        self._ready.append(key.key_id)

    def messages(self) -> list[Send]:
        """Tell the leader, at the end of a pass of the I/O loop, what this rank is ready for."""
        # With enough under way the leader would not announce it. That ends without any program, as all
        # ranks are ready for it: so nobody waits for this for ever, and more of it goes in one message.
        # More messages of more ranks would find the leader busy with these.
        if not self._ready or self._has_enough:
            return []
        ready, self._ready = self._ready, []
        return [Send(self._leader, m.Ready(ready))]

    def begin(self, entry: Announced, keys: Mapping[int, KeyState]) -> Collect:
        """Return what the leader has announced.

        Args:
            entry: The announcement.
            keys: Those that are known here, by number.

        Raises:
            MismatchError: The leader has called another operation on the key.
        """
        code, key_id, sequence, first, last, together = entry
        collective = Collective(code)
        key = keys[key_id]
        # The leader has been told of it, and it cannot end before this. It may be another one than the
        # leader's: each rank only says that it is ready, since to say for what would tell nobody anything
        # as long as programs are right.
        operation = key.queue[0]
        # By the kind and by the number: lookups and pushes of a table are numbered apart. An error now,
        # which names the key and both calls, is worth more than sums of gradients of two different steps.
        if operation.kind not in WANTED[collective] or operation.sequence != sequence:
            raise self._disagreement(key, operation, collective, sequence)
        # Counted until they have ended: while any has not, that the leader has finished is no reason to
        # fail this rank (``operations.without_partner``), because what it waits for is on its way.
        self.begun += last - first
        # A large sum that begins by itself counts here for a bucket: this rank then has enough to do a
        # little sooner than its leader thinks, and only says later what it is ready for.
        self._add(key.num_bytes(first, last), ends=together == 1)
        return Collect(collective, key, sequence, first, last, together)

    def _disagreement(
        self, key: KeyState, operation: Operation, collective: Collective, sequence: int
    ) -> MismatchError:
        theirs = "/".join(kind.value for kind in WANTED[collective])
        return MismatchError(
            f"key {parameter_of(key.spec.key)!r}: {self._me} called {operation.kind.value} number "
            f"{operation.sequence} where the leader of its client called {theirs} number {sequence}; all "
            "workers of a client must call the same operations on a key in the same order"
        )
