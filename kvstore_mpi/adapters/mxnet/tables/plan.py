"""The plan of a store: which way each key goes, and what has travelled of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np

from kvstore_mpi.adapters.mxnet.exchange.row_tables import RowTable
from kvstore_mpi.hybrid.cost import Cluster, Pull, Table, Wire
from kvstore_mpi.hybrid.density import DENSE, density_of
from kvstore_mpi.hybrid.plan import KeyPlan, Plan, plan_key
from kvstore_mpi.hybrid.routes import DENSE_ALLREDUCE, DENSE_SERVERS, ROWS_ALLREDUCE, ROWS_SERVERS, Prices

if TYPE_CHECKING:
    from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging
    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.tables.row_counts import ClientCounts
    from kvstore_mpi.hybrid.density import Counted
    from kvstore_mpi.interfaces import KVWorker
    from kvstore_mpi.records import Key, RowCount
    from kvstore_mpi.rows_interface import RowsWorker


def cluster_of(worker: KVWorker) -> Cluster:
    """Return where workers and servers are, as plans see it.

    Each client counts as a machine; in a job of one client, each of its workers.
    """
    machines, ranks = worker.num_clients, worker.mpi_size
    if machines == 1:
        machines, ranks = ranks, 1
    return Cluster(machines, worker.num_servers, ranks)


def _as_servers_see_it(worker: KVWorker) -> Cluster:
    """Return the same for keys of servers: there a client on one host is one machine, alone or not.

    What its ranks push together, and look up together, crosses a link once.
    """
    if worker.client_hosts == 1:
        return Cluster(worker.num_clients, worker.num_servers, worker.mpi_size)
    return cluster_of(worker)


def plan_of(exchange: Exchange, counts: ClientCounts) -> Plan:
    """Return the plan of a store, with the bytes that are predicted beside those that were counted."""
    stores = {each.store for each in exchange.stagings.values() if isinstance(each, RowTable)}
    tables: dict[Key, RowCount] = {}
    for store in stores:
        tables.update(cast("RowsWorker", exchange.worker).rows_counted(store))
    return Plan(
        tuple(
            _table_plan(exchange, key, each, tables[key], counts.of(key))
            if isinstance(each, RowTable)
            else _dense_plan(exchange, key, each)
            for key, each in exchange.stagings.items()
        )
    )


def _dense_plan(exchange: Exchange, key: Key, staging: Staging) -> KeyPlan:
    way = DENSE_SERVERS if exchange.is_on_servers(key) else DENSE_ALLREDUCE
    cluster = cluster_of(exchange.worker) if way.route.by_workers else _as_servers_see_it(exchange.worker)
    num_bytes = math.prod(staging.shape) * np.dtype(staging.dtype).itemsize
    measured = exchange.worker.travelled(exchange.store, key)
    if measured is not None:
        measured /= _machines_of_a_client(cluster, exchange.worker)
    return plan_key(
        key,
        way,
        Table(1, num_bytes),
        density=DENSE,
        cluster=cluster,
        # Values alone, as they are counted: small keys share a message, so that of each little goes beside
        # its values, where pieces of tables have heads of their own.
        prices=Prices(wire=Wire(0, 0, 0)),
        forced=_is_forced(exchange, key),
        measured_bytes=measured,
        was_summed=staging.was_pushed and way.route.by_workers,
    )


def _table_plan(
    exchange: Exchange,
    key: Key,
    each: RowTable,
    count: RowCount,
    counted: Counted | None,
) -> KeyPlan:
    worker, on_servers = exchange.worker, exchange.is_on_servers(key)
    cluster = _as_servers_see_it(worker) if on_servers else cluster_of(worker)
    rows = each.shape[0]
    density = measured = None
    if counted is not None:
        density = density_of(counted, rows, ranks=worker.mpi_size, apart=cluster.ranks < worker.mpi_size)
        if on_servers and counted.sent:  # of a window before it was here nothing came to servers
            measured = (counted.sent + counted.received) / counted.pushes
            measured /= _machines_of_a_client(cluster, worker)
    return plan_key(
        key,
        ROWS_SERVERS if on_servers else ROWS_ALLREDUCE,
        Table(rows, count.row_bytes, count.pieces),
        density=density,
        cluster=cluster,
        prices=Prices(pull=_pull_of(each, worker)),
        forced=_is_forced(exchange, key),
        layout=count.layout if on_servers else "",
        measured_bytes=measured,
        was_summed=counted is not None and not on_servers,
    )


def _pull_of(table: RowTable, worker: KVWorker) -> Pull:
    if table.mirror is not None:
        return Pull.CHANGED
    return Pull.OWN if cast("RowsWorker", worker).unites_lookups else Pull.EACH


def _machines_of_a_client(cluster: Cluster, worker: KVWorker) -> int:
    return cluster.machines if worker.num_clients == 1 else 1


def _is_forced(exchange: Exchange, key: Key) -> bool:
    return exchange.routes is not None and exchange.routes.wanted(key) is not None
