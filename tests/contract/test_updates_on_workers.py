"""Optimizers and schedules that the servers do not know: who applies them, and when that is refused."""

from __future__ import annotations

import importlib
import logging

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.hyper_watch import HyperWatch  # noqa: E402
from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.updates.hyper_parameters import MXNetHyper  # noqa: E402
from kvstore_mpi.errors import UnsupportedError, UsageError  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402
from kvstore_mpi.testing.mxnet_compatibility import Lion, schedule  # noqa: E402

pytestmark = pytest.mark.mxnet


@pytest.fixture
def make_store():
    """Make stores of one worker and two servers."""
    with local_groups() as make:
        yield lambda mode="sync": KVStoreMPI(mode, make(num_servers=2).workers[0])
        mx.nd.waitall()  # before the workers that answer are gone
    assert engine.wait_until_idle(60)


def test_workers_say_what_they_do(make_store, caplog):
    """Rank 0 says which optimizer is not on the servers, why, and what snapshots then have."""
    with caplog.at_level(logging.WARNING, logger="kvstore_mpi"):
        make_store().set_optimizer(Lion())
    (record,) = caplog.records
    assert "applies Lion by itself" in record.message
    assert "Lion cannot run on the servers" in record.message
    assert "sums, not parameters" in record.message


def test_an_asynchronous_store_refuses_them(make_store):
    """It has no sums that workers could share."""
    kv = make_store("async")
    with pytest.raises(UnsupportedError, match=r"Lion cannot run on the servers.*sync-mpi"):
        kv.set_optimizer(Lion())
    with pytest.raises(UnsupportedError, match=r"lr_scheduler of class Sequential; .*sync-mpi"):
        kv.set_optimizer(mx.optimizer.create("sgd", lr_scheduler=schedule()))


def test_servers_and_workers_do_not_take_turns(make_store):
    """Once the servers update, the weights are theirs; once the workers do, they go on."""
    kv = make_store()
    kv.init("w", mx.nd.ones(2))
    kv.set_optimizer(mx.optimizer.create("sgd"))
    with pytest.raises(UsageError, match=r"update with 'sgd' already, and cannot take Lion"):
        kv.set_optimizer(Lion())
    other, out = make_store(), mx.nd.ones(2)
    other.init("w", out)
    other.set_optimizer(Lion(learning_rate=1.0))
    other.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.25))
    other.pushpull("w", mx.nd.ones(2), out=out)
    assert out.asnumpy().tolist() == [0.75, 0.75]
    with pytest.raises(UsageError, match="in this store the workers do"):
        other.set_optimizer(mx.optimizer.create("sgd"), quorum=1)


def test_whole_tensors_are_updated_where_they_are_whole(make_store):
    """On the servers, unless keys were created before, which may be spread over several."""
    lamb = mx.optimizer.create("lamb")
    first, late = make_store(), make_store()
    first.set_optimizer(lamb)
    late.init("w", mx.nd.ones(2))
    late.set_optimizer(lamb)
    assert first.server_optimizer.name == "lamb"
    assert late.server_optimizer is None
    sgd = make_store()
    sgd.init("w", mx.nd.ones(2))
    sgd.set_optimizer(mx.optimizer.create("sgd"))
    assert sgd.server_optimizer.name == "sgd"


def test_a_scheduler_is_asked_once_an_update_and_its_rate_is_sent_when_it_changes():
    """With the number of the update that is pushed next, which all keys of a step share."""
    asked = []

    def rates(num_update):
        asked.append(num_update)
        return 0.5 if num_update < 3 else 0.25

    rates.base_lr = 9.0
    optimizer = mx.optimizer.create("sgd", lr_scheduler=rates, begin_num_update=1)
    watch = HyperWatch(MXNetHyper(optimizer, evaluates=True), ["a", "b"])
    sent = []
    for key in ("a", "b") * 3:
        optimizer._update_count(key)
        hyper = watch.changed(key)
        sent.append(None if hyper is None else (hyper.lr, hyper.scheduler))
    assert sent == [(0.5, None), None, (0.25, None), None, None, None]
    assert asked == sorted(asked)
    assert asked[0] == 2
    assert asked[-1] == 4


def svrg_weights(kvstore):
    """Train a linear model by SVRG; return its weights."""
    # Importing it registers an optimizer, which other tests would go over.
    svrg = importlib.import_module("mxnet.contrib.svrg_optimization.svrg_module")
    data = np.random.RandomState(2).normal(size=(32, 4)).astype(np.float32)
    label = data @ np.array([1, -2, 3, 0.5], np.float32)
    batches = mx.io.NDArrayIter(data, label, batch_size=8, label_name="label")
    output = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc")
    loss = mx.sym.LinearRegressionOutput(output, mx.sym.Variable("label"), name="loss")
    module = svrg.SVRGModule(loss, data_names=["data"], label_names=["label"], update_freq=2)
    module.fit(
        batches,
        eval_metric="mse",
        kvstore=kvstore,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.05},
        initializer=mx.init.Constant(0.1),
        num_epoch=4,
    )
    return {name: array.asnumpy() for name, array in module.get_params()[0].items()}


def test_svrg(make_store):
    """MXNet's SVRGModule, whose optimizer wraps two others, comes to what it does with a local store."""
    found, expected = (svrg_weights(kvstore) for kvstore in (make_store(), mx.kv.create("local")))
    assert found.keys() == expected.keys() == {"fc_weight", "fc_bias"}
    for name, weight in expected.items():
        np.testing.assert_allclose(found[name], weight, rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("num_servers", [0, 1])
def test_shapes_that_are_unknown_ones_to_mxnet(make_group, num_servers, shape):
    """Without dimensions or elements: they are updated outside of the scope of NumPy's shapes, too."""
    kv = KVStoreMPI("sync", make_group(num_servers=num_servers).workers[0])
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.5))
    with mx.util.np_shape(True):
        value, out = mx.nd.ones(shape), mx.nd.zeros(shape)
    kv.init("w", value)
    kv.push("w", value)
    kv.pushpull("w", value, out=out)
    with mx.util.np_shape(True):
        np.testing.assert_array_equal(out.asnumpy(), np.full(shape, 1 - 0.5 - 0.75))
