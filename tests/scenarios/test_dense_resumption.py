"""Whole jobs in threads that go on from the snapshots of more or fewer servers."""

from __future__ import annotations

import threading

import numpy as np

from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

SIZES = {"a": 23, "b": 1, "c": 0, "d": 8}
ADAM = OptimizerSpec(name="adam", hyper=HyperParameters(lr=0.25), params={})


def wait(call, *args):
    """Make an asynchronous call and wait for its end."""
    ended, errors = threading.Event(), []

    def done(error):
        errors.append(error)
        ended.set()

    call(*args, done)
    assert ended.wait(60)
    if errors[0] is not None:
        raise errors[0]


def train(worker, steps, sizes=SIZES):
    """Train for some steps; return what the keys were before each and at the end, and their states."""
    store = worker.open_store("sync")
    worker.set_optimizer(store, ADAM.to_dict())
    buffers = {}
    for key, size in sizes.items():
        buffers[key] = worker.exchange_buffer(size, "float32")
        # What a job gives that goes on does not count.
        buffers[key][...] = np.arange(size) + 100 * steps.start
        wait(worker.init, store, key, (size,), buffers[key])
    seen = [{key: buffer.tolist() for key, buffer in buffers.items()}]
    for step in steps:
        for number, (key, buffer) in enumerate(buffers.items()):
            buffer[...] = (np.arange(buffer.size) * step + worker.rank + number) % 5 - 1
            wait(worker.pushpull, store, key, 0)
        seen.append({key: buffer.tolist() for key, buffer in buffers.items()})
    states = worker.optimizer_states(store)
    return seen, {
        key: (state.updates, [array.tolist() for array in state.arrays]) for key, state in states.items()
    }


def expected_bytes(server):
    """Return how many bytes of answers to each worker a server reckons with in a round."""
    lanes = server._replies._queue._lanes
    return {peer.index: lane.window._iteration_bytes for peer, lane in lanes.items()}


def job(servers, slices=5, **config):
    return Cluster(MemoryNetwork().transport, clients=2, servers=servers, slice_elements=slices, **config)


def test_a_job_goes_on_with_other_servers_and_slices(tmp_path):
    """Each step is that of a job without a break, to the bit; so are the states at the end."""
    with job(2) as cluster:
        expected = cluster.on_all(lambda worker: train(worker, range(18)))
    found = []
    for servers, slices, first in ((2, 5, 0), (1, 5, 3), (3, 5, 6), (3, 11, 9), (3, 4, 12), (3, 4, 15)):
        steps = range(first, first + 3)
        with job(servers, slices, snapshot_dir=str(tmp_path), resume=first > 0) as cluster:
            found.append(cluster.on_all(lambda worker, steps=steps: train(worker, steps)))
        assert not cluster.errors
        # Windows are as large as for keys that are new.
        reckoned = [expected_bytes(server) for server in cluster.servers]
        assert [sum(each.get(rank, 0) for each in reckoned) for rank in (0, 1)] == 2 * [
            4 * sum(SIZES.values())
        ]
        assert len([*tmp_path.glob("*.snapshot")]) == servers
    for rank in (0, 1):
        seen = [each for part in found for each in part[rank][0][1:]]
        assert seen == expected[rank][0][1:]
        # Nor does what is given count, or what a worker had before the first step.
        assert found[1][rank][0][0] == found[0][rank][0][-1]
    assert found[-1][0][1] == expected[0][1]


def test_a_job_leaves_keys_to_the_one_after_it(tmp_path):
    """Which has them as the one before it left them, wherever they lay meanwhile."""
    with job(2) as cluster:
        uncut = cluster.on_all(lambda worker: train(worker, range(6)))
    some = {key: SIZES[key] for key in ("a", "b")}
    for servers, steps, sizes in ((2, range(3), SIZES), (3, range(50, 52), some), (2, range(3, 6), SIZES)):
        with job(servers, snapshot_dir=str(tmp_path), resume=steps.start > 0) as cluster:
            last = cluster.on_all(lambda worker, steps=steps, sizes=sizes: train(worker, steps, sizes))
        assert not cluster.errors
    for (seen, _), (expected, _) in zip(last, uncut):
        for key in SIZES.keys() - some.keys():
            assert [each[key] for each in seen[1:]] == [each[key] for each in expected[4:]]
