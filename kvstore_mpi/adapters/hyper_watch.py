"""Notices that hyper-parameters of the user's optimizer have changed: the servers must be told. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from kvstore_mpi.records import Key
    from kvstore_mpi.server_optimizers import HyperParameters

_NO_MULTIPLIERS = (1.0, 1.0)


class HyperReader(Protocol):
    """Reads the hyper-parameters of a framework's optimizer; what is read often must be cheap."""

    def common(self) -> tuple[Any, ...]:
        """Return what all keys share, for comparison only."""
        ...

    def multipliers(self, key: Key) -> tuple[float, float]:
        """Return the factors on a key's learning rate and weight decay."""
        ...

    def ahead(self, key: Key) -> int:
        """Return by how much the schedule's count is ahead of the own one of a key that is pushed now."""
        ...

    def read(self, keys: Collection[Key], ahead: Mapping[Key, int]) -> HyperParameters:
        """Return all of it, for these keys, with what ``ahead`` has returned last of each."""
        ...


class HyperWatch:
    """Notices, in a few microseconds per push, that hyper-parameters have changed."""

    def __init__(self, reader: HyperReader, keys: Collection[Key]) -> None:
        """Watch an optimizer.

        Args:
            reader: Reads it.
            keys: The store's keys; may grow, and is read whenever the numbers have changed.
        """
        self._reader = reader
        self._keys = keys
        self._common: tuple[Any, ...] = ()
        self._multipliers: dict[Key, tuple[float, float]] = {}
        self._ahead: dict[Key, int] = {}

    def changed(self, *keys: Key, others: Iterable[Key] = ()) -> HyperParameters | None:
        """Return the hyper-parameters if those that matter for pushes of ``keys`` were not returned before.

        The first call always returns them. A multiplier of another key is noticed when that key is pushed.

        Args:
            keys: Are pushed now.
            others: May be pushed before this is called again for them.

        Raises:
            UnsupportedError: The servers cannot follow them.
        """
        reader = self._reader
        common, ahead = reader.common(), {key: reader.ahead(key) for key in keys}
        told = self._multipliers
        same = all(reader.multipliers(key) == told.get(key, _NO_MULTIPLIERS) for key in (*keys, *others))
        same_ahead = all(number == self._ahead.get(key, 0) for key, number in ahead.items())
        if same and same_ahead and common == self._common:
            return None
        self._ahead.update(ahead)
        hyper = reader.read(self._keys, self._ahead)
        self._common = common
        self._multipliers = {each: reader.multipliers(each) for each in self._keys}
        return hyper


class PushedSteps:
    """Divides the pushes of a store into steps that have every key once; asked before each push."""

    def __init__(self) -> None:
        """Start before the first step."""
        self._pushed: set[Key] = set()
        self._left: set[Key] = set()

    def push(self, key: Key, awaited: Callable[[], list[Key]]) -> tuple[list[Key], bool]:
        """Note a push.

        Args:
            key: Which one.
            awaited: Returns the keys that each step has; called when that matters.

        Returns:
            The keys that are as good as pushed from now on, and were not before: at a step's first push all
            of it; and whether nothing of a step was under way.
        """
        if key in self._left:
            self._left.remove(key)
            self._pushed.add(key)
            return [], False
        keys = awaited()
        # One that is pushed again has begun the next step, whatever the one before still lacks.
        if key in keys and (not self._left or key in self._pushed):
            self._pushed, self._left = {key}, {*keys} - {key}
            return keys, True
        # No step has it, or the one that is under way had begun before there was this key.
        self._pushed.add(key)
        return [key], not self._left

    def lacked(self, key: Key) -> set[Key]:
        """Return what the step under way lacks, if this key has been pushed in it."""
        return self._left if key in self._pushed else set()
