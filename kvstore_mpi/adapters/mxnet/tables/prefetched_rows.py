"""Rows of tables that are fetched before they are asked for: whoever asks then gets what it would without.

They travel at once, while a step is computed. Behind the step's push those travel again that have changed.
Rows that this worker looked up for the step will change with its push, so they travel behind it only. This
file must not know about the engine, or how rows are fetched.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.records import FetchedVersions, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.records import Key

    Array = np.ndarray[Any, Any]
    Fetch = Callable[[Key, Array, FetchedVersions], list[Rows]]

_NO_IDS = np.empty(0, np.int64)


class _Fetched(NamedTuple):
    """Rows that are coming or have come: at first all of these ids, then those that have changed since."""

    ids: Array
    since: FetchedVersions
    parts: list[list[Rows]]


class Found(NamedTuple):
    """What of some rows is coming already.

    Attributes:
        rows: Returns some of those that are coming, once they have come, of which the last that has a row
            counts.
        others: The ids of the rest.
        is_ahead: Rows were wanted before they were asked for, by every rank that wants rows together.
    """

    rows: Callable[[], list[Rows]]
    others: Array
    is_ahead: bool


class PrefetchedRows:
    """The intents of one store, and the rows that are coming for them."""

    def __init__(self, fetch: Fetch, *, together: bool = False) -> None:
        """Start without intents.

        Args:
            fetch: Queues a request for rows behind all that is queued for their table, for those alone that
                have changed if they were fetched with these versions before; returns the list in which
                they will be.
            together: All ranks of a client have the same intents and requests, each of its own rows,
                perhaps none: none is left out.
        """
        self._fetch = fetch
        self._together = together
        self._coming: dict[Key, list[_Fetched]] = {}  # that nobody has asked for yet
        self._late: dict[Key, Array] = {}  # wanted, and to be fetched behind the push to come
        self._given: dict[Key, list[_Fetched]] = {}  # up to date until the next push
        self._used: dict[Key, Array] = {}  # ids of the last lookup, unless a push has followed

    def want(self, key: Key, ids: Array) -> None:
        """Some rows will be asked for next, besides those that were wanted before."""
        coming = self._coming.setdefault(key, [])
        early = _without(ids, [each.ids for each in coming])
        if key in self._used:
            late = np.intersect1d(early, self._used[key], assume_unique=True)
            self._late[key] = np.union1d(self._late.get(key, _NO_IDS), late)
            early = _without(early, [late])
        self._begin(key, early)

    def _begin(self, key: Key, ids: Array) -> None:
        if ids.size or self._together:
            since = FetchedVersions()
            self._coming[key].append(_Fetched(ids, since, [self._fetch(key, ids, since)]))

    def pushed(self, key: Key) -> None:
        """A push is queued: what has come before lacks it."""
        self._used.pop(key, None)
        self._given.pop(key, None)
        self._fetch_again(key)

    def all_have_met(self) -> None:
        """Others may have pushed what rows that have come, or are coming, lack."""
        self._given.clear()
        for key in self._coming:
            self._fetch_again(key)

    def _fetch_again(self, key: Key) -> None:
        """Bring what is coming up to date."""
        coming = self._coming.get(key, [])
        again = [each.ids for each in coming if len(each.parts) > 1]
        self._coming[key] = [each for each in coming if len(each.parts) == 1]
        for each in self._coming[key]:
            each.parts.append(self._fetch(key, each.ids, each.since))
        # Nobody has asked for these since they were brought up to date: whole, or parts would add up.
        for ids in again:
            self._begin(key, ids)
        if key not in self._used and key in self._late:
            self._begin(key, self._late.pop(key))

    def take(self, key: Key, ids: Array) -> Found:
        """Rows are asked for; return what is coming of them."""
        self._used[key] = ids
        self._late.pop(key, None)
        # Kept until the next push: of several devices each asks for its own.
        given = self._coming.pop(key, None) or self._given.get(key, [])
        self._given[key] = given
        found = [(_are_in(each.ids, ids), part) for each in given for part in each.parts]
        others = _without(ids, [each.ids for each in given])
        return Found(partial(_those_of, found, ids), others, is_ahead=bool(given))

    def forget(self, key: Key) -> None:
        """A key is no table any more."""
        for each in (self._coming, self._late, self._given, self._used):
            each.pop(key, None)


def _without(ids: Array, others: Sequence[Array]) -> Array:
    for each in others:
        ids = np.setdiff1d(ids, each, assume_unique=True)
    return ids


def _are_in(some: Array, ids: Array) -> bool:
    return bool(np.isin(some, ids, assume_unique=True).all())


def _those_of(parts: Sequence[tuple[bool, list[Rows]]], ids: Array) -> list[Rows]:
    """Return of some rows, or parts that are wanted whole, those that have one of these ids, in order."""
    found = []
    for all_are, rows in parts:
        for each in rows:
            is_one = slice(None) if all_are else np.isin(each.ids, ids, assume_unique=True)
            found.append(Rows(each.ids[is_one], each.values[is_one]))
    return found
