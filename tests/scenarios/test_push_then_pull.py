"""Push and then pull through whole jobs in memory: what is right, and what travels for it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402
from kvstore_mpi.wire import messages as m  # noqa: E402
from kvstore_mpi.wire.io_loop import IoLoop  # noqa: E402

pytestmark = pytest.mark.mxnet
SHAPE, STEPS = (500,), 5


@pytest.fixture
def sent(monkeypatch):
    """Count the messages that all processes send, by type; and pushes that want a value."""
    counts = Counter()
    send = IoLoop.send

    def counting(loop, peer, message, *rest):
        counts[type(message)] += 1
        counts["wanted"] += type(message) is m.Push and message.entries[0][4]
        return send(loop, peer, message, *rest)

    monkeypatch.setattr(IoLoop, "send", counting)
    return counts


def open_stores(job, mode):
    """Open the store of each worker of a job; in async mode all that is pushed is subtracted."""
    stores = [KVStoreMPI(mode, worker) for worker in job.workers]
    if mode == "async":
        job.together([lambda kv=kv: kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0)) for kv in stores])
    for kv in stores:
        kv.init("w", mx.nd.zeros(SHAPE))
    mx.nd.waitall()
    return stores


def step(stores, pulls):
    """Let all workers push, and those that ``pulls`` names by rank pull; return what they get, by rank."""
    outs = {}
    for kv in stores:
        kv.push("w", mx.nd.full(SHAPE, kv.rank + 1))
        if kv.rank in pulls:
            outs[kv.rank] = mx.nd.zeros(SHAPE)
            kv.pull("w", out=outs[kv.rank])
    mx.nd.waitall()
    return {rank: out.asnumpy() for rank, out in outs.items()}


def possible(number, clients, ranks):
    """Return what a worker may see after its client's push, with those of others or without."""
    sums = [sum(client * ranks + rank + 1 for rank in range(ranks)) for client in range(clients)]
    return [-number * sum(sums) - own for own in {*sums, sum(sums)}]


@pytest.mark.parametrize(
    ("mode", "layout", "leaders"),
    [
        ("sync", (2, 1, 2), "one"),
        ("async", (2, 1, 1), "one"),
        ("sync", (1, 2, 1), "one"),
        ("async", (2, 2, 2), "all"),
    ],
)
def test_from_the_second_step_on_nobody_asks(sent, mode, layout, leaders):
    """Every push is answered with the value, which all ranks of all clients get."""
    clients, ranks, servers = layout
    network = MemoryNetwork()
    with Cluster(
        network.transport,
        clients=clients,
        workers_per_client=ranks,
        servers=servers,
        slice_elements=200,
        leaders=leaders,
    ) as job:
        stores = open_stores(job, mode)
        everybody = range(len(stores))
        total = sum(rank + 1 for rank in everybody)
        for number in range(STEPS):
            if number == 1:
                sent.clear()
            values = step(stores, everybody)
            expected = [total] if mode == "sync" else possible(number, clients, ranks)
            assert all(np.all(np.isin(value, expected)) for value in values.values())
        # An asynchronous push may be over before the pull is called, which then has to ask.
        if mode == "sync":
            assert sent[m.Pull] == 0
            assert sent["wanted"] == sent[m.Push] > 0
        assert engine.wait_until_idle(60)


def test_rank_0_alone_looks(sent):
    """In a client of two: the push after its pull brings the value, and all others bring none."""
    network = MemoryNetwork()
    with Cluster(network.transport, workers_per_client=2, servers=1) as job:
        stores = open_stores(job, "sync")
        sent.clear()
        for number in range(6):
            values = step(stores, [0] if number in {1, 2, 4} else [])
            assert all(np.all(value == 3) for value in values.values())
        assert sent["wanted"] == 3
        assert sent[m.Push] == 6
        assert sent[m.Pull] == 2  # in steps 1 and 4; of steps 2, 3 and 5 the values came unasked
        sent.clear()
        values = step(stores, [1])
        assert np.all(values[1] == 3)
        values = step(stores, [1])
        assert np.all(values[1] == 3)
        assert (sent["wanted"], sent[m.Pull]) == (0, 2)
        assert engine.wait_until_idle(60)
