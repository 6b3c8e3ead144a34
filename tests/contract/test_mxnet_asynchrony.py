"""The MXNet store over fake workers: calls that return at once, and errors that come out later."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from support.held_arrays import hold  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.errors import PeerLostError  # noqa: E402
from kvstore_mpi.testing import mxnet_training as training  # noqa: E402

pytestmark = pytest.mark.mxnet


def openers(group, mode="sync"):
    return [partial(KVStoreMPI, mode, worker) for worker in group.workers]


def open_one(group, mode="sync"):
    return KVStoreMPI(mode, group.workers[0])


def test_calls_return_while_the_network_is_stuck(make_group):
    """Push, pull and pushpull return although no answer comes, and results arrive when answers do."""
    group = make_group(num_servers=1)
    kv = open_one(group)
    outs = {}
    keys = [f"k{index}" for index in range(10)]
    for key in keys:
        kv.init(key, mx.nd.zeros((8,)))
    group.hold(lambda _call: True)
    for key in keys:
        outs[key] = [mx.nd.zeros((8,)), mx.nd.zeros((8,))]
        kv.pushpull(key, mx.nd.ones((8,)), out=outs[key][0])
        kv.push(key, mx.nd.ones((8,)) * 2)
        kv.pull(key, out=outs[key][1])
    group.release()
    for first, second in outs.values():
        assert first.asnumpy().tolist() == [1] * 8
        assert second.asnumpy().tolist() == [2] * 8


def test_early_layers_run_while_the_last_layer_waits(make_group):
    """Next iteration's first layer computes while the last layer's reply is withheld."""
    group = make_group(num_servers=1)
    kv = open_one(group)
    net = mx.gluon.nn.HybridSequential()
    # A Trainer numbers parameters in the order of their names, and dense10 sorts before dense9.
    net.add(mx.gluon.nn.Dense(4, in_units=3, prefix="first_"))
    net.add(mx.gluon.nn.Dense(2, in_units=4, prefix="last_"))
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=kv)
    data = mx.nd.ones((2, 3))

    def backward():
        with mx.autograd.record():
            loss = net(data).sum()
        loss.backward()

    backward()
    trainer.step(1)
    mx.nd.waitall()
    before = [parameter.data().asnumpy() for parameter in net.collect_params().values()]
    withheld = threading.Event()
    last = sorted(net.collect_params()).index("last_weight")

    def is_last_layers(call):
        if call.key == last:
            withheld.set()
        return call.key == last

    group.hold(is_last_layers)
    backward()
    trainer.step(1)
    hidden = net[0](data)
    assert not np.array_equal(net[0].weight.data().asnumpy(), before[0])
    expected = data.asnumpy() @ net[0].weight.data().asnumpy().T + net[0].bias.data().asnumpy()
    np.testing.assert_allclose(hidden.asnumpy(), expected, rtol=1e-5)
    assert withheld.wait(60), "the last layer's gradient has not come to the worker"
    group.release()
    assert not np.array_equal(net[1].weight.data().asnumpy(), before[2])


@pytest.mark.parametrize("on_kvstore", [True, False])
def test_results_arrive_while_weights_are_in_onednns_layout(make_group, on_kvstore):
    """After an evaluation, a step that is queued before the forward pass has run trains right.

    The evaluation leaves the weights of convolutions in another layout, and the next training pass takes
    them back only while it runs, behind the step's results in the queue.
    """
    case = training.CASES["convolutions"]._replace(on_kvstore=on_kvstore)
    kv = open_one(make_group())
    net = training.make_net(case)
    trainer = training.new_trainer(net, case, kv)
    for step in range(training.STEPS):
        let_go = []
        training.backward(net, case, step, [0], start=partial(hold_array, let_go))
        training.step_of(trainer, step, training.SHARE)
        for each in let_go:
            each()
        mx.nd.waitall()
        training.evaluate(net, case, 1)
        mx.nd.waitall()
    for ours, theirs in zip(training.weights_of(net), training.reference(case, 1)):
        np.testing.assert_array_equal(ours, theirs)


def hold_array(let_go, array):
    """Keep everything that uses an array waiting; add the function that lets it go."""
    let_go.append(hold(array))


# --- errors ---


@pytest.mark.parametrize("num_servers", [0, 1])
def test_errors_surface_and_weights_stay(make_group, num_servers):
    """A failed exchange raises at the next call and at the next read, and leaves the weight as it was."""
    group = make_group(num_servers=num_servers)
    kv = open_one(group)
    weight = mx.nd.full((3,), 7)
    kv.init("w", weight)
    error = PeerLostError("worker 1 on node7 has died")
    group.fail(lambda call: call.name != "init", error)
    group.hold(lambda _call: True)
    kv.pushpull("w", mx.nd.ones((3,)), out=weight)
    group.release()
    with pytest.raises(PeerLostError, match="worker 1 on node7 has died"):
        weight.wait_to_read()
    assert weight.asnumpy().tolist() == [7, 7, 7]
    for call in (kv.barrier, lambda: kv.init("v", weight), lambda: kv.push("w", weight)):
        with pytest.raises(PeerLostError) as caught:
            call()
        assert caught.value.args == error.args


def test_an_error_of_the_worker_itself_surfaces(make_group, monkeypatch):
    """The store raises what has ended the worker, with nothing of its own pending."""
    kv = open_one(make_group())
    monkeypatch.setattr(kv._worker, "failure", lambda: PeerLostError("server1 has left"))
    with pytest.raises(PeerLostError, match="server1 has left"):
        kv.init("a", mx.nd.ones((2,)))


def test_gradients_that_failed_do_not_hang(make_group):
    """When the computation of a gradient fails, the operation is completed all the same."""
    kv = open_one(make_group())
    kv.init("a", mx.nd.zeros((1,)))
    broken = mx.nd.take(mx.nd.ones((2,)), mx.nd.array([5]), mode="raise")
    out = mx.nd.ones((1,))
    kv.pushpull("a", broken, out=out)
    with pytest.raises((mx.MXNetError, IndexError)):
        out.wait_to_read()
    assert out.asnumpy().tolist() == [1]
