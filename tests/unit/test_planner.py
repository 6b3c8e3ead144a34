"""Configurations ranked by C = T x S x E, and what is said about them."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_fields

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.planner import (
    Cluster,
    EpochsCurve,
    Link,
    ModelParallel,
    Net,
    NetLayer,
    Roofline,
    Rows,
    ServedRows,
    plan,
    read_cluster,
    read_net,
    read_plan,
)
from kvstore_mpi.planner.cluster import write_cluster
from kvstore_mpi.planner.communication import sites_of, step_times
from kvstore_mpi.planner.net import write_net
from kvstore_mpi.planner.plan_file import compare, job_of, write_plan
from kvstore_mpi.planner.sending import Sites, Way

LAYERS = (NetLayer("conv", 400_000, 0.03, 0.06), NetLayer("dense", 4_000_000, 0.01, 0.02))
NET = Net("small", 64, 64_000, LAYERS)
FAST = Cluster(256, Link(1e15))
INCEPTION = EpochsCurve.of({64: 4, 2048: 4, 4096: 7, 8192: 12.0, 16384: 23})
FLAT = EpochsCurve.of({64: 4, 1 << 20: 4})

TIMES = st.floats(1e-4, 1)
NETS = st.lists(
    st.builds(NetLayer, st.just("layer"), st.integers(0, 10_000_000), TIMES, TIMES), min_size=1, max_size=4
).map(lambda layers: Net("any", 64, 64_000, tuple(layers)))
QUICK = settings(deadline=None, max_examples=25)


def test_over_perfect_links_the_planner_finds_the_papers_answer():
    """Pal et al. section 5: two-way workers from 64 devices on, which gain 15.5 and 26.5 percent."""
    for devices, percent in ((32, None), (64, 15.5), (256, 26.5)):
        found = plan(NET, FAST, INCEPTION, [ModelParallel(2, 1.32)], most_devices=devices)
        same = [
            each.total_s
            for each in found.options
            if each.configuration.devices == devices and each.configuration.ways == 1
        ]
        if percent is None:
            assert found.best.configuration.ways == 1
            continue
        two = next(each for each in found.options if each.configuration.data == devices // 2)
        hybrid = min(
            each.total_s
            for each in found.options
            if each.configuration.devices == devices and each.configuration.ways == 2
        )
        assert two.batch == 64 * devices // 2
        assert 100 * (same[0] / hybrid - 1) == pytest.approx(percent, abs=0.1)


def test_plain_data_parallelism_is_a_proper_answer():
    """Where epochs do not rise; the text says what the other would cost."""
    found = plan(NET, FAST, FLAT, [ModelParallel(2, 1.32)], most_devices=64)
    assert (found.best.configuration.ways, found.best.configuration.data) == (1, 64)
    assert "plain data parallelism is best" in found.explain()


def test_the_explanation_names_path_idle_time_next_best_and_equation_6():
    """And why it is not data parallelism alone."""
    cluster = Cluster(64, Link(1e9, 1e-5))
    text = plan(NET, cluster, INCEPTION, [ModelParallel(2, 1.32, "pipeline")]).explain()
    for part in ("critical path: ", "idle: ", "next best: ", "why not data parallelism", "SU^2 = 1.320 > "):
        assert part in text
    assert "(pipeline)" in text.splitlines()[0]


def test_the_layer_for_which_a_step_waits_is_named():
    """The large second layer does not fit behind the rest; what is under way cannot be overtaken."""
    found = plan(NET, Cluster(2, Link(4e7)), FLAT, most_devices=2)
    [two] = [each for each in found.options if each.configuration.way == "allreduce"]
    assert two.waits_for == "dense"
    assert two.step_s == pytest.approx(0.12 - 0.09 + 4_400_000 / 4e7 + 5.3 * 200_000 / 4e7)
    forward = 0.03 + 0.01
    [slow] = [
        each
        for each in plan(NET, Cluster(2, Link(4e5)), FLAT, most_devices=2).options
        if each.configuration.way == "allreduce"
    ]
    assert slow.step_s == pytest.approx(0.12 - 0.09 + 4_400_000 / 4e5 + forward)


def test_slices_are_chosen_by_what_one_costs():
    """Small ones delay what is urgent less, and are more."""
    chosen = [
        step_times(
            NET, Sites(4, 1), Cluster(4, Link(1e8), slice_s=each), Way.SERVERS, servers=4
        ).slice_elements
        for each in (0.0, 4e-5, 1e-3, 1e-2)
    ]
    assert chosen == [12_500, 12_500, 50_000, 400_000]
    for name in ("slice_s", "byte_s"):
        with pytest.raises(UsageError, match=f"{name} is -1; it must be 0 to"):
            replace_fields(Cluster(4, Link(1e8)), **{name: -1.0}).checked()


def test_slices_are_the_stores_own_where_others_are_no_better():
    """Layers smaller than a slice, headers alone, and an allreduce, which sums neighbouring slices."""
    small = Net("small", 1, 1, (NetLayer("x", 4000, 0.0, 1e-3), NetLayer("y", 4000, 0.0, 1e-3)))
    dear, slow = Cluster(4, Link(1e8), slice_s=1e-2), Cluster(4, Link(2e7), slice_s=0.0)
    for net, cluster, way in (
        (small, dear, Way.SERVERS),
        (NET, slow, Way.SERVERS),
        (NET, dear, Way.ALLREDUCE),
        (NET, dear, Way.HYBRID),
    ):
        assert step_times(net, Sites(4, 1), cluster, way, servers=4).slice_elements == 50_000


def test_each_slice_takes_the_processors_their_time():
    """Of 4,000,000 bytes there are 20 on the busiest link between two hosts, and the last is on its way."""
    net = Net("any", 1, 1, (NetLayer("x", 4_000_000, 0.0, 1e-9),))
    times = [
        step_times(
            net, Sites(2, 1), Cluster(2, Link(1e9), slice_s=each), Way.SERVERS, servers=2, slices=(50_000,)
        ).step_s
        for each in (0.0, 1.0)
    ]
    assert times[1] - times[0] == pytest.approx(20, rel=1e-3)


def test_sites_are_where_devices_are():
    """Workers fill hosts; one that needs several hosts has whole ones."""
    cluster = Cluster(4, Link(1e9), 2)
    assert sites_of(8, 1, cluster) == Sites(4, 2)
    assert sites_of(4, 2, cluster) == Sites(4, 1, devices=2)
    assert sites_of(2, 4, cluster) == Sites(2, 1, 0.5, devices=4)
    assert sites_of(9, 1, cluster) is None
    assert sites_of(3, 4, cluster) is None
    assert sites_of(2, 3, cluster) is None


@QUICK
@given(net=NETS, hosts=st.integers(1, 8), rate=st.floats(1e6, 1e12), way=st.sampled_from(Way))
def test_a_faster_link_never_hurts_and_no_step_is_shorter_than_its_compute(net, hosts, rate, way):
    """With links without end it is the compute."""
    steps = [
        step_times(net, Sites(hosts, 1), Cluster(hosts, Link(each), slice_s=0.0), way, servers=hosts).step_s
        for each in (rate, 2 * rate, 1e300)
    ]
    assert steps[0] >= steps[1] >= net.step_s
    assert steps[2] == pytest.approx(net.step_s)


@QUICK
@given(net=NETS, hosts=st.integers(2, 8), ranks=st.integers(1, 4))
def test_devices_of_a_host_cost_its_own_link_and_no_more_of_the_network(net, hosts, ranks):
    """A slow link inside is the one that counts; a fast one changes nothing."""
    times = [
        step_times(net, Sites(hosts, each), Cluster(hosts, Link(1e8), ranks, Link(1e300)), Way.ALLREDUCE)
        for each in (1, ranks)
    ]
    assert times[0].step_s == times[1].step_s
    slow = Cluster(hosts, Link(1e300), ranks, Link(1e3))
    inside = step_times(net, Sites(hosts, ranks), slow, Way.ALLREDUCE)
    assert inside.link == ("host" if ranks > 1 and net.num_bytes else "network")
    assert inside.crossing_s == pytest.approx(2 * (ranks - 1) / ranks * net.num_bytes / 1e3)


def test_rows_of_a_table_go_by_servers_and_the_rest_by_allreduce():
    """With a thousandth of the rows touched, servers carry fewer bytes."""
    table = NetLayer("table", 400_000_000, 0.0, 0.001, 1_000_000, 0.001, 0.003)
    net = Net("words", 64, 64_000, (table, *LAYERS))
    found = plan(net, Cluster(8, Link(1e8)), FLAT, most_devices=8)
    best = {
        each.configuration.way: each for each in reversed(found.options) if each.configuration.data == 8
    }
    assert best["hybrid"].crossing_s < best["allreduce"].crossing_s
    assert best["hybrid"].configuration.partitions == 24  # three for each server, none above 16 MB
    assert best["allreduce"].configuration.partitions == 0
    assert best["hybrid"].configuration.clients == 1
    assert best["servers"].configuration.clients == 8


def test_what_is_not_known_is_left_out_with_its_reason():
    """E above the largest batch, a batch that failed, workers that fit on no host."""
    curve = EpochsCurve.of({64: 4, 128: 4, 256: None})
    found = plan(NET, Cluster(8, Link(1e9), 3), curve, [ModelParallel(2, 1.5), ModelParallel(5, 2.0)])
    reasons = {each.configuration: each.why for each in found.left_out}
    assert "did not reach the target" in reasons["4-way data x 1-way model"]
    assert "do not fit" in reasons["1-way data x 5-way model"]
    with pytest.raises(UsageError, match="measure-epochs"):
        plan(NET, FAST, EpochsCurve.of({1: 1, 2: 1}))


def test_a_plan_is_read_as_it_was_written_and_is_for_one_net_and_cluster():
    """The hashes tell others; a name does not matter."""
    found = plan(NET, FAST, INCEPTION, [ModelParallel(2, 1.32)])
    text = write_plan(found)
    assert read_plan(text, net=msgspec.structs.replace(NET, name="other"), cluster=FAST) == found
    with pytest.raises(MismatchError, match=r"plan.json is a plan for net 'small'"):
        read_plan(text, "plan.json", net=msgspec.structs.replace(NET, batch=32))
    with pytest.raises(MismatchError, match="another cluster"):
        read_plan(text, cluster=Cluster(4, Link(1e9)))
    with pytest.raises(UsageError, match="is no plan"):
        read_plan(b'{"net": 3}')
    with pytest.raises(UsageError, match="an option has no worker, or no device"):
        read_plan(re.sub(rb'"ways": 2', b'"ways": -2', text))


def test_plans_are_compared_by_their_configurations():
    """What is new, what is gone, what costs more."""
    many, few = (plan(NET, Cluster(4, Link(rate)), FLAT, most_devices=2) for rate in (1e7, 1e9))
    assert compare(many, many) == "the same"
    assert " s (-" in compare(many, few)
    assert "new: " in compare(few, plan(NET, Cluster(4, Link(1e9)), FLAT))


def test_plans_are_compared_whatever_was_measured():
    """Times of the net, its batch and the cluster may differ, and it is said; other layers may not."""
    cluster, slower = (Cluster(4, Link(rate)) for rate in (1e9, 1e7))
    again = replace_fields(NET, layers=tuple(replace_fields(each, forward_s=0.02) for each in LAYERS))
    old = plan(NET, cluster, FLAT)
    assert "the net: other times" in compare(old, plan(again, cluster, FLAT))
    assert "another cluster" not in compare(old, plan(again, cluster, FLAT))
    assert "batch of a worker: 64 -> 128" in compare(
        old, plan(replace_fields(NET, batch=128), cluster, FLAT)
    )
    assert compare(old, plan(NET, slower, FLAT)).startswith("another cluster\n")
    wider = replace_fields(NET, layers=(LAYERS[0], replace_fields(LAYERS[1], num_bytes=4_000_004)))
    for other in (replace_fields(NET, layers=LAYERS[:1]), wider):
        with pytest.raises(MismatchError, match=r"their layers have other sizes$"):
            compare(old, plan(other, cluster, FLAT))


def test_a_plan_of_an_older_version_is_compared_only_if_nothing_of_the_net_differs():
    """It does not say which layers it was for."""
    cluster = Cluster(4, Link(1e9))
    old = replace_fields(plan(NET, cluster, FLAT), net_structure="")
    assert compare(old, plan(NET, cluster, FLAT)) == "the same"
    with pytest.raises(MismatchError, match="older version"):
        compare(old, plan(replace_fields(NET, samples=1), cluster, FLAT))


def test_a_plan_sets_a_job():
    """Workers are data-parallel, each of some ranks."""
    found = plan(NET, Cluster(64, Link(1e12)), INCEPTION, [ModelParallel(2, 1.32)])
    best = found.best.configuration
    job = job_of(found)
    assert (best.data, best.ways) == (32, 2)
    assert (job["num_workers"], job["model_parallel"], job["num_clients"]) == (32, 2, best.clients)


def test_clients_have_equal_numbers_of_workers():
    """Eight workers on hosts of three have no servers: each of the three hosts would be a client."""
    found = plan(NET, Cluster(4, Link(1e9), 3), FLAT, most_devices=8)
    ways = {data: set() for data in (1, 2, 4, 8)}
    for each in found.options:
        ways[each.configuration.data].add(each.configuration.way)
        assert each.configuration.data % each.configuration.clients == 0
    assert ways == {1: {""}, 2: {"allreduce"}, 4: {"allreduce", "servers"}, 8: {"allreduce"}}


def test_a_cluster_is_read_as_it_was_written():
    """In TOML, with a remark; what is wrong is named, and that nothing is there."""
    cluster = Cluster(
        8,
        Link(1e9, 1e-5, 2e-6),
        2,
        Link(6e9),
        Rows(4e-9, 1e-4),
        ServedRows(),
        Roofline(1e12, 1e11),
        slice_s=6e-5,
    )
    assert read_cluster(write_cluster(cluster, "measured\ntoday")) == cluster
    for text, what in (
        ("", "cluster.toml describes no cluster: it is empty; mpilaunch measure-links writes one"),
        ("# nothing\n", "it is empty"),
        ("hosts = 2", "network"),
        ("hosts = [", "cluster.toml"),
        ("hosts = 2\nrouters = 1", "routers"),
    ):
        with pytest.raises(UsageError, match=what):
            read_cluster(text, "cluster.toml")
    for text in (
        "hosts = 2\n[network]\nbytes_per_s = 0.0",
        "[network]\nbytes_per_s = 1\n[rows_servers]\nbyte_s = -1",
    ):
        with pytest.raises(
            UsageError, match=r"bytes_per_s is 0; it must be positive|byte_s is -1; it must be 0 to"
        ):
            read_cluster(f"hosts = 2\n{text.removeprefix('hosts = 2')}")


def test_a_net_is_read_as_it_was_written_and_checked():
    """A share of rows above 1 cannot be."""
    assert read_net(write_net(NET)) == NET
    bad = msgspec.structs.replace(NET, layers=(NetLayer("table", 8, 0.0, 1.0, 2, 1.5),))
    with pytest.raises(UsageError, match="layer 'table'"):
        read_net(write_net(bad))
    with pytest.raises(UsageError, match="a step that takes time"):
        read_net(write_net(msgspec.structs.replace(NET, layers=())))


def test_a_roofline_is_arithmetic_or_memory():
    """Whichever takes longer, and the start."""
    device = Roofline(1e9, 4e8, 1e-3)
    assert device.seconds(1e9, 0) == pytest.approx(1.001)
    assert device.seconds(1e6, 1e8) == pytest.approx(1.001)


def test_devices_of_a_cluster_are_placed_on_by_name():
    """Those of several hosts over the network, those of one over its own links; of a worker, its part."""
    cluster = Cluster(2, Link(1e6, 1e-3), 2, Link(1e9))
    assert [each.name for each in cluster.all_devices] == [
        "host0.device0",
        "host0.device1",
        "host1.device0",
        "host1.device1",
    ]
    assert cluster.route("host0.device0", "host0.device1", 1)[0].bytes_per_s == 1e9
    assert cluster.route("host0.device0", "host1.device1", 1)[0].latency_s == 1e-3
    of_two, of_four = cluster.of_one_worker(2), cluster.of_one_worker(4)
    assert [each.name for each in of_two.all_devices] == ["device0", "device1"]
    assert of_two.route("device0", "device1", 1)[0].bytes_per_s == 1e9
    assert of_four.all_devices == cluster.all_devices
    assert cluster.of_one_worker(1).num_devices == 1
    assert cluster.of_one_worker(3) is None
    assert cluster.of_one_worker(8) is None


UNLIKE = """
hosts = 2
routers = ["switch"]
[network]
bytes_per_s = 1e8
[[devices]]
name = "fast"
speed = 2.0
memory_bytes = 1000
[[devices]]
name = "slow"
[[links]]
source = "fast"
target = "switch"
bytes_per_s = 5e8
[[links]]
source = "switch"
target = "fast"
bytes_per_s = 1e9
[[links]]
source = "slow"
target = "switch"
bytes_per_s = 1e9
[[links]]
source = "switch"
target = "slow"
bytes_per_s = 1e9
"""


def test_one_file_has_devices_routers_and_links_as_well():
    """Where a host's devices differ; the slowest link stands for all where one number is asked for."""
    cluster = read_cluster(UNLIKE)
    assert read_cluster(write_cluster(cluster)) == cluster
    assert (cluster.num_devices, cluster.within_host.bytes_per_s) == (4, 5e8)
    way = cluster.route("host1.fast", "host1.slow", 8)
    assert [each.target for each in way] == ["host1.switch", "host1.slow"]
    assert cluster.by_name()["host0.fast"].memory_bytes == 1000
    assert sites_of(2, 2, cluster) == Sites(2, 1, speed=2.0, devices=1.5)
    first = cluster.of_one_worker(1)
    assert ([each.name for each in first.all_devices], len(first.all_links)) == (["fast"], 2)
    with pytest.raises(
        UsageError, match=r"cluster.toml describes no cluster: no way leads from fast to slow"
    ):
        read_cluster(UNLIKE.rpartition('[[links]]\nsource = "slow"')[0], "cluster.toml")
