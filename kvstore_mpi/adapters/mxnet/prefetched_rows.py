"""Rows of tables that are fetched before they are asked for: whoever asks then gets what it would without.

A push between the request and the use may have changed the rows, so they are fetched once more behind it.
While a step is computed, of which the push is still to come, an intent is only noted; the rows travel
behind that push. This file must not know about the engine, or how rows are fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.records import Key

    Array = np.ndarray[Any, Any]


class PrefetchedRows:
    """The intents of one store, and the rows that are coming for them."""

    def __init__(self, fetch: Callable[[Key, Array], list[Rows]]) -> None:
        """Start without intents.

        Args:
            fetch: Queues a request for rows behind all that is queued for their table; returns the list in
                which they will be.
        """
        self._fetch = fetch
        self._wanted: dict[Key, Array] = {}  # ids for which nobody has asked yet
        self._coming: dict[Key, tuple[Array, list[Rows]]] = {}  # as they are until the next push
        self._in_use: set[Key] = set()  # rows were given out, and no push has followed

    def want(self, key: Key, ids: Array) -> None:
        """Some rows will be asked for next, besides those that were wanted before."""
        before = self._wanted.get(key)
        self._wanted[key] = ids if before is None else np.union1d(before, ids)
        if key not in self._in_use:
            self._begin(key)

    def pushed(self, key: Key) -> None:
        """A push is queued: what was fetched before is out of date, and what is wanted may travel."""
        self._in_use.discard(key)
        self._coming.pop(key, None)
        if key in self._wanted:
            self._begin(key)

    def all_have_met(self) -> None:
        """Others may have pushed what rows that have come, or are coming, lack: ask once more."""
        for key in [*self._coming]:
            del self._coming[key]
            if key in self._wanted:
                self._begin(key)

    def _begin(self, key: Key) -> None:
        ids = self._wanted[key]
        self._coming[key] = ids, self._fetch(key, ids)

    def take(self, key: Key, ids: Array) -> tuple[list[Rows], Array]:
        """Rows are asked for: return the list in which some of them will be, and the ids of the others."""
        self._in_use.add(key)
        self._wanted.pop(key, None)
        if key not in self._coming:
            return [], ids
        # Kept until the next push: of several devices each asks for its own.
        known, coming = self._coming[key]
        return coming, np.setdiff1d(ids, known, assume_unique=True)

    def forget(self, key: Key) -> None:
        """A key is no table any more."""
        self._wanted.pop(key, None)
        self._coming.pop(key, None)
        self._in_use.discard(key)


def those_of(parts: Sequence[Rows], ids: Array) -> list[Rows]:
    """Return of some rows those that have one of these ascending ids."""
    found = []
    for part in parts:
        is_one = np.isin(part.ids, ids, assume_unique=True)
        found.append(part if is_one.all() else Rows(part.ids[is_one], part.values[is_one]))
    return found
