"""The plan of a store: which way each key goes, and what has travelled of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np

from kvstore_mpi.adapters.mxnet.row_tables import RowTable
from kvstore_mpi.hybrid.cost import Cluster, Pull, Table
from kvstore_mpi.hybrid.density import DENSE, Density
from kvstore_mpi.hybrid.plan import KeyPlan, Plan, plan_key
from kvstore_mpi.hybrid.routes import DENSE_ALLREDUCE, DENSE_SERVERS, ROWS_ALLREDUCE, ROWS_SERVERS, Prices

if TYPE_CHECKING:
    from kvstore_mpi.adapters.mxnet.arrays import Staging
    from kvstore_mpi.adapters.mxnet.exchange import Exchange
    from kvstore_mpi.interfaces import RowsWorker
    from kvstore_mpi.records import Key, RowCount


def plan_of(exchange: Exchange) -> Plan:
    """Return the plan of a store, with the bytes that are predicted beside those that were counted.

    Each client counts as a machine; in a job of one client, each of its workers.
    """
    worker = exchange.worker
    machines, ranks = worker.num_clients, worker.mpi_size
    if machines == 1:
        machines, ranks = ranks, 1
    cluster = Cluster(machines, worker.num_servers, ranks)
    counts: dict[Key, RowCount] = {}
    if any(isinstance(each, RowTable) for each in exchange.stagings.values()):
        counts = cast("RowsWorker", worker).rows_counted(exchange.store)
    return Plan(
        tuple(
            _table_plan(exchange, key, each, counts[key], cluster)
            if isinstance(each, RowTable)
            else _dense_plan(exchange, key, each, cluster)
            for key, each in exchange.stagings.items()
        )
    )


def _dense_plan(exchange: Exchange, key: Key, staging: Staging, cluster: Cluster) -> KeyPlan:
    way = DENSE_SERVERS if exchange.is_on_servers(key) else DENSE_ALLREDUCE
    num_bytes = math.prod(staging.shape) * np.dtype(staging.dtype).itemsize
    return plan_key(
        key,
        way,
        Table(1, num_bytes),
        density=DENSE,
        cluster=cluster,
        prices=Prices(),
        forced=_is_forced(exchange, key),
    )


def _table_plan(exchange: Exchange, key: Key, each: RowTable, count: RowCount, cluster: Cluster) -> KeyPlan:
    on_servers = exchange.is_on_servers(key)
    rows = each.shape[0]
    row_bytes = math.prod(each.shape[1:]) * np.dtype(each.dtype).itemsize
    density = None
    if count.pushes:
        rank, client = (number / count.pushes / rows for number in (count.rank, count.client))
        # Who is sent no changes, as of a row-sparse weight, knows of no more than its client has pushed.
        job = max(client, count.job / count.pushes / rows)
        density = Density(rank, client if cluster.ranks > 1 else rank, job)
    measured = (count.sent + count.received) / count.pushes if on_servers and count.pushes else None
    return plan_key(
        key,
        ROWS_SERVERS if on_servers else ROWS_ALLREDUCE,
        Table(rows, row_bytes, count.pieces),
        density=density,
        cluster=cluster,
        prices=Prices(pull=Pull.OWN if each.mirror is None else Pull.CHANGED),
        forced=_is_forced(exchange, key),
        layout=count.layout if on_servers else "",
        measured_bytes=measured,
    )


def _is_forced(exchange: Exchange, key: Key) -> bool:
    return exchange.routes is not None and exchange.routes.wanted(key) is not None
