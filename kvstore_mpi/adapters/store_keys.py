"""The keys of one store on this worker, and which arrays they take.

Every key has one *staged* array, made by the adapter over the key's exchange buffer: what is pushed is
copied to it, or sent from where it lies, and what has come is copied from it. An array that does not fit is
refused here, at the call: later, on another thread, nobody could say whose it was. Pure.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import OWN, Key


class Staged(Protocol):
    """A framework's array over a key's exchange buffer."""

    shape: tuple[int, ...]
    """Shape of the key."""

    dtype: str
    """NumPy name of its element type."""


_Staged = TypeVar("_Staged", bound=Staged)


class StoreKeys(dict[Key, _Staged]):
    """The staged array of each key, in the order of initialisation."""

    def __init__(self, rank: int, store: int) -> None:
        """Start without keys.

        Args:
            rank: Of this worker, for messages.
            store: Number of the store.
        """
        super().__init__()
        self._rank = rank
        self._store = store

    def known(self, key: Key) -> _Staged:
        """Return what a key has.

        Raises:
            UsageError: The key has not been initialised.
        """
        try:
            return self[key]
        except KeyError:
            raise UsageError(
                f"worker {self._rank}: key {key!r} has not been initialised in store {self._store}; "
                f"call init or broadcast first (it has {len(self)} keys)"
            ) from None

    def check_new(self, key: Key, shape: Any, dtype: str) -> None:
        """Raise where a key cannot be added.

        Raises:
            UsageError: There is one of this name, or those that there are have names of another type, or
                it is no name that can travel.
        """
        if not _can_travel(key):
            raise UsageError(
                f"worker {self._rank}: the key {key!r} cannot travel: a key is a text that UTF-8 has and "
                "that does not begin with a null character, or a whole number of 64 bits"
            )
        if key in self:
            raise UsageError(
                f"worker {self._rank}: duplicate init of key {key!r} of store {self._store}: it is "
                f"{self[key].shape} {self[key].dtype}, and is now given {shape} {dtype}; "
                "a store holds one set of keys, so create one store for each Trainer or Module"
            )
        first = next(iter(self), key)
        if isinstance(key, str) != isinstance(first, str):
            raise UsageError(
                f"worker {self._rank}: mixed key types are not allowed: store {self._store} has the "
                f"key {first!r} and is given {key!r}"
            )

    def check_other(self, key: Key, shape: Any, dtype: str, *, converts: bool) -> None:
        """Raise where a key cannot take an array that has not its shape and dtype.

        Args:
            key: Which one; it has been initialised.
            shape: Of the array.
            dtype: NumPy name of its element type.
            converts: It may be of another floating-point type than the key.
        """
        staged = self[key]
        floats = dtype.startswith("float") and staged.dtype.startswith("float")
        if shape != staged.shape or not (converts and floats):
            raise UsageError(
                f"worker {self._rank}: key {key!r} is {staged.shape} {staged.dtype}, but the array given "
                f"for it is {shape} {dtype}"
            )

    def check_sum(self, key: Key) -> None:
        """Raise where the values of a key cannot be added up."""
        if self[key].dtype == "bool":
            raise UsageError(
                f"worker {self._rank}: key {key!r} is bool and has no sum; it can be initialised, "
                "broadcast and pulled; push it as int32"
            )


def _can_travel(key: Key) -> bool:
    if isinstance(key, int):
        return -(2**63) <= key < 2**63
    return not (key.startswith(OWN) or any("\ud800" <= each <= "\udfff" for each in key))
