"""The tables of a worker as its callers name them: how each is cut, and what an operation on it sends.

In the callers' threads; what the I/O thread knows of a table is in ``records.KeyState``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.hybrid.partitions import partitions_problem, planned_partitions
from kvstore_mpi.records import name_of_table
from kvstore_mpi.values.coding import RAW, ROW_CODINGS
from kvstore_mpi.values.row_init import check_init
from kvstore_mpi.values.row_sparse import BY_MODULUS, BY_RANGE, PushedRows, RowSparse, WantedRows
from kvstore_mpi.values.row_table import check_retention

if TYPE_CHECKING:
    from collections.abc import Container

    from kvstore_mpi.records import FetchedVersions, Growth, Key, KeySpec, Rows

    Array = np.ndarray[Any, Any]

_LAYOUTS = {"mod": BY_MODULUS, "range": BY_RANGE}


class Tables:
    """The tables of one worker."""

    def __init__(
        self, rank: int, num_servers: int, dense: Container[tuple[int, Key]], planned: int = 0
    ) -> None:
        """Start without tables.

        Args:
            rank: Of the worker, for errors.
            num_servers: Of the job.
            dense: The keys that are none, by store and name.
            planned: Pieces of tables of which callers do not say it, as of ``planned_partitions``.
        """
        self._rank = rank
        self._num_servers = num_servers
        self._dense = dense
        self._planned = planned
        # The name among all processes beside the caller's: a key that was dense is known to servers
        # already, and may become a table only under another name.
        self._tables: dict[tuple[int, Key], tuple[Key, RowSparse]] = {}
        self._local: set[tuple[int, Key]] = set()  # those on the workers only
        self._numbers: dict[tuple[int, Key], int] = {}  # of the names that a key's tables have had
        self._former: dict[tuple[int, Key], Key] = {}  # names of tables that were cut anew
        self._codings: dict[int, int] = {}  # by stores

    def add(
        self,
        spec: KeySpec,
        value: Array | None,
        partitions: int,
        by: str,
        *,
        local: bool,
        anew: bool = False,
    ) -> KeySpec:
        """Note a new table and return what it is for all workers.

        A dense key that was not pushed may become a table; both are known to the servers then, the table
        under a name of its own.

        Args:
            spec: Store, name, shape and type.
            value: The initial table, if this worker has it.
            partitions: Pieces to cut it into; 0 leaves it to ``hybrid.partitions.planned_partitions``.
            by: ``mod`` or ``range``.
            local: It is on the workers only.
            anew: It takes the place of the table of this name, which is kept until ``release``.

        Raises:
            UsageError: The table is known, cannot be cut so, or the value is no such table.
        """
        # Everything is checked before anything is noted: a caller that corrects its call may repeat it.
        name = (spec.store, spec.key)
        if anew != (name in self._tables):
            if anew:
                raise UsageError(f"{spec} of worker {self._rank} is no table that could be cut anew")
            raise UsageError(f"duplicate init of {spec} by worker {self._rank}: it was initialised before")
        problem = self._problem_of(spec, value, partitions, by, local=local)
        if problem:
            raise UsageError(f"{spec} of worker {self._rank}: {problem}")
        # Nothing travels to servers, so that there is nothing to divide: collectives go over all rows.
        if local:
            partitions = 1
            self._local.add(name)
        elif spec.growth is not None:
            # By servers and not by bytes: of its rows nobody knows how many there will be.
            partitions = partitions or min(spec.shape[0], self._num_servers)
        elif not partitions:
            shape = spec.shape[0], _row_bytes(spec), self._num_servers
            partitions = planned_partitions(self._planned, *shape)
        if anew:
            self._former[name] = self._tables[name][0]
        # All processes have met the names before, and what they remember of those would fit no more.
        number = self._numbers.get(name, 0 if name in self._dense else -1) + 1
        self._numbers[name] = number
        # The first one has the name as it is, unless a dense key has had it before.
        known = name_of_table(spec.key, number) if number else spec.key
        spec = replace(spec, key=known, layout=_LAYOUTS[by], partitions=partitions)
        if spec.growth is not None and partitions % self._num_servers == 0:
            # So that rows stay on their servers when the table is cut anew: no worker has them all.
            spec = replace(spec, homes=self._num_servers)
        # From now on this is what calls mean; operations under way on the former one have its layout with
        # them.
        self._tables[name] = (known, RowSparse(spec))
        return spec

    def take_coding(self, store: int, number: int) -> None:
        """From now on rows of a store's tables travel in a coding where that is shorter.

        Raises:
            UsageError: A table has elements that are not to be rounded.
        """
        for (of, key), (_, layout) in self._tables.items():
            # Tables on the workers only are left out: their rows go to no server, and stay exact.
            problem = _problem_of_coding(number, layout.dtype)
            if problem and of == store and (of, key) not in self._local:
                raise UsageError(f"key {key!r} of worker {self._rank}: {problem}")
        # After all have been looked at: an optimizer that is refused must not decide how tables travel.
        self._codings[store] = number

    def release(self, store: int, key: Key) -> Key:
        """Forget what a table was before it was cut anew, or the table if it was not.

        Returns:
            Its name among all processes.

        Raises:
            UsageError: There is no such table.
        """
        # The one before, if there is one: the caller's name is the new table's already.
        known = self._former.pop((store, key), None)
        if known is None:
            known = self.name_of(store, key)
            del self._tables[store, key]
        return known

    def close(self, store: int) -> None:
        """No worker uses a store any more: forget its tables."""
        # With the numbers of their names: the next store has another number, and no name in common.
        for known in (self._tables, self._numbers, self._former):
            for name in [name for name in known if name[0] == store]:
                del known[name]
        self._local = {name for name in self._local if name[0] != store}
        self._codings.pop(store, None)

    def _problem_of(
        self, spec: KeySpec, value: Array | None, partitions: int, by: str, *, local: bool
    ) -> str:
        """Return why there can be no such table; nothing if there can."""
        # In the user's call, where the mistake is; a server that refused it could only end the job.
        rows = spec.shape[0] if spec.shape else 0
        if len(spec.shape) < 2 or not rows:  # noqa: PLR2004
            return "a table has one row at least, and its rows are the first of two or more dimensions"
        problem = ""
        if by not in _LAYOUTS:
            problem = f"it can be cut by {' or '.join(map(repr, _LAYOUTS))}, not by {by!r}"
        elif wrong := partitions_problem(partitions, rows):
            problem = wrong
        elif spec.growth is not None:
            # With as many pieces as ``add`` makes at most: the bound on rows is divided among them.
            pieces = partitions or self._num_servers
            problem = _problem_of_growth(spec, spec.growth, value, pieces, local=local)
            known = self._tables.get((spec.store, spec.key))
            if known is not None and not problem:
                problem = _problem_of_new_cut(known[1], spec.growth, pieces, by, self._num_servers)
        elif not local and (
            wrong := _problem_of_coding(self._codings.get(spec.store, RAW), np.dtype(spec.dtype))
        ):
            problem = wrong
        elif value is None and (local or self._rank == 0):
            # Other ranks may leave theirs out, because the servers send them rank 0's; a local table has no
            # server, so that each rank needs its own.
            problem = (
                "its initial value is missing; rank 0 gives it, and without servers every worker an array"
            )
        elif value is not None and (value.shape, value.dtype.name) != (spec.shape, spec.dtype):
            problem = f"the initial value is {value.shape} {value.dtype}"
        return problem

    def name_of(self, store: int, key: Key) -> Key:
        """Return a table's name among all processes.

        Raises:
            UsageError: There is no such table.
        """
        return self._table(store, key)[0]

    def names(self, store: int) -> list[tuple[Key, Key]]:
        """Return the names of a store's tables: the caller's, and that among all processes."""
        return [(key, known) for (number, key), (known, _) in self._tables.items() if number == store]

    def by_user_names(self, store: int, states: dict[Key, Any]) -> dict[Key, Any]:
        """Return what is there by key, with tables under the names that callers have for them."""
        # Otherwise what is saved could be loaded only by a job in which the key was dense at first, too.
        for key, known in self.names(store):
            if known in states:
                states[key] = states.pop(known)
        return states

    def by_known_names(self, store: int, states: dict[Key, Any]) -> dict[Key, Any]:
        """Return the same with tables under the names that all processes have for them."""
        # States that were saved under a name of the caller belong to the table that now has it, whatever
        # the processes call it.
        names = dict(self.names(store))
        return {names.get(key, key): state for key, state in states.items()}

    def first_request(self, store: int, key: Key, value: Array | None) -> WantedRows:
        """Return what a worker other than rank 0 asks for at first: everything, or only to be answered."""
        # All pieces are asked even for nothing: the answer says that the table is there, before which no
        # push of this worker may come.
        layout = self._table(store, key)[1]
        nothing = np.empty(0, np.int64)
        return WantedRows(layout, None if value is not None else nothing, everywhere=True)

    def pushed(self, store: int, key: Key, rows: Rows, *, answered: bool = False) -> PushedRows:
        """Return what a push sends; ``answered``: it wants the rows that have changed.

        Raises:
            UsageError: There is no such table, they are not rows of it, or nobody knows what has changed.
        """
        layout = self._table(store, key)[1]
        if answered:
            # What has changed is known by versions, and of rows that come and go there are none.
            _check_delta(layout)
        return PushedRows(layout, rows)

    def wanted(
        self,
        store: int,
        key: Key,
        ids: Array | None,
        *,
        exact: bool = False,
        since: FetchedVersions | None = None,
    ) -> WantedRows:
        """Return what a pull asks for; ``exact``: rows that are not rounded.

        Raises:
            UsageError: There is no such table, or they are not ids of it.
        """
        layout = self._table(store, key)[1]
        # Answered here: there is nobody to ask, and the pull would never end.
        if (store, key) in self._local:
            raise UsageError(f"worker {self._rank}: nobody but the workers has the table {key!r}")
        if ids is None:
            _check_delta(layout)
        return WantedRows(layout, ids, exact=exact, since=since)

    def _table(self, store: int, key: Key) -> tuple[Key, RowSparse]:
        found = self._tables.get((store, key))
        if found is None:
            raise UsageError(f"worker {self._rank}: rows of key {key!r} before its init_rows")
        return found


def _row_bytes(spec: KeySpec) -> int:
    return math.prod(spec.shape[1:]) * np.dtype(spec.dtype).itemsize


def _problem_of_coding(number: int, dtype: np.dtype[Any]) -> str:
    """Return why rows cannot travel in a coding; nothing if they can, or travel as they are."""
    if number not in ROW_CODINGS or dtype.kind == "f":
        return ""
    return (
        f"rows of {dtype} cannot travel as {ROW_CODINGS[number].name}, which would round them; create "
        "another store for such tables, or leave out compress"
    )


def _problem_of_growth(
    spec: KeySpec, growth: Growth, value: Array | None, partitions: int, *, local: bool
) -> str:
    """Return why the rows of a table cannot come into being when they are pushed; nothing if they can."""
    # First, because these raise by themselves: what is wrong with a rule has its own words.
    check_init(growth.init)
    check_retention(growth.retention)
    if local:
        return "only servers can make rows when they are pushed; start the job with --servers 1 or more"
    if value is not None:
        return "a table has an initial value, or its rows come into being when they are pushed, not both"
    if np.dtype(spec.dtype).kind != "f":
        return "optimizers need floating point, and rows that come into being an optimizer"
    # Each piece keeps its part of the bound, rounded down: with fewer rows than pieces that would be 0,
    # which stands for no bound at all.
    if 0 < growth.retention.max_rows < partitions:
        return f"{growth.retention.max_rows} rows cannot be kept in {partitions} pieces"
    return ""


def _problem_of_new_cut(
    former: RowSparse, growth: Growth, partitions: int, by: str, num_servers: int
) -> str:
    """Return why a table that grows cannot be cut anew, each server with the rows that it has."""
    if former.partitions % num_servers or partitions % num_servers or former.by_range != (by == "range"):
        return (
            f"its rows stay on their {num_servers} servers, so that it is cut in the same way from a "
            f"multiple of as many pieces into another one, not from {former.partitions} into {partitions}"
        )
    # The bound on rows is divided among the pieces: rows would go that should have stayed.
    return "with max_rows it stays as it is cut" if growth.retention.max_rows else ""


def _check_delta(layout: RowSparse) -> None:
    if layout.grows:
        raise UsageError(
            f"key {layout.key!r} is a table whose rows come into being when they are pushed: push rows, "
            "and pull some by their ids"
        )
