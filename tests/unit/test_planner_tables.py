"""Into how many pieces plans cut tables."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as replace_fields

from kvstore_mpi.planner import Cluster, EpochsCurve, Link, Net, NetLayer, Rows, ServedRows, plan, read_plan
from kvstore_mpi.planner.communication import step_times
from kvstore_mpi.planner.plan_file import job_of, write_plan
from kvstore_mpi.planner.sending import Sites, Way
from kvstore_mpi.planner.tables import busiest_share, numbers_of_pieces

MB = 1 << 20
FLAT = EpochsCurve.of({64: 4, 1 << 20: 4})

IDLE = ServedRows(0.0, 0.0, 0.0, 0.0)
"""Processors that take no time for tables."""


def net_of(*sizes, touched=0.01):
    """Return a net that has tables of these sizes, of rows of 64 bytes, and hardly computes."""
    tables = (NetLayer(f"t{size}", size, 0.0, 1e-4, size // 64, touched, touched) for size in sizes)
    return Net("tables", 64, 64_000, tuple(tables))


def chosen(net, rows, hosts=4, servers=4, rate=1e9):
    cluster = Cluster(hosts, Link(rate), rows_servers=rows)
    return step_times(net, Sites(hosts, 1), cluster, Way.SERVERS, servers=servers)


@pytest.mark.parametrize(
    ("size", "numbers"),
    [
        (4 * MB, (4, 1, 2, 8, 16, 32, 64)),  # the last have 64 KB
        (128 * MB, (8, 16, 32, 64, 128, 256)),  # 16 MB at most; 64 for each server
        (MB // 16, (1,)),
    ],
)
def test_numbers_of_pieces_are_those_that_fit_the_largest_table(size, numbers):
    """That which the store takes by itself comes first."""
    assert numbers_of_pieces(net_of(size, MB // 32), 4) == numbers
    assert numbers_of_pieces(net_of(size), 0) == (0,)


def test_the_busiest_server_is_that_of_pieces_dealt_as_by_the_scheduler():
    """One table whole has one server; of three, one server has two; the small one is never cut."""
    assert busiest_share(net_of(4 * MB), 1, 4) == 1
    assert busiest_share(net_of(4 * MB), 2, 4) == 0.5
    assert busiest_share(net_of(4 * MB), 8, 4) == 0.25
    assert busiest_share(net_of(2 * MB, 2 * MB, MB), 1, 2) == pytest.approx(0.6)
    assert busiest_share(net_of(4 * MB, MB // 16), 2, 2) == pytest.approx((2 + 1 / 16) / (4 + 1 / 16))
    assert busiest_share(net_of(4 * MB, touched=0.0), 1, 2) == 0.5


def test_a_table_is_whole_where_messages_cost_more_than_one_server():
    """And the store's own number is kept where processors cost nothing: bytes do not tell the others."""
    net, dear = net_of(4 * MB), ServedRows(0.0, 1e-3, 0.0, 0.0)
    assert chosen(net, IDLE).pieces == 4
    assert chosen(net, dear).pieces == 1
    assert chosen(net, dear).other_pieces.number == 2
    # Two pieces to their servers, and four answers of each: 2 + 4 instead of 1 + 4; and fewer bytes.
    assert chosen(net, dear).other_pieces.more_s == pytest.approx(1e-3, rel=0.1)
    assert chosen(net, dear, rate=1e6).pieces == 4


def test_many_tables_are_whole_sooner_than_one():
    """Each has another server, so that nothing is uneven."""
    rows = ServedRows(4e-9, 1e-4, 0.0, 0.0)
    assert chosen(net_of(4 * MB, touched=0.1), rows).pieces == 4
    assert chosen(net_of(*12 * [4 * MB], touched=0.1), rows).pieces == 1


def test_a_plan_sets_its_pieces_and_slices_and_says_what_others_would_cost():
    """Of the best option; without servers there is none."""
    dense = NetLayer("dense", 8 * MB, 0.1, 0.2)
    net = replace_fields(net_of(4 * MB), layers=(*net_of(4 * MB).layers, dense))
    found = plan(net, Cluster(4, Link(1e8), rows_servers=ServedRows(0.0, 2e-2, 0.0), slice_s=0.01), FLAT)
    by_servers = [each for each in found.options if each.configuration.way == "servers"]
    found = replace_fields(found, options=tuple(by_servers))
    best = found.best.configuration
    assert (best.partitions, best.slice_elements) == (1, 400_000)
    assert (job_of(found)["partitions"], job_of(found)["slice_elements"]) == (1, 400_000)
    text = found.explain()
    assert "elements of a slice: 400000; with 200000 a step would take " in text
    assert "largest table in pieces: 1; with 2 a step would take " in text
    assert read_plan(write_plan(found)) == found
    alone = plan(net, Cluster(1, None, 1), FLAT)
    assert not {"partitions", "slice_elements"} & {*job_of(alone)}


