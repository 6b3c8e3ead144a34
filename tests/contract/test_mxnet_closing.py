"""The MXNet store when it is closed: what it says to whoever uses it then, and what it keeps."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

mx = pytest.importorskip("mxnet")

from support.hybrid_jobs import hybrid_jobs  # noqa: E402

from kvstore_mpi.adapters.mxnet import ClientStore, KVStoreMPI, TableEmbedding  # noqa: E402
from kvstore_mpi.adapters.mxnet.tables import live_cuts  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.hybrid import partitions  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet

CLOSED = (
    r"store 0 is closed, and with it whatever it was given to \(a Trainer, a Module, a TableEmbedding\)"
)


def ones(size=5):
    return mx.nd.ones((size,))


def sgd():
    return mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.5)


def opened(worker, mode="sync"):
    """Return a store that has a key, an optimizer with a state, and a push under way."""
    kv = KVStoreMPI(mode, worker)
    kv.set_optimizer(sgd())
    kv.init("w", ones())
    kv.push("w", ones())
    return kv


@pytest.mark.parametrize("num_servers", [0, 2])
def test_a_closed_store_says_so_whatever_is_called(make_group, num_servers):
    """Each call of it, in one sentence; closing it again is nothing, and another store is as it was."""
    (worker,) = make_group(1, num_servers=num_servers).workers
    kv, other = opened(worker), opened(worker)
    kv.close()
    kv.close()
    out, rows = mx.nd.zeros((5,)), mx.nd.sparse.zeros("row_sparse", (5, 2))
    for call in (
        lambda: kv.init("v", ones()),
        lambda: kv.broadcast("v", ones(), out),
        lambda: kv.push("w", ones()),
        lambda: kv.pull("w", out=out),
        kv.client_store,
        lambda: kv.set_gradient_compression({"type": "float16"}),
        lambda: kv.pushpull("w", ones(), out=out),
        lambda: kv.row_sparse_pull("w", out=rows, row_ids=mx.nd.array([1])),
        lambda: kv.set_optimizer(sgd()),
        lambda: kv.save_optimizer_states("nowhere"),
        lambda: kv.load_optimizer_states("nowhere"),
        lambda: kv.clip_global_norm(1.0),
        kv.average_weights,
        lambda: kv.compensate_delays("dc-asgd"),
        lambda: kv.pull_averages("w", out),
        kv.plan,
        kv.barrier,
    ):
        with pytest.raises(UsageError, match=CLOSED):
            call()
    other.pull("w", out=out)
    assert out.asnumpy().tolist() == [0.5] * 5
    assert worker.closed_stores == {0}
    assert (kv.rank, kv.type, kv.server_optimizer) == (0, "dist_sync_mpi", None)


def trained(trainer, net):
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 4))).sum()
    loss.backward()
    trainer.step(2)


@pytest.mark.parametrize("servers", [0, 1])
def test_a_closed_store_keeps_nothing_though_a_trainer_has_it(servers):
    """Neither arrays nor the states of an optimizer; the Trainer says why it cannot go on."""
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize()
    with Cluster(MemoryNetwork().transport, servers=servers) as job:
        kv = KVStoreMPI("sync", job.workers[0])
        trainer = mx.gluon.Trainer(net.collect_params(), sgd(), kvstore=kv)
        trained(trainer, net)
        kept = [weakref.ref(staging) for staging in kv._exchange.stagings.values()]
        kept += [weakref.ref(kv._updates), weakref.ref(kv._updates.updater)]
        assert len(kept) == 4
        gc.disable()
        try:
            kv.close()
            assert [each() for each in kept] == [None] * 4
        finally:
            gc.enable()
        with pytest.raises(UsageError, match=CLOSED):
            trained(trainer, net)
        with pytest.raises(UsageError, match=CLOSED):
            trainer.save_states("nowhere")
    assert job.errors == {}


def test_what_has_gone_wrong_before_is_said_instead(make_group):
    """Nobody can tell any more whether the others come."""
    group = make_group(1, num_servers=1)
    kv = opened(group.workers[0])
    group.fail(lambda call: call.name == "pull", RuntimeError("lost"))
    kv.pull("w", out=ones())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="lost"):
            kv.close()
    assert group.workers[0].closed_stores == set()
    with contextlib.suppress(mx.MXNetError):
        mx.nd.waitall()  # or MXNet might raise it in the next test


def test_what_is_under_way_is_completed_first(make_group):
    """A value that was pulled before is there."""
    group = make_group(1, num_servers=1)
    kv, out = opened(group.workers[0]), mx.nd.zeros((5,))
    kv.pull("w", out=out)
    kv.close()
    assert out.asnumpy().tolist() == [0.5] * 5


def test_a_table_of_a_closed_store_ends_its_own_call_only():
    """Other stores of the job go on: nothing of the table is queued that could fail for all."""
    with Cluster(MemoryNetwork().transport, servers=1) as job:
        (worker,) = job.workers
        kv, other = opened(worker), opened(worker)
        table = TableEmbedding(kv, "users", 3)
        kv.close()
        for call in (
            lambda: table(mx.nd.array([1])),
            lambda: table.step(1),
            lambda: TableEmbedding(kv, "more", 3),
        ):
            with pytest.raises(UsageError, match="closed"):
                call()
        out = mx.nd.zeros((5,))
        other.pull("w", out=out)
        assert out.asnumpy().tolist() == [0.5] * 5
        assert worker.failure() is None
    assert job.errors == {}


def test_a_store_of_two_kinds_of_keys_is_closed_as_one():
    """Also the part of it whose keys the workers sum."""
    with hybrid_jobs() as make:
        job = make(workers_per_client=1)
        (worker,) = job.workers
        kv = KVStoreMPI("sync", worker)
        kv.set_optimizer(sgd())
        kv.init("w", ones())
        kv.init("t", mx.nd.zeros((6, 2)).tostype("row_sparse"))
        kv.init("v", ones())
        kv.close()
        assert [*worker._state.keys] == []
        assert worker._closed_stores == set(range(len(worker._modes)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_measured_of_a_store_is_closed_with_it(monkeypatch, ranks):
    """The times of its steps, of which rounds wait for all workers, and the counts of its tables' rows."""
    for module in (partitions, live_cuts):
        monkeypatch.setattr(module, "SAMPLE_STEPS", 1)
    with Cluster(MemoryNetwork().transport, workers_per_client=ranks, servers=2) as job:

        def run(worker):
            kv = KVStoreMPI("sync", worker)
            kv.partitioner("*", "auto")
            kv.set_optimizer(sgd())
            table = TableEmbedding(kv, "users", 3)
            for _ in range(partitions.steps_until_sample()):
                with mx.autograd.record():
                    loss = table(mx.nd.array([1, 2, 3])).sum()
                loss.backward()
                table.step(1)
            kv.close()
            assert [*worker._state.keys] == []
            assert worker._closed_stores == set(range(len(worker._modes)))
            return len(worker._modes)

        assert job.on_all(run) == [1 + ranks] * ranks
    assert job.errors == {}


def test_a_client_s_own_store_is_closed_with_the_one_that_it_came_from():
    """An ElasticTrainer has one that nobody else knows."""
    with Cluster(MemoryNetwork().transport, servers=1) as job:
        (worker,) = job.workers
        kv = KVStoreMPI("async", worker)
        own = [kv.client_store() for _ in range(2)]
        for each in own:
            each.init("w", ones())
        own[1].close()
        kv.close()
        assert worker._closed_stores == {0, 1, 2}
        with pytest.raises(UsageError, match="store 1 is closed"):
            own[0].push("w", ones())


def test_a_client_s_own_store_is_closed_like_others():
    with Cluster(MemoryNetwork().transport, clients=2, servers=1) as job:
        kv = ClientStore(job.workers[0])
        job.workers[1].open_store("client")
        kv.init("w", ones())
        job.together([kv.close, lambda: job.workers[1].close_store(0)])
        with pytest.raises(UsageError, match=CLOSED):
            kv.pull("w", out=ones())
