"""Plans for hosts whose devices differ: who has which, and for whom the others wait."""

from __future__ import annotations

import msgspec
import pytest
from support.placement_twins import graph_of

from kvstore_mpi.planner import Cluster, EpochsCurve, Link, ModelParallel, Net, NetLayer, plan
from kvstore_mpi.planner.cluster import Device
from kvstore_mpi.planner.communication import sites_of
from kvstore_mpi.planner.cuts import PIPELINE, Parts
from kvstore_mpi.planner.sending import Sites
from kvstore_mpi.planner.workers import divided

FLAT = EpochsCurve.of({8: 4, 64: 4})
NET = Net("small", 8, 800, (NetLayer("w", 4000, 4.0, 8.0),), 3.0)
CHAIN = graph_of(["ab", "bc", "cd"], a=1.0, b=1.0, c=1.0, d=1.0)


def host_of(*speeds, hosts=1):
    """Return hosts with devices of these speeds, and links and slices that take no time to speak of."""
    devices = tuple(Device(f"card{number}", speed) for number, speed in enumerate(speeds))
    return Cluster(hosts, Link(1e15), devices, Link(1e15), slice_s=0.0)


def steps_of(cluster, net=NET, **options):
    """Return T of workers, by their number and the devices of each."""
    found = plan(net, cluster, FLAT, **options)
    return {(each.configuration.data, each.configuration.ways): each for each in found.options}


def test_faster_devices_have_shorter_steps():
    """By what layers take of them; what belongs to no layer takes as long as ever."""
    for speed in (1.0, 10.0):
        found = steps_of(host_of(speed, hosts=4))
        assert found[1, 1].step_s == pytest.approx(12 / speed + 3)
        assert found[4, 1].step_s == pytest.approx(12 / speed + 3)


def test_workers_wait_for_the_slowest_of_them():
    """They have the devices in the order of the cluster, and one that is not used slows nobody down."""
    found = steps_of(host_of(4.0, 2.0, 1.0))
    steps = {data: found[data, 1].step_s for data in (1, 2, 3)}
    assert steps == {data: pytest.approx(12 / speed + 3) for data, speed in ((1, 4.0), (2, 2.0), (3, 1.0))}
    assert found[2, 1].idle == pytest.approx(1 - 2 * 2 / (4 + 2))


@pytest.mark.parametrize(
    ("speeds", "workers", "ways", "speed", "devices"),
    [
        ((2.0, 1.0), 1, 2, 2.0, 1.5),
        ((2.0, 1.0, 2.0, 1.0), 2, 2, 2.0, 1.5),
        ((2.0, 2.0, 1.0, 1.0), 2, 2, 1.0, 3.0),
        ((2.0, 2.0, 2.0, 0.5), 2, 2, 0.5, 6.5),
        ((1.0, 1.0, 4.0, 4.0), 2, 2, 1.0, 5.0),
    ],
)
def test_a_worker_is_as_slow_as_its_device_that_is_slowest_beside_the_first_ones(
    speeds, workers, ways, speed, devices
):
    """In its place: nets are divided for the first worker, and all have its cut."""
    assert sites_of(workers, ways, host_of(*speeds)) == Sites(1, workers, 1.0, speed, devices)
    both = sites_of(1, 2 * len(speeds), host_of(*speeds, hosts=2))
    assert both == Sites(1, 1, 0.5, max(speeds), 2 * sum(speeds) / max(speeds))


def test_a_speed_up_is_over_the_fastest_device_of_a_worker():
    """Of the whole step: two devices of speed 2 take the seconds of one of them over that."""
    found = steps_of(host_of(2.0, 2.0), model_parallel=[ModelParallel(2, 1.5)])
    assert found[1, 2].step_s == pytest.approx((12 / 2 + 3) / 1.5)
    assert found[1, 2].idle == pytest.approx(1 - 1.5 / 2)


@pytest.mark.parametrize("speeds", [(1.0, 1.0), (4.0, 4.0), (4.0, 2.0), (1.0, 2.0)])
def test_a_step_of_unequal_devices_is_as_long_as_its_longest_chain(speeds):
    """And what belongs to no layer: T of a divided net and its predicted step agree at every speed."""
    layer = NetLayer("w", 4000, 16.0, 32.0)
    net = Net("small", 8, 800, (layer,), 3.0, Parts(CHAIN, PIPELINE, 4))
    found = plan(net, host_of(*speeds), FLAT, ways=2)
    assert found.best.step_s == pytest.approx(found.workers[0].chain.seconds + 3)


def test_a_pipeline_is_cut_where_stages_of_unequal_devices_take_as_long():
    """Four layers on devices of which one is three times as fast: it has three of them, whichever it is."""
    parts = Parts(CHAIN, PIPELINE, 8)
    for speeds, first in (((3.0, 1.0), "abc"), ((1.0, 3.0), "a"), ((2.0, 2.0), "ab")):
        assert divided(parts, host_of(*speeds), 2).cut.forward[0] == tuple(first)


def test_each_stage_of_a_pipeline_has_the_memory_of_its_own_device():
    """What has little is given the last layers, which fit."""
    sizes = {"a": 1000, "b": 1000, "c": 1000, "d": 10}
    graph = msgspec.structs.replace(
        CHAIN,
        operations=tuple(
            msgspec.structs.replace(each, parameter_bytes=sizes[each.name]) for each in CHAIN.operations
        ),
    )
    devices = (Device("large", memory_bytes=5000), Device("small", memory_bytes=100))
    cluster = msgspec.structs.replace(host_of(1.0), devices=devices)
    assert divided(Parts(graph, PIPELINE, 2), cluster, 2).cut.forward == (("a", "b", "c"), ("d",))
