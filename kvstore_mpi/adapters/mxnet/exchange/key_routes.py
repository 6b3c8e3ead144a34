"""Which way each key of a store goes where one client has servers: as the user says, or by what it is.

This file must not know about the engine or about how anything travels.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.exchange.gluon_parameters import knows_table
from kvstore_mpi.errors import UsageError
from kvstore_mpi.hybrid.routes import Route, forced_route, parse_force, unmatched

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvstore_mpi.interfaces import KVWorker
    from kvstore_mpi.records import Key

log = logging.getLogger("kvstore_mpi.mxnet")


class KeyRoutes:
    """The routes of a store's keys.

    Attributes:
        forced: What the user wants, by names of keys or patterns.
    """

    def __init__(self, forced: Mapping[str, Route], names: Mapping[Key, str], dense: Route) -> None:
        """Know the names of parameters, as far as the optimizer has them, and where dense keys go."""
        self.forced = forced
        self._names = names
        self._dense = dense

    def table_is_known(self) -> None:
        """Let the workers have the dense keys to come: the servers have a table, and are here for that."""
        self._dense = Route.ALLREDUCE

    def wanted(self, key: Key) -> Route | None:
        """Return the route that the user wants for a key, by its parameter's name or its own."""
        return forced_route(self.forced, self._names.get(key, key)) or forced_route(self.forced, key)

    def of(self, key: Key, *, is_table: bool) -> Route:
        """Return the route of a key; tables go to the servers unless the user wants something else."""
        return self.wanted(key) or (Route.SERVERS if is_table else self._dense)


def routes_of(
    worker: KVWorker, optimizer: Any, mode: str, *, servers_update: bool, has_table: bool, kept_for: str
) -> KeyRoutes | None:
    """Return the routes of a store's keys, or nothing where all of them have the same one.

    The workers of a single client update what they sum: see ``mpilaunch --dense`` and ``--routes``.

    Args:
        worker: This one.
        optimizer: That the store is given.
        mode: The store's.
        servers_update: The servers have the optimizer.
        has_table: A key of the store is known to be a table, whatever the optimizer knows.
        kept_for: The call for which servers must have all keys, if there was one.

    Raises:
        UsageError: A key is wanted to go by allreduce, and cannot.
    """
    if mode == "client" or not worker.num_servers:
        return None
    forced = parse_force(worker.routes)
    summed = [name for name, route in forced.items() if route.by_workers]
    is_mxnets = isinstance(optimizer, mx.optimizer.Optimizer)
    why_not = f"with {kept_for} the servers have all keys" if kept_for else ""
    if mode != "sync" or worker.num_clients > 1 or not (servers_update and is_mxnets):
        why_not = (
            "that is for the workers of one client, in a sync-mpi store, with an optimizer of MXNet's that "
            "servers have, too"
        )
    if why_not and summed:
        route = forced[summed[0]].value
        raise UsageError(
            f"{summed[0]!r} cannot have the route {route}: {why_not}; leave it out of --routes"
        )
    if why_not:
        return None
    parameters = optimizer.param_dict
    # Of what workers have there are no snapshots.
    leaves_dense = worker.dense == "auto" and not worker.has_snapshots
    by_workers = worker.dense == "workers" or (leaves_dense and (has_table or knows_table(optimizer)))
    if not (by_workers or summed):
        return None
    names = {key: parameter.name for key, parameter in parameters.items()}
    for name in unmatched(forced, [*names, *names.values()]) if names else []:
        log.warning("--routes: %r is the name of no parameter; there are %s", name, sorted(names.values()))
    return KeyRoutes(forced, names, Route.ALLREDUCE if by_workers else Route.SERVERS)


def tell_that_servers_keep_all(worker: KVWorker, mode: str) -> None:
    """Say in the log of rank 0 that the first table of a store changes no route, because of snapshots."""
    hybrid = mode == "sync" and worker.num_servers and worker.num_clients == 1 and worker.dense == "auto"
    if hybrid and worker.has_snapshots and worker.rank == 0:
        log.info(
            "tables and dense keys stay on the servers, as by --dense servers: --snapshot-dir saves what "
            "these have"
        )
