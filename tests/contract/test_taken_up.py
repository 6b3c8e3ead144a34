"""Gradients of other weights than those that a job has, which goes on, do not count."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from mxnet import autograd, gluon  # noqa: E402
from support.hybrid_jobs import hybrid_jobs  # noqa: E402

from kvstore_mpi.adapters.mxnet import ElasticCallback, ElasticTrainer, KVStoreMPI, take_up  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.mxnet

MODES = ["sync", "async"]


@pytest.fixture
def workers():
    """Return two workers, of which the second takes part in a job that goes on."""
    with hybrid_jobs() as make:
        found = make(clients=2).workers
        found[1].takes_up = frozenset(MODES)
        yield found


class Script:
    """A net of one weight for each of four words, and its Trainer."""

    def __init__(self, worker, mode, weight, *, sparse_grad=False):
        """Begin with the same weight everywhere."""
        self.net = gluon.nn.Embedding(4, 2, sparse_grad=sparse_grad)
        self.net.initialize(mx.init.Constant(weight))
        store = KVStoreMPI(mode, worker)
        self.trainer = gluon.Trainer(
            self.net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=store
        )

    def compute(self):
        """Compute the gradient, which is the weight, in rows 1 and 3."""
        with autograd.record():
            loss = (self.net(mx.nd.array([1, 3])) ** 2).sum() / 2
        loss.backward()

    def check(self, trained):
        """Check the weights of rows 1 and 3."""
        weight = self.net.weight.data().asnumpy()
        np.testing.assert_array_equal(weight[1::2], np.full((2, 2), trained, np.float32))


@pytest.mark.parametrize("sparse_grad", [False, True], ids=["dense", "rows"])
def test_in_an_asynchronous_store_a_first_gradient_of_other_weights_is_left_out(workers, sparse_grad):
    """A step brings the present weights, and the next one counts."""
    first, late = (Script(each, "async", 8.0, sparse_grad=sparse_grad) for each in workers)
    for _ in range(3):
        first.compute()
        first.trainer.step(1)
    first.check(1.0)
    late.compute()
    late.trainer.step(1)
    late.check(1.0)
    late.compute()
    late.trainer.step(1)
    late.check(0.5)


@pytest.mark.parametrize("sparse_grad", [False, True], ids=["dense", "rows"])
def test_in_a_synchronous_store_it_is_an_error(workers, sparse_grad):
    """It names the key, and what to call before."""
    first, resumed = (
        Script(each, "sync", weight, sparse_grad=sparse_grad) for each, weight in zip(workers, (8.0, 4.0))
    )
    take_up(first.trainer)
    resumed.compute()
    with pytest.raises(UsageError, match=r"worker 1: key 0: .* resumed, .*take_up\(trainer\) before"):
        resumed.trainer.step(1)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_weights_that_were_taken_up_count(workers, mode):
    """Also after a pass with others, and divided by the size of each batch."""
    scripts = [Script(each, mode, weight) for each, weight in zip(workers, (8.0, 4.0))]
    scripts[1].compute()
    for each in scripts:
        take_up(each.trainer)
    for each in scripts:
        each.check(8.0)
        each.compute()
    for each in scripts:
        each.trainer.step(2)
        if mode == "async":  # or the second may read its weight before the first's gradient has come
            mx.nd.waitall()
    mx.nd.waitall()
    scripts[1].check(8.0 - 2 * 0.5 * 8.0 / 2)


def test_equal_weights_are_no_error(workers):
    """A script that loads the weights of its last step can begin with a gradient."""
    scripts = [Script(each, "sync", 8.0) for each in workers]
    for each in scripts:
        each.compute()
    for each in scripts:
        each.trainer.step(1)
    for each in scripts:
        each.check(0.0)


def test_what_cannot_be_taken_up(workers):
    """What is no Trainer, and what has no shape."""
    net = gluon.nn.Dense(1, prefix="late_")
    net.initialize()
    with pytest.raises(UsageError, match=r"take_up is for a gluon\.Trainer, and this is a Dense"):
        take_up(net)
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=KVStoreMPI("sync", workers[0]))
    with pytest.raises(UsageError, match=r"parameter late_weight has no shape yet: call net\(data\) once"):
        take_up(trainer)


class Elastic(Script):
    """One that meets a center, from time to time."""

    def __init__(self, worker, weight):
        """Begin with the same weight everywhere."""
        self.net = gluon.nn.Embedding(4, 2)
        self.net.initialize(mx.init.Constant(weight))
        hyper, store = {"learning_rate": 0.5, "momentum": 0.5}, KVStoreMPI("async", worker)
        self.trainer = ElasticTrainer(self.net.collect_params(), "sgd", hyper, kvstore=store)


def test_parameters_that_meet_a_center_begin_with_it(workers):
    """The first pass of who comes later is then made with it, and counts; so it does after another one."""
    _, late = scripts = [Elastic(worker, weight) for worker, weight in zip(workers, (8.0, 4.0))]
    late.compute()
    for each in scripts:
        take_up(each.trainer)
        each.check(8.0)
    for each in scripts:
        each.compute()
        each.trainer.step(1)
        each.check(4.0)


@pytest.mark.parametrize("halves", [False, True], ids=["step", "halves"])
def test_a_first_gradient_of_weights_that_a_center_replaces_is_left_out(workers, halves):
    """Without a trace in the momentum; the step counts, and none is made without a pass of its own."""
    first, late = (Elastic(worker, weight) for worker, weight in zip(workers, (8.0, 400.0)))
    first.trainer.join()
    for trained in (8.0, 4.0):
        late.compute()
        if halves:
            late.trainer.allreduce_grads()
            late.trainer.update(1)
        else:
            late.trainer.step(1)
        late.check(trained)
        with pytest.raises(UserWarning, match="has not been updated by backward"):
            late.trainer.step(1)
    assert late.trainer._centers.steps == 2


def test_a_pass_through_some_layers_counts(workers):
    """Others have no gradient of it, since the center was written to them."""
    nets, trainers = [], []
    for worker, weight in zip(workers, (8.0, 400.0)):
        net = gluon.nn.HybridSequential(prefix="some_")
        with net.name_scope():
            net.add(gluon.nn.Embedding(4, 2), gluon.nn.Embedding(4, 2))
        net.initialize(mx.init.Constant(weight))
        hyper, store = {"learning_rate": 0.5}, KVStoreMPI("async", worker)
        trainers.append(ElasticTrainer(net.collect_params(), "sgd", hyper, kvstore=store))
        trainers[-1].join()
        nets.append(net)
    with autograd.record():
        loss = (nets[1][0](mx.nd.array([1, 3])) ** 2).sum() / 2
    loss.backward()
    trainers[1].step(1, ignore_stale_grad=True)
    expected = np.array([8.0, 4.0, 8.0, 4.0], np.float32)
    np.testing.assert_array_equal(nets[1][0].weight.data().asnumpy()[:, 0], expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_a_module_keeps_of_its_first_gradient_is_forgotten(workers, optimizer):
    """Its weights are the center's after the first batch, and it goes on as if it had begun there."""
    product = mx.sym.broadcast_mul(mx.sym.var("data"), mx.sym.var("w_weight", shape=(1, 1)))
    symbol = mx.sym.LinearRegressionOutput(product, name="out")
    hyper = {"learning_rate": 0.125, "momentum": 0.5} if optimizer == "sgd" else {"learning_rate": 0.5}

    def fit(weight, num_batches, **given):
        found = []
        inputs, targets = np.ones((num_batches, 1), np.float32), np.zeros((num_batches, 1), np.float32)
        batches = mx.io.NDArrayIter(inputs, targets, 1, label_name="out_label")
        given["batch_end_callback"].append(
            lambda param: found.append(param.locals["self"].get_params()[0]["w_weight"].asscalar())
        )
        mx.mod.Module(symbol, label_names=["out_label"]).fit(
            batches, num_epoch=1, initializer=mx.init.Constant(weight), eval_metric="mse",
            optimizer=optimizer, optimizer_params=hyper, **given,
        )  # fmt: skip
        return found

    kv = [KVStoreMPI("async", worker) for worker in workers]
    elastic = [ElasticCallback(each, interval=50) for each in kv]
    [center] = fit(8.0, 1, kvstore=elastic[0].client_store, batch_end_callback=[elastic[0]])
    late = fit(400.0, 3, kvstore=elastic[1].client_store, batch_end_callback=[elastic[1]])
    assert late == [center, *fit(center, 2, kvstore=None, batch_end_callback=[])]


