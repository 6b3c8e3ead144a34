"""What rows of tables cost the processors of a host, from steps of a few loads that were measured there.

Each load has more of one thing than the first: tables, pieces of a table, or rows. Of a step, what its link
takes is known; what is left over is the processors', of which links hide some (``sending.together``). From
two loads follows what the thing costs of which one has more. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import astuple, replace

from kvstore_mpi.p3.slicing import SLICE_ELEMENTS
from kvstore_mpi.planner.net import Net, NetLayer
from kvstore_mpi.planner.sending import (
    HIDING,
    HIDING_DENSE,
    ITEM_BYTES,
    RowWork,
    Sending,
    Sites,
    Way,
    link_seconds,
    processors_alone,
    row_work,
)
from kvstore_mpi.planner.store_costs import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvstore_mpi.planner.cluster import Cluster

FEW, MANY, PIECES, ROWS = "few", "many", "pieces", "rows"
"""The loads: one small table, several of these, one in more pieces, one of which many rows are touched."""

SMALL_WIDTH, SMALL_TOUCHED, MANY_TABLES = 16, 128, 16
SMALL_ROWS = 4096
"""For each host: pieces of 64 KB, the smallest that the store makes, are then four for each server."""

WIDE_ROWS, WIDE_WIDTH = 40_000, 64
MOST_TOUCHED, LEAST_TOUCHED = 4_000, 200
STEP_S = 0.1
"""Of a step with many rows, the link takes about that long."""

SEEN = 1.08
"""By this factor a step must take longer than its link alone, for what processors take to be told from what
was measured wrongly: half a percent more or less of the step changes it by less than a tenth."""

NO_COMPUTE_S = 1e-9
NOTHING_KNOWN = Rows(0.0, 0.0, 0.0, 0.0)


class Load(NamedTuple):
    """What every worker sends in a step: some rows of some tables.

    Attributes:
        tables: Their number.
        rows: Of each.
        width: Elements of a row.
        touched: Rows of each that a worker looks up and updates.
        pieces: Into how many servers' tables are cut; 0 leaves it to the store.
    """

    tables: int
    rows: int
    width: int
    touched: int
    pieces: int = 0

    def ids(self, worker: int) -> NDArray[np.int64]:
        """Return the ids, ascending, that a worker looks up in each table: drawn by Zipf's law.

        As of words or goods, many workers touch the same rows.
        """
        # Which of many clocks ring first is drawn without putting back, by the rates at which they ring.
        rings = np.random.default_rng(worker).exponential(np.arange(1, self.rows + 1))
        return np.sort(np.argpartition(rings, self.touched)[: self.touched])

    def net(self, workers: int) -> Net:
        """Return this as a net of as many workers."""
        touched = self.touched / self.rows
        by_all = np.unique([self.ids(worker) for worker in range(workers)]).size / self.rows
        num_bytes = ITEM_BYTES * self.rows * self.width
        table = NetLayer("table", num_bytes, 0.0, 0.0, self.rows, touched, by_all)
        return Net("measured", 1, 1, self.tables * (table,), other_s=NO_COMPUTE_S)


def loads_for(cluster: Cluster, way: Way) -> dict[str, Load]:
    """Return what to measure, by name, on all hosts of a cluster."""
    rows = SMALL_ROWS * cluster.hosts
    few = Load(1, rows, SMALL_WIDTH, SMALL_TOUCHED)
    fits = STEP_S * cluster.between_hosts.bytes_per_s / (2 * ITEM_BYTES * WIDE_WIDTH)
    touched = round(min(MOST_TOUCHED, max(LEAST_TOUCHED, fits)))
    loads = {
        FEW: few,
        MANY: few._replace(tables=MANY_TABLES),
        ROWS: Load(1, WIDE_ROWS, WIDE_WIDTH, touched),
    }
    if way is not Way.ALLREDUCE:
        loads[PIECES] = few._replace(pieces=4 * cluster.hosts)
    return loads


class _Measured(NamedTuple):
    """What a load needs of a host's link, what its processors have to do, and what they take for it."""

    links_s: float
    work: RowWork
    processors_s: float


def row_costs(
    cluster: Cluster, way: Way, loads: Mapping[str, Load], seconds: Mapping[str, float], assumed: Rows
) -> Rows:
    """Return what the processors of a host take.

    Args:
        cluster: On all of whose devices a worker has sent the loads.
        way: By allreduce, or by as many servers as there are hosts.
        loads: As of ``loads_for``.
        seconds: Of a step of each.
        assumed: What cannot be told from these: seconds of a message where no load has more of them, and
            those of a byte where links take nearly all of a step. The latter grows as the rest does.
    """
    found = {name: _measured(cluster, way, load, seconds[name]) for name, load in loads.items()}
    few, many, rows = (found[name] for name in (FEW, MANY, ROWS))
    if seconds[ROWS] > SEEN * rows.links_s:
        byte_s = _ratio(few, rows, rows.work.num_bytes - few.work.num_bytes, NOTHING_KNOWN)
    else:
        byte_s = assumed.byte_s * many.processors_s / many.work.seconds(assumed)
    known = replace(assumed, byte_s=byte_s, message_s=0.0, step_s=0.0, table_s=0.0)
    message_s = assumed.message_s
    if PIECES in found:
        messages = found[PIECES].work.messages - few.work.messages
        message_s = _ratio(few, found[PIECES], messages, known)
    known = replace(known, message_s=message_s)
    known = replace(known, table_s=_ratio(few, many, many.work.tables - few.work.tables, known))
    known = replace(known, step_s=max(0.0, few.processors_s - few.work.seconds(known)))
    # At the end: a step takes what the others leave, and little of a table's time would be much of it.
    return type(known)(*map(_rounded, astuple(known)))


def dense_byte_seconds(seconds: float, links_s: float, num_bytes: float) -> float:
    """Return what processors take for a byte of dense arrays, if it can be told from links; else 0.

    Args:
        seconds: Of a step that only sends these bytes.
        links_s: What the link needs for them.
        num_bytes: In the busier direction.
    """
    if seconds <= SEEN * links_s:
        return 0.0
    return _rounded(processors_alone(seconds, links_s, HIDING_DENSE) / num_bytes)


def _measured(cluster: Cluster, way: Way, load: Load, seconds: float) -> _Measured:
    net = load.net(cluster.num_devices)
    sites = Sites(cluster.hosts, cluster.num_each_host)
    servers = 0 if way is Way.ALLREDUCE else cluster.hosts
    sending = Sending(sites, cluster, way, servers, SLICE_ELEMENTS).with_pieces(net, load.pieces)
    links = sum(link_seconds(layer, sending) for layer in net.layers)
    return _Measured(links, row_work(net, sending), processors_alone(seconds, links, HIDING[way]))


def _ratio(few: _Measured, more: _Measured, by: float, known: Rows) -> float:
    """Return what one thing takes of which a load has more than the first, besides what is known."""
    longer = more.processors_s - few.processors_s
    return max(0.0, longer - more.work.seconds(known) + few.work.seconds(known)) / by


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.3g}")