def test_what_is_too_little_to_count_is_said_to_be():
    """A shorter step by less than 1 % is no reason to leave what the store does."""
    net = replace_fields(net_of(16 * MB, touched=1e-5), other_s=0.01)
    found = plan(net, Cluster(2, Link(1e12), rows_servers=ServedRows(0.0, 1e-5, 0.0)), FLAT)
    by_servers = tuple(each for each in found.options if each.configuration.servers == 2)
    text = replace_fields(found, options=by_servers).explain()
    assert "largest table in pieces: 2; with 1 a step would take 0.01 ms (0.1%) less, which is too " in text


def test_processors_take_their_time_for_rows_and_not_for_dense_arrays():
    """Bytes of the busier direction; two pieces to the servers and two from the own one."""
    nets = [Net("any", 1, 1, (NetLayer("x", 400_000, 0.0, 1e-9, rows, 0.5, 0.5),)) for rows in (10, 1)]
    plain, busy = (
        Cluster(2, Link(1e9), rows_servers=each) for each in (IDLE, ServedRows(1e-3, 10.0, 0.0, 0.0))
    )
    for net, seconds in zip(nets, (1e-3 * 0.5 * (400_000 + 2 * 10 * 4) + 10.0 * 4, 0.0)):
        times = [
            step_times(net, Sites(2, 1), each, Way.SERVERS, servers=2, slices=(50_000,), pieces=(2,)).step_s
            for each in (plain, busy)
        ]
        assert times[1] - times[0] == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "allreduce", "servers"),
    [
        ({"rows_allreduce": Rows(0.0, 0.0, 0.0, 3.0)}, 6.0, 0.0),
        ({"rows_servers": ServedRows(0.0, 0.0, 0.0, 3.0)}, 0.0, 6.0),
        ({"rows_allreduce": Rows(0.0, 0.0, 3.0, 0.0)}, 3.0, 0.0),
        ({"rows_servers": ServedRows(0.0, 0.0, 3.0, 0.0)}, 0.0, 3.0),
    ],
)
def test_processors_take_their_time_for_each_table_and_each_step(rows, allreduce, servers):
    """Where the workers sum tables, and where servers do; dense arrays are no tables."""
    net = Net("any", 1, 1, tuple(NetLayer(name, 4000, 0.0, 1e-9, 10, 0.5, 0.5) for name in "xy"))
    dense = Net("any", 1, 1, (NetLayer("x", 4000, 0.0, 1e-9),))
    plain = Cluster(2, Link(1e9), rows_allreduce=IDLE, rows_servers=IDLE)
    busy = replace_fields(plain, **rows)
    for each, way, seconds in (
        (net, Way.ALLREDUCE, allreduce),
        (net, Way.HYBRID, servers),
        (net, Way.SERVERS, servers),
        (dense, Way.ALLREDUCE, 0.0),
    ):
        number = 0 if way is Way.ALLREDUCE else 2
        times = [step_times(each, Sites(2, 1), on, way, servers=number).step_s for on in (plain, busy)]
        assert times[1] - times[0] == pytest.approx(seconds, abs=1e-3)


def test_links_hide_some_of_what_processors_take():
    """As long as the links, they make steps 2^(1/p) times as long, with p as in ``HIDING``."""
    table = Net("table", 1, 1, (NetLayer("x", 4 * MB, 0.0, 1e-9, 1000, 0.5, 0.5),))
    dense = Net("dense", 1, 1, (NetLayer("x", 4 * MB, 0.0, 1e-9),))
    for net, way, ratio in (
        (table, Way.ALLREDUCE, 2 ** (1 / 1.3)),
        (table, Way.SERVERS, 2 ** (1 / 1.65)),
        (dense, Way.ALLREDUCE, 2 ** (1 / 2.5)),
    ):
        idle = Cluster(2, Link(1e6), rows_allreduce=IDLE, rows_servers=IDLE, slice_s=0.0)
        cluster, servers = idle, 0 if way is Way.ALLREDUCE else 2
        links = step_times(net, Sites(2, 1), idle, way, servers=servers).crossing_s
        if net is table:
            busy = replace_fields(IDLE, step_s=links)
            cluster = replace_fields(idle, rows_allreduce=busy, rows_servers=busy)
        else:
            cluster = replace_fields(idle, byte_s=1e-6)
        found = step_times(net, Sites(2, 1), cluster, way, servers=servers).crossing_s
        assert found == pytest.approx(ratio * links)