def test_what_servers_have_updated_no_worker_updates(workers):
    """In a job that goes on: they would take its pushes for gradients. Sums of integers go on."""
    for worker in workers:
        worker.takes_up = frozenset(MODES)
    stores = [KVStoreMPI("sync", worker) for worker in workers]
    values = {"count": mx.nd.ones(2, dtype="int64"), "weight": mx.nd.ones(2)}
    for key, value in values.items():
        for store in stores:
            store.init(key, value)
    ended = [Future() for _ in range(4)]
    for number, (store, key) in enumerate((store, key) for key in values for store in stores):
        worker, known = store._exchange.worker, store._exchange.store
        worker.push(known, key, 0, ended[number].set_result)  # as before the break
    assert [each.result(20) for each in ended] == [None] * 4
    for store in stores:
        store.push("count", values["count"])
        with pytest.raises(UsageError, match=r"key 'weight': this job is resumed, .* made 1 updates"):
            store.push("weight", values["weight"])
        store.pull("count", out=(out := mx.nd.zeros(2, dtype="int64")))
    np.testing.assert_array_equal(out.asnumpy(), 2)


class OfTheUsers(mx.optimizer.SGD):
    """One that servers do not have."""


def test_keys_that_workers_update_may_come_later(workers):
    """What has been pushed in this job was not updated in the one before."""
    for worker in workers:
        worker.takes_up = frozenset(MODES)
    stores = [KVStoreMPI("sync", worker) for worker in workers]
    for store in stores:
        store.set_optimizer(OfTheUsers(learning_rate=0.25))
    out = mx.nd.zeros(2)
    for key in ("first", "second"):
        for store in stores:
            store.init(key, mx.nd.ones(2))
        for pushed in (key, "first"):
            for store in stores:
                store.push(pushed, mx.nd.ones(2))
                store.pull(pushed, out=out)
            out.wait_to_read()
    assert out.asnumpy().tolist() == [1 - 3 * 0.5, 1 - 3 * 0.5]
