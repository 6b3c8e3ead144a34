"""The decisions on all keys of one store: what is counted, what follows from it, and the plan of it all.

One rank's; all ranks have the same, because they add the same tables in the same order and are given the
same sums. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import UsageError
from kvstore_mpi.hybrid.cost import Table
from kvstore_mpi.hybrid.density import DENSE, DensityWindow, density_of
from kvstore_mpi.hybrid.plan import KeyPlan, Plan, plan_key
from kvstore_mpi.hybrid.routes import (
    DENSE_ALLREDUCE,
    DENSE_SERVERS,
    Router,
    check_force,
    forced_route,
    possible_ways,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvstore_mpi.hybrid.cost import Cluster
    from kvstore_mpi.hybrid.density import Density, RowCounts
    from kvstore_mpi.hybrid.routes import Choice, Prices, Route, Way
    from kvstore_mpi.records import Key


class Decisions:
    """Which way each table of a store goes.

    ::

        way = decisions.add(key, table)
        ...
        counts = decisions.count(key, rows_of_this_rank)   # in each step, after the rows are merged
        if counts is not None:                             # in the same step on all ranks
            choice = decisions.decide(key, counts_added_up_over_all_ranks)
    """

    def __init__(
        self, cluster: Cluster, prices: Prices, force: Mapping[str, str], *, clients: int = 1
    ) -> None:
        """Start without tables.

        Args:
            cluster: Where workers and servers are.
            prices: What is known of the network.
            force: The routes that the user wants, by names of keys or patterns.
            clients: Of the job.

        Raises:
            UsageError: A route has no such name.
        """
        self._cluster = cluster
        self._prices = prices
        self._force = check_force(force)
        self._clients = clients
        self._tables: dict[Key, _Table] = {}

    def add(
        self, key: Key, table: Table, *, layout: str = "", dense: bool = True, resident: bool = True
    ) -> Way:
        """Begin with a table; return its way until its density is known.

        Args:
            key: Its name.
            table: Its size.
            layout: How it is cut, for the plan.
            dense: See ``routes.possible_ways``.
            resident: See ``routes.possible_ways``.

        Raises:
            UsageError: No way is possible, or not the one that the user wants; names the key.
        """
        ways = self._possible(key, dense=dense, resident=resident)
        return self._add(key, table, ways, layout, None)

    def add_dense(self, key: Key, num_bytes: int) -> Way:
        """Begin with a key of which everything travels; return its way, which is for good.

        The workers of one client sum it by allreduce, unless the user wants the servers to.

        Raises:
            UsageError: The way that the user wants is not possible; names the key.
        """
        ways = self._possible(key, dense=True, resident=True)
        way = DENSE_ALLREDUCE if DENSE_ALLREDUCE in ways else DENSE_SERVERS
        return self._add(key, Table(1, num_bytes), (way,), "", DENSE)

    def _possible(self, key: Key, *, dense: bool, resident: bool) -> tuple[Way, ...]:
        forced = forced_route(self._force, key)
        try:
            return possible_ways(
                self._cluster, clients=self._clients, forced=forced, dense=dense, resident=resident
            )
        except UsageError as error:
            raise UsageError(f"key {key!r}: {error}") from None

    def _add(
        self, key: Key, table: Table, ways: Sequence[Way], layout: str, density: Density | None
    ) -> Way:
        router = Router(table, self._cluster, self._prices, ways)
        self._tables[key] = _Table(router, layout, forced_route(self._force, key), density)
        return router.way

    def cut(self, key: Key, pieces: int) -> None:
        """Take note that a table is cut into another number of pieces from now on."""
        router = self._tables[key].router
        router.table = router.table._replace(pieces=pieces)

    def count(self, key: Key, rank: int, machine: int = 0, job: int = 0) -> RowCounts | None:
        """Count the distinct rows of a step, as in ``density.RowCounts``.

        Returns:
            At the end of a window what all ranks are to add up for ``decide``; nothing in other steps.
        """
        window = self._tables[key].window
        if not window.add(rank, machine, job):
            return None
        self._tables[key].steps = window.steps
        return window.take()

    def decide(self, key: Key, counts: RowCounts) -> Choice:
        """Choose the way of a table, from counts that were added up over all ranks."""
        one = self._tables[key]
        one.density = density_of(
            counts,
            one.steps,
            one.router.table.rows,
            machines=self._cluster.machines,
            ranks=self._cluster.ranks,
        )
        return one.router.choose(one.density)

    def plan(self, measured: Mapping[Key, float] | None = None) -> Plan:
        """Return what has been decided so far.

        Args:
            measured: Bytes of each table in a step, as far as they have been counted.
        """
        known = measured or {}
        return Plan(tuple(self._planned(key, one, known.get(key)) for key, one in self._tables.items()))

    def _planned(self, key: Key, one: _Table, measured_bytes: float | None) -> KeyPlan:
        return plan_key(
            key,
            one.router.way,
            one.router.table,
            density=one.density,
            cluster=self._cluster,
            prices=self._prices,
            forced=one.forced is not None,
            layout=one.layout,
            measured_bytes=measured_bytes,
        )


class _Table:
    """What is known of one table, or of a dense key.

    Attributes:
        steps: Of the window that was counted last.
        density: Measured in that; ``None`` before the first.
    """

    __slots__ = ("density", "forced", "layout", "router", "steps", "window")

    def __init__(self, router: Router, layout: str, forced: Route | None, density: Density | None) -> None:
        self.router = router
        self.layout = layout
        self.forced = forced
        self.density = density
        self.window = DensityWindow()
        self.steps = 0
