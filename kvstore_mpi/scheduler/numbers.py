"""Whether workers have the same optimizer: the order of its parameters, and its numbers by step. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.records import Key, Role
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from kvstore_mpi.records import NodeId, OptimizerNumbers
    from kvstore_mpi.scheduler.roster import Roster

_Where = tuple[int, int, Key, int]
"""Store, which of its optimizers, key and step."""


class _First(NamedTuple):
    """Who has come to a step first, and with what."""

    worker: NodeId
    numbers: OptimizerNumbers


class SameNumbers:
    """What workers have told of their optimizers, until all of them have.

    Attributes:
        error: What the first that differed have ended the job with.
    """

    def __init__(self, roster: Roster, num_workers: int) -> None:
        """Start with nothing told; the roster names the workers in errors."""
        self.error: MismatchError | None = None
        self._roster = roster
        self._num_workers = num_workers
        self._first: dict[_Where, _First] = {}
        self._told: dict[_Where, int] = {}

    def compare(self, sender: NodeId, numbers: OptimizerNumbers) -> list[Send]:
        """A worker tells its numbers; end all if they differ from those of who has told them first."""
        where = numbers.store, numbers.given, numbers.key, numbers.step
        first = self._first.setdefault(where, _First(sender, numbers))
        self._told[where] = self._told.get(where, 0) + 1
        if self._told[where] == self._num_workers:
            del self._first[where], self._told[where]
        if numbers.digest == first.numbers.digest:
            return []
        self.error = self.error or MismatchError(self._difference(sender, numbers, first))
        failure = m.Failure(MismatchError.__name__, str(self.error))
        # All, and not one that may be right: the others would wait for it, and be blamed for that.
        return [Send(node, failure) for node in self._roster.present if node.role is Role.WORKER]

    def _difference(self, sender: NodeId, numbers: OptimizerNumbers, first: _First) -> str:
        own, other = self._roster.name(sender), self._roster.name(first.worker)
        theirs = first.numbers.shown
        if numbers.step == 0:
            return (
                f"the Trainers of {own} and {other} have the same parameters in different orders, so "
                f"that one key is two layers: they begin with {', '.join(numbers.shown)} and "
                f"{', '.join(theirs)}. A Trainer sorts names as text, and MXNet counts layers in them: "
                "make the same layers in the same order on all workers, or give those of the net a prefix"
            )
        differ = [
            f"{name} {value:g} and {theirs[name]:g}"
            for name, value in numbers.shown.items()
            if theirs.get(name, value) != value
        ]
        return (
            f"the optimizers of {own} and {other} have had other numbers in their first {numbers.step} "
            f"steps ({', '.join(differ) or 'rate, wd and rescale_grad are equal by now'}), so that weights "
            "differ: where workers update, all must have the same optimizer, learning rate, multipliers "
            "and batch size in each step, the last of an epoch, too"
        )
