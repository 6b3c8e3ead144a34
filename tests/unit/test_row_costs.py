"""What processors take for rows, from measured steps: what made the steps is found again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_fields

from kvstore_mpi.planner import Cluster, Link, Rows, ServedRows
from kvstore_mpi.planner.communication import step_times
from kvstore_mpi.planner.row_costs import FEW, MANY, PIECES, ROWS, loads_for, row_costs
from kvstore_mpi.planner.sending import Sites, Way

NAMES = {Way.ALLREDUCE: "rows_allreduce", Way.SERVERS: "rows_servers"}


def steps(cluster, way):
    """Return how long steps of the loads take on a cluster, as plans predict it."""
    servers = 0 if way is Way.ALLREDUCE else cluster.hosts
    sites = Sites(cluster.hosts, cluster.num_each_host)
    return {
        name: step_times(
            load.net(cluster.num_devices), sites, cluster, way, servers=servers, pieces=(load.pieces,)
        ).crossing_s
        for name, load in loads_for(cluster, way).items()
    }


@given(
    st.sampled_from([(2, 1), (3, 2), (8, 1)]),
    st.builds(
        ServedRows, st.floats(1e-8, 1e-7), st.floats(1e-5, 1e-3), st.floats(1e-3, 0.1), st.floats(1e-3, 0.1)
    ),
)
@example((2, 1), ServedRows(9.127165417980485e-08, 0.001, 0.001, 0.03815045670064759))
@settings(max_examples=30)
def test_what_made_the_steps_is_found_again(where, truth):
    """By servers; by allreduce, seconds of a message are taken as they are assumed."""
    hosts, devices = where
    network = Link(1e9)
    cluster = Cluster(hosts, network, devices, Link(1e15), rows_servers=truth, rows_allreduce=truth)
    for way in NAMES:
        assumed = truth if way is Way.ALLREDUCE else ServedRows()
        found = row_costs(cluster, way, loads_for(cluster, way), steps(cluster, way), assumed)
        for name in Rows.__struct_fields__:
            assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.01), name


def test_where_links_hide_a_byte_it_grows_as_the_rest_does():
    """Tables take three times what is assumed, so a byte does; where links need all, nothing is told."""
    assumed = ServedRows(4e-9, 1e-4, 1e-3, 1e-3)
    thrice = ServedRows(1.2e-8, 3e-4, 3e-3, 3e-3)
    cluster = Cluster(4, Link(1e6), rows_servers=thrice)
    loads = loads_for(cluster, Way.SERVERS)
    seconds = steps(cluster, Way.SERVERS)
    found = row_costs(cluster, Way.SERVERS, loads, seconds, assumed)
    assert found.byte_s == pytest.approx(thrice.byte_s, rel=0.2)
    none = row_costs(cluster, Way.SERVERS, loads, dict.fromkeys(loads, 1e-6), assumed)
    assert none == ServedRows(0.0, 0.0, 0.0, 0.0)


def test_every_load_has_more_of_one_thing():
    """Many tables, many pieces, many rows; over slow links fewer rows, for steps of a tenth of a second."""
    loads = loads_for(Cluster(4, Link(1e9)), Way.SERVERS)
    few = loads[FEW]
    assert (loads[MANY].tables, loads[PIECES].pieces, loads[ROWS].touched) == (16, 16, 4_000)
    assert replace_tables(loads[MANY]) == replace_tables(loads[PIECES]) == few
    assert loads_for(Cluster(4, Link(1e6)), Way.SERVERS)[ROWS].touched == 200
    assert PIECES not in loads_for(Cluster(4, Link(1e9)), Way.ALLREDUCE)


def replace_tables(load):
    """Return a load with one table, cut as the store does."""
    return load._replace(tables=1, pieces=0)


def test_workers_draw_rows_of_their_own_many_of_them_the_same():
    """Different ids in ascending order, the same at each call; small ids are touched by all."""
    load = loads_for(Cluster(4, Link(1e9)), Way.SERVERS)[ROWS]
    ids = [load.ids(worker) for worker in range(4)]
    assert all((np.diff(each) > 0).all() and each.size == load.touched for each in ids)
    assert (load.ids(2) == ids[2]).all()
    union = np.unique(ids).size
    assert load.touched < union < 0.75 * 4 * load.touched
    [table] = load.net(4).layers
    assert (table.rows, table.touched_by_all) == (load.rows, union / load.rows)
    assert replace_fields(table, touched_by_all=0.0).num_bytes == 4 * load.rows * load.width
