"""Notices that hyper-parameters of the user's optimizer have changed: the servers must be told. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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

    def changed(self, key: Key) -> HyperParameters | None:
        """Return the hyper-parameters if those that matter for a push of ``key`` were not returned before.

        The first call always returns them. A multiplier of another key is noticed when that key is pushed.

        Raises:
            UnsupportedError: The servers cannot follow them.
        """
        reader = self._reader
        common, ahead = reader.common(), reader.ahead(key)
        same_key = reader.multipliers(key) == self._multipliers.get(key, _NO_MULTIPLIERS)
        if same_key and ahead == self._ahead.get(key, 0) and common == self._common:
            return None
        self._ahead[key] = ahead
        hyper = reader.read(self._keys, self._ahead)
        self._common = common
        self._multipliers = {each: reader.multipliers(each) for each in self._keys}
        return hyper
