"""Which keys a job has, and where: rank 0's declaration of a key decides, the others' must equal it. Pure.

This file must not know of barriers, or of what follows when a process is lost; that is ``state.py``.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import MismatchError, PeerLostError
from kvstore_mpi.records import ITEMSIZES, Key, KeySpec, Mode, NodeId, Role, Shard, parameter_of
from kvstore_mpi.scheduler.roster import RANK_0
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvstore_mpi.scheduler.placement import Placement
    from kvstore_mpi.scheduler.roster import Roster


class _Agreed(NamedTuple):
    """A key as rank 0 declared it."""

    declared: m.Declare
    key_id: int
    shards: list[Shard]


class _Parked(NamedTuple):
    """A declaration that waits for rank 0's."""

    worker: NodeId
    declared: m.Declare
    since: float


class AgreedKeys:
    """The keys that rank 0 has declared, and the declarations of others that wait for rank 0's."""

    def __init__(self, roster: Roster, placement: Placement) -> None:
        """Start without keys.

        Args:
            roster: Names the workers in errors, and says what has become of rank 0.
            placement: Assigns the shards of each key.
        """
        self._roster = roster
        self._placement = placement
        self._keys: dict[tuple[int, Key], _Agreed] = {}
        # Never given twice: servers know by the numbers which keys are gone.
        self._numbers = itertools.count()
        # By name: of thousands of keys that wait, a declaration of rank 0 looks at its own only.
        self._parked: dict[tuple[int, Key], list[_Parked]] = {}
        # By whom first, by the store and the user's name: a worker that pushes rows of a key has a table in
        # its place, so that its pushes and those of one with dense gradients would never meet.
        self._dense: dict[tuple[int, Key], NodeId] = {}
        self._tables: dict[tuple[int, Key], NodeId] = {}
        # Of asynchronous stores, where a worker need not push: one that has the key dense, and only pulls
        # it, would never learn that its value is in the table.
        self._told: set[tuple[int, Key]] = set()
        self._were_loose: bool | None = None  # before a store was closed

    @property
    def are_loose(self) -> bool | None:
        """No round of any key waits for all clients; ``None`` before servers have had one."""
        declared = [key.declared for key in self._keys.values() if key.declared.mode != Mode.CLIENT.value]
        if not declared:
            # Between two stores as in the first one: who was lost there is not missed now.
            return self._were_loose
        return all(key.mode == Mode.ASYNC.value or key.quorum for key in declared)

    def declare(self, sender: NodeId, message: m.Declare, now: float) -> list[Send]:
        """A worker wants a key."""
        name = message.spec.store, parameter_of(message.spec.key)
        told: list[Send] = []
        if name[1] != message.spec.key:  # a table in the place of a key that was dense
            self._tables.setdefault(name, sender)
            if name in self._dense:
                return [_refuse(sender, self._two_kinds(name), message.spec)]
            told = self._tell(sender, name, message.mode)
        elif name in self._told:  # who makes the key after that, as a client that is started again
            told = [Send(sender, m.PushesRows(*name))]
        return [*told, *self._declare(sender, message, now)]

    def _declare(self, sender: NodeId, message: m.Declare, now: float) -> list[Send]:
        agreed = self._keys.get(_name(message.spec))
        if agreed is not None:
            return [self._answer(sender, message, agreed)]
        if sender != RANK_0:
            self._parked.setdefault(_name(message.spec), []).append(_Parked(sender, message, now))
            return self.refuse_parked()
        agreed = self._agree(message)
        waiting = self._parked.pop(_name(message.spec), [])
        answers = [self._answer(parked.worker, parked.declared, agreed) for parked in waiting]
        return [self._answer(sender, message, agreed), *answers]

    def _tell(self, sender: NodeId, name: tuple[int, Key], mode: str) -> list[Send]:
        """Tell the others that somebody pushes rows of a key, if they would not meet in its rounds."""
        if mode != Mode.ASYNC.value or name in self._told:
            return []
        self._told.add(name)
        others = [node for node in self._roster.present if node.role is Role.WORKER and node != sender]
        return [Send(node, m.PushesRows(*name)) for node in others]

    def pushed_densely(self, sender: NodeId, message: m.PushesDensely) -> list[Send]:
        """A worker pushes a dense gradient of a key for the first time."""
        name = message.store, message.key
        self._dense.setdefault(name, sender)
        return [_refuse(sender, self._two_kinds(name), message)] if name in self._tables else []

    def _two_kinds(self, name: tuple[int, Key]) -> MismatchError:
        dense, rows = (self._roster.name(each[name]) for each in (self._dense, self._tables))
        return MismatchError(
            f"key {name[1]!r}: {dense} pushes dense gradients of it, and {rows} row-sparse ones; all "
            "workers must build the same model, with the same sparse_grad"
        )

    def drop(self, workers: Iterable[NodeId]) -> None:
        """These workers are lost: nobody waits for their declarations to be answered."""
        gone = set(workers)
        self._take_parked(lambda parked: parked.worker in gone)

    def refuse_parked(self) -> list[Send]:
        """Refuse what waits for a declaration of rank 0, if that declares nothing more."""
        gone = self._roster.over(RANK_0)
        if gone is None:
            return []
        return [self._never_declared(parked, gone) for parked in self._take_parked(lambda _: True)]

    def refuse_overdue(self, now: float, timeout: float) -> list[Send]:
        """Refuse what rank 0 has not declared within ``timeout`` seconds of another worker."""
        late = self._take_parked(lambda parked: now - parked.since > timeout)
        return [self._undeclared(parked, f"waited {timeout:g} s") for parked in late]

    def _take_parked(self, leaves: Callable[[_Parked], bool]) -> list[_Parked]:
        """Remove the declarations for which ``leaves`` holds, and return them."""
        taken = [parked for waiting in self._parked.values() for parked in waiting if leaves(parked)]
        for parked in taken:
            name = _name(parked.declared.spec)
            self._parked[name].remove(parked)
            if not self._parked[name]:
                del self._parked[name]
        return taken

    def close(self, store: int) -> list[int]:
        """No worker uses a store any more: forget its keys, and return their numbers."""
        self._were_loose = self.are_loose
        gone = [self._keys.pop(name) for name in [*self._keys] if name[0] == store]
        for agreed in gone:
            self._free(agreed)
        for known in (self._dense, self._tables):
            for name in [name for name in known if name[0] == store]:
                del known[name]
        self._told = {name for name in self._told if name[0] != store}
        return [agreed.key_id for agreed in gone]

    def _free(self, agreed: _Agreed) -> None:
        """Let the keys to come have the room of one that is gone."""
        spec = agreed.declared.spec
        if agreed.declared.mode == Mode.CLIENT.value:
            return
        if spec.partitions:
            self._placement.free_pieces(agreed.shards, _piece_bytes(spec))
        else:
            self._placement.free(agreed.shards, ITEMSIZES[spec.dtype])

    def _agree(self, declared: m.Declare) -> _Agreed:
        spec = declared.spec
        num_elements = math.prod(spec.shape)
        if declared.mode == Mode.CLIENT.value:
            # To be cut into slices, or pieces; no server has it.
            shards = [Shard(0, 0, 2 * spec.partitions or num_elements)]
        elif spec.partitions:
            shards = self._placement.place_pieces(spec.partitions, _piece_bytes(spec))
        else:
            shards = self._placement.place(num_elements, ITEMSIZES[spec.dtype], whole=declared.whole)
        agreed = _Agreed(declared, next(self._numbers), shards)
        self._keys[_name(declared.spec)] = agreed
        return agreed

    def _answer(self, worker: NodeId, declared: m.Declare, agreed: _Agreed) -> Send:
        wanted, spec = agreed.declared, declared.spec
        name = parameter_of(spec.key)
        pairs = {"mode": (declared.mode, wanted.mode)}
        for what in ("shape", "dtype", "layout", "partitions", "growth"):
            pairs[what] = (getattr(spec, what), getattr(wanted.spec, what))
        for what, (theirs, ours) in pairs.items():
            if theirs != ours:
                text = (
                    f"key {name!r}: {self._roster.name(worker)} initialises it with {what} "
                    f"{theirs}, but {self._roster.name(RANK_0)} (rank 0) with {what} {ours}; "
                    "all workers must build the same model and create their stores in the same order"
                )
                return _refuse(worker, MismatchError(text), spec)
        return Send(worker, m.Placed(spec.store, spec.key, agreed.key_id, list(agreed.shards)))

    def _never_declared(self, parked: _Parked, gone: m.PeerGone) -> Send:
        """Rank 0 is gone without having declared a key."""
        if gone.orderly:
            return self._undeclared(parked, f"{gone.reason} without it")
        name = parameter_of(parked.declared.spec.key)
        waits = f"key {name!r} of {self._roster.name(parked.worker)} waits for it"
        return _refuse(parked.worker, PeerLostError(f"{gone.reason}; {waits}"), parked.declared.spec)

    def _undeclared(self, parked: _Parked, why: str) -> Send:
        spec = parked.declared.spec
        text = (
            f"key {parameter_of(spec.key)!r} is initialised by {self._roster.name(parked.worker)} but not "
            f"by rank 0: {why}; the sets of keys differ between workers: all must build the same model"
        )
        return _refuse(parked.worker, MismatchError(text), spec)


def _name(spec: KeySpec) -> tuple[int, Key]:
    return spec.store, spec.key


def _piece_bytes(spec: KeySpec) -> int:
    return -(-math.prod(spec.shape) // spec.partitions) * ITEMSIZES[spec.dtype]


def _refuse(worker: NodeId, error: Exception, of: KeySpec | m.PushesDensely) -> Send:
    return Send(worker, m.Failure(type(error).__name__, str(error), of.store, of.key))
