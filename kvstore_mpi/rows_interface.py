"""The seam between adapters and workers that have tables; ``interfaces`` has those of all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import FetchedVersions, Growth, Key, RowCount, Rows

    Array = np.ndarray[Any, Any]


class RowsWorker(Protocol):
    """What a worker with ``has_rows`` can do besides: tables, keys of which single rows travel.

    Operations take effect in the order of the calls. ``done`` and ``out`` are touched on the worker's own
    thread; the arrays in ``out``, of which no two have an id, are the caller's.
    """

    @property
    def unites_lookups(self) -> bool:
        """Whether of what the ranks of a host pull together each row comes to the host once."""
        ...

    def init_rows(  # noqa: PLR0917  as ``init``, and what it needs besides
        self,
        store: int,
        key: Key,
        shape: tuple[int, ...],
        dtype: str,
        value: Array | None,
        done: Done,
        *,
        partitions: int = 0,
        by: str = "mod",
        growth: Growth | None = None,
        anew: bool = False,
    ) -> None:
        """Create a table, or make one of a dense key that was never pushed; in the order of all ``init``.

        Args:
            store: Number of the store.
            key: The table.
            shape: Its first dimension, of two or more, counts rows.
            dtype: NumPy name of the element type.
            value: Rank 0's is the initial table, contiguous, and must not change until ``done``; an array
                that another rank gives holds that when done. With servers, but not in ``client`` stores,
                other ranks may give ``None``, all of a client alike, and have no row yet.
            done: As always.
            partitions: Pieces that the table is cut into; 0 leaves it to the worker.
            by: Row ``id`` is in piece ``id % partitions`` (``mod``; of tables that grow pieces may be in
                another order), or pieces are ``range``s.
            growth: Instead of a value: how rows come into being, which are then pushed, or pulled by ids.
            anew: Cut the table of this name otherwise: what is called from now on is about the new one. No
                push of it is under way, on any worker; ``release_rows`` ends the former one. One that grows
                is cut from a multiple of servers into another, and without ``max_rows``: rows stay there.
        """
        ...

    def rows_are_pushed(self, store: int, key: Key) -> bool:
        """Tell whether another worker of an async store has made a table of a key that is dense here.

        Who then makes one, too, has the value that servers have of it.
        """
        ...

    def release_rows(self, store: int, key: Key) -> None:
        """Give up what a table was before it was cut anew, or the table if it was not; all workers must.

        By now every worker has pushed to what takes its place: rank 0's call frees it on the servers.
        """
        ...

    def row_states(self, store: int, key: Key) -> Any:
        """Return the optimizer states of a table, as ``optimizer_states`` does; ``None`` without pushes."""
        ...

    def load_row_states(self, store: int, key: Key, states: Any) -> None:
        """Give servers what ``row_states`` returned; no push of the table is under way on this worker."""
        ...

    def rows_counted(self, store: int) -> dict[Key, RowCount]:
        """Return what has travelled of each table so far."""
        ...

    def push_rows(self, store: int, key: Key, rows: Rows, priority: int, done: Done) -> None:
        """Add rows, unchanged until ``done``, to the sum over workers; who has none must push, too."""
        ...

    def pushpull_rows(  # noqa: PLR0917  as ``pushpull``, and what it needs besides
        self, store: int, key: Key, rows: Rows, priority: int, done: Done, out: list[Rows]
    ) -> None:
        """Push rows; ``out`` gets those of the table that have changed since this worker last had them.

        Without servers, and in ``client`` stores, there is no table: ``out`` gets the sum over all ranks.
        So it does of a table without an optimizer, which is then this sum: all other rows are zero.
        """
        ...

    def pull_rows(  # noqa: PLR0917  as ``pull``, and what it needs besides
        self,
        store: int,
        key: Key,
        priority: int,
        done: Done,
        out: list[Rows],
        ids: Array | None = None,
        *,
        exact: bool = False,
        since: FetchedVersions | None = None,
        together: bool = False,
    ) -> None:
        """Fetch the rows of these ids as they are now, own pushes included; with servers, by any rank.

        Of ``ids``, which are as in ``Rows``, ``None`` asks for those that have changed since this worker
        last had them, in a pushpull or in such a pull: in the beginning for all, and of a sum for its rows.
        ``exact``: not rounded,
        in whatever form rows travel. ``since``: of these ids, which are those of all pulls with it, only
        the rows that have changed since the last one; the worker's own until ``done``. ``together``: with
        ``unites_lookups`` all ranks of the client make this call, each with its own ids, perhaps none,
        of rows that are not exact.
        """
        ...
