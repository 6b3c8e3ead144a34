"""Which way a key takes: allreduce among the workers, or servers; decided by cost, from measured density.

No density is a limit in itself: a table of which nearly all rows are touched is cheaper by a dense
allreduce as soon as ids, unions and headers cost more than the rows that need not travel, and where that is
follows from ``cost`` and the measured speeds. Whoever knows the same numbers comes to the same way. Pure.
"""

from __future__ import annotations

import enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import UsageError
from kvstore_mpi.hybrid import cost
from kvstore_mpi.hybrid.cost import Pull, Speed, Wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvstore_mpi.hybrid.cost import Cluster, Table, Traffic
    from kvstore_mpi.hybrid.density import Density
    from kvstore_mpi.records import Key

FIRST_MARGIN = 0.02
"""By what share another way must be cheaper than the one with which a key begins: predictions are not exact
to a header, and each change moves the whole table."""

MARGIN = 0.1
"""By what share it must be cheaper once a density has been known."""


class Route(str, enum.Enum):
    """Who sums a key; of what users want of a table, also in which form."""

    ALLREDUCE = "allreduce"
    """The workers; as a wish for a table: it is made dense."""
    SERVERS = "servers"
    ROWS = "rows"
    """Only as a wish: the workers, who gather and merge the rows of a table, and sum other keys."""

    @property
    def by_workers(self) -> bool:
        """The workers sum it, and not servers."""
        return self is not Route.SERVERS


class Form(str, enum.Enum):
    """What travels of a key."""

    DENSE = "dense"
    ROWS = "rows"


class Way(NamedTuple):
    """A route, and what travels on it."""

    route: Route
    form: Form

    def __str__(self) -> str:
        """Return e.g. ``servers, rows``."""
        return f"{self.route.value}, {self.form.value}"


ROWS_SERVERS = Way(Route.SERVERS, Form.ROWS)
ROWS_ALLREDUCE = Way(Route.ALLREDUCE, Form.ROWS)
DENSE_SERVERS = Way(Route.SERVERS, Form.DENSE)
DENSE_ALLREDUCE = Way(Route.ALLREDUCE, Form.DENSE)


class Prices(NamedTuple):
    """What a job has measured, or been told, of its network.

    Attributes:
        allreduce: Speed of bytes among workers.
        servers: Speed of bytes to and from servers.
        wire: What travels beside values.
        pull: What workers pull of tables.
        share: Of all tables, that the machine with the most of them has; 0 looks at each table for itself.
    """

    allreduce: Speed = Speed(1.0)
    servers: Speed = Speed(1.0)
    wire: Wire = Wire()
    pull: Pull = Pull.CHANGED
    share: float = 0.0


def traffic(way: Way, table: Table, density: Density, cluster: Cluster, prices: Prices) -> Traffic:
    """Return what a step of a key costs the busiest machine on some way."""
    if way == DENSE_ALLREDUCE:
        return cost.dense_allreduce(table, cluster)
    if way == ROWS_ALLREDUCE:
        return cost.rows_allreduce(table, density, cluster, prices.wire)
    share = prices.share or cost.share_of(table.pieces, cluster)
    if way == DENSE_SERVERS:
        return cost.dense_servers(table, cluster, prices.wire, share=share)
    return cost.rows_servers(table, density, cluster, prices.wire, share=share, pull=prices.pull)


def traffic_of_workers(
    way: Way, table: Table, density: Density, cluster: Cluster, prices: Prices
) -> Traffic:
    """Return what the workers of a machine send and receive, without what servers beside them do."""
    if way == ROWS_SERVERS:
        return cost.rows_of_workers(table, density, prices.wire, prices.pull, cluster.ranks)
    if way == DENSE_SERVERS:
        return cost.dense_of_workers(table, cluster, prices.wire)
    return traffic(way, table, density, cluster, prices)


def seconds(way: Way, table: Table, density: Density, cluster: Cluster, prices: Prices) -> float:
    """Predict what a step of a key takes on some way."""
    speed = prices.allreduce if way.route is Route.ALLREDUCE else prices.servers
    return speed.seconds(traffic(way, table, density, cluster, prices))


class Choice(NamedTuple):
    """A way, and why it was chosen.

    Attributes:
        way: The way.
        seconds: Predicted for the step of each way that is possible.
        changed: Whether it is another one than before.
    """

    way: Way
    seconds: dict[Way, float]
    changed: bool


class Router:
    """Chooses the way of one table, again with each density that is measured.

    Attributes:
        way: The present one.
        decided: Whether any density is known yet.
        table: The table; another record after it has been cut anew.
    """

    def __init__(self, table: Table, cluster: Cluster, prices: Prices, ways: Sequence[Way]) -> None:
        """Begin with the first of the ways that are possible."""
        self.way = ways[0]
        self.decided = False
        self.table = table
        self._cluster = cluster
        self._prices = prices
        self._ways = ways

    def choose(self, density: Density) -> Choice:
        """Take a measured density; all ranks must give the same.

        The first one decides nearly by cost alone. Afterwards a key changes over only if that is clearly
        cheaper: a density that hovers about the point where two ways cost the same would make it go to and
        fro.
        """
        costs = {way: seconds(way, self.table, density, self._cluster, self._prices) for way in self._ways}
        best = min(costs, key=costs.__getitem__)  # of equal ones the first, with which keys begin
        margin = MARGIN if self.decided else FIRST_MARGIN
        changed = best != self.way and costs[best] < (1 - margin) * costs[self.way]
        if changed:
            self.way = best
        self.decided = True
        return Choice(self.way, costs, changed)


def check_force(force: Mapping[str, str]) -> dict[str, Route]:
    """Check the routes that a user wants for keys.

    Args:
        force: Names of keys, or patterns of them with ``*``, ``?`` and ``[...]``, and their routes.

    Raises:
        UsageError: A route has another name.
    """
    names = [route.value for route in Route]
    for pattern, route in force.items():
        if route not in names:
            raise UsageError(
                f"the route of {pattern!r} cannot be {route!r}: a route is {' or '.join(map(repr, names))}"
            )
    return {pattern: Route(route) for pattern, route in force.items()}


def parse_force(text: str) -> dict[str, Route]:
    """Return the routes that a user has written as ``NAME=ROUTE,...``.

    Raises:
        UsageError: A part has another form, or a route another name, or a name two routes.
    """
    parts = [part.rpartition("=") for part in text.split(",") if part.strip()]
    force: dict[str, str] = {}
    for name, route in ((name.strip(), route.strip()) for name, _, route in parts):
        if not name:
            raise UsageError(f"{route!r} is not of the form NAME=allreduce, NAME=servers or NAME=rows")
        if force.setdefault(name, route) != route:
            raise UsageError(f"{name!r} has two routes, {force[name]!r} and {route!r}: leave one out")
    return check_force(force)


def forced_route(force: Mapping[str, Route], key: Key) -> Route | None:
    """Return the route that a user wants for a key, if any.

    The key's own name counts before all patterns, and of these the first that fits.
    """
    name = str(key)
    if name in force:
        return force[name]
    return next((route for pattern, route in force.items() if fnmatchcase(name, pattern)), None)


def unmatched(force: Mapping[str, Route], keys: Sequence[Key]) -> list[str]:
    """Return the names and patterns that fit none of a store's keys: they are probably misspelt."""
    names = [str(key) for key in keys]
    return [each for each in force if not any(name == each or fnmatchcase(name, each) for name in names)]
