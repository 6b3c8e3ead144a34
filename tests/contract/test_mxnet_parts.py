"""Nets in parts on one rank: what is computed, and which nets and batches are refused."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from mxnet import gluon  # noqa: E402
from mxnet.gluon import nn  # noqa: E402
from support import model_parts  # noqa: E402
from support.model_parts import OPTIONS, distance, loss_of, make_chain, make_towers, train_alone  # noqa: E402

from kvstore_mpi.adapters.mxnet.parts.part_costs import measure_parts  # noqa: E402
from kvstore_mpi.adapters.mxnet.parts.segments import Form, Net  # noqa: E402
from kvstore_mpi.errors import UnsupportedError, UsageError  # noqa: E402
from kvstore_mpi.mxnet import Part, PartTrainer, PipelineTrainer  # noqa: E402

pytestmark = pytest.mark.mxnet


def pipeline(net, **options):
    """Make a trainer whose one rank has all layers."""
    return PipelineTrainer(net, loss_of, "sgd", OPTIONS, kvstore="local", **{"stages": [], **options})


@pytest.mark.parametrize(("micro_batches", "most"), [(1, 0.0), (4, 1e-6)])
def test_a_pipeline_computes_what_one_net_does(micro_batches, most):
    """To the bit with one micro-batch, since no sum is made in another order."""
    net = make_chain()
    model_parts.train_parts(pipeline(net, micro_batches=micro_batches))
    assert distance(model_parts.values_of(net), train_alone(make_chain())) <= most


def test_running_statistics_are_those_of_micro_batches():
    """With one micro-batch those of a single process; with two they have moved twice as often."""
    expected = train_alone(make_chain(normalised=True))
    net = make_chain(normalised=True)
    model_parts.train_parts(pipeline(net))
    assert distance(model_parts.values_of(net), expected) == 0.0
    net = make_chain(normalised=True)
    data, labels = model_parts.batches()[0]
    pipeline(net, micro_batches=2).step(data, labels)
    norm = net[1]
    mean = norm.running_mean.data().asnumpy()
    outputs = make_chain(normalised=True)[0](data).asnumpy()
    halves = [outputs[:8].mean((0, 2, 3)), outputs[8:].mean((0, 2, 3))]
    assert mean == pytest.approx(0.1 * 0.9 * halves[0] + 0.1 * halves[1], abs=1e-6)


@pytest.mark.parametrize(("micro_batches", "most"), [(1, 0.0), (2, 1e-6)])
def test_any_shape_computes_what_one_net_does(micro_batches, most):
    """An output that two parts take, two inputs, and parts that are given in any order."""
    net = make_towers()
    parts = net.parts([0] * 6)[::-1]
    trainer = PartTrainer(parts, loss_of, "sgd", OPTIONS, kvstore="local", micro_batches=micro_batches)
    model_parts.train_parts(trainer, inputs=2)
    assert distance(model_parts.values_of(net), train_alone(make_towers(), inputs=2)) <= most


@pytest.mark.parametrize("frozen", [False, True])
def test_several_micro_batches_may_be_between_forward_and_backward(frozen):
    """What has no gradient is shared by all of them: running statistics, and weights that are frozen."""
    nets = []
    for cut in (2, 0):
        net = make_chain(normalised=True)
        nets.append(net)
        net[0].collect_params().setattr("grad_req", "null" if frozen else "write")
        if cut:  # all forward and then all backward
            parts = [
                Part("low", nn.HybridSequential(), 0),
                Part("high", nn.HybridSequential(), 0, ("low",)),
            ]
            parts[0].block.add(*net[:cut])
            parts[1].block.add(*net[cut:])
            trainer = PartTrainer(parts, loss_of, "sgd", OPTIONS, kvstore="local", micro_batches=4)
        else:  # one after the other
            trainer = pipeline(net, micro_batches=4)
        model_parts.train_parts(trainer)
    assert distance(*map(model_parts.values_of, nets)) <= 1e-6
    means = [net[1].running_mean.data().asnumpy() for net in nets]
    assert means[0] == pytest.approx(means[1])
    assert means[0].any()


def test_a_net_that_begins_with_an_embedding():
    """No gradient goes back to the batch, whose ids have none; a recurrent layer learns its shapes."""
    layers = [nn.Embedding(10, 4), gluon.rnn.LSTM(5, layout="NTC"), nn.Flatten(), nn.Dense(10)]
    for layer in layers:
        layer.initialize()
    parts = [Part(f"{at}", each, 0, (f"{at - 1}",) if at else ("data",)) for at, each in enumerate(layers)]
    net = Net(parts, 1)
    net.shape_all([Form((8, 3), "int32")])
    assert layers[1].l0_i2h_weight.shape == (20, 4)
    costs = {each.name: each for each in measure_parts(net, [Form((8, 3), "int32")]).operations}
    assert all(each.forward_seconds > 0 for each in costs.values())
    assert all(costs[name].backward_seconds > 0 for name in "0123")
    flat = [Part("flat", nn.Flatten(), 0), Part("last", layers[3], 0, ("flat",))]
    costs = {each.name: each for each in measure_parts(Net(flat, 1), [Form((8, 15), "float32")]).operations}
    assert [costs[name].backward_seconds > 0 for name in ("flat", "last")] == [False, True]


def test_parts_that_learn_nothing():
    """Nothing goes back through them; a rank that has no others has no trainer."""
    net = nn.HybridSequential()
    net.add(nn.Flatten())
    trainer = pipeline(net)
    assert trainer.trainer is None
    data, labels = model_parts.batches()[0]
    assert trainer.step(data, labels).shape == (model_parts.BATCH,)
    last = nn.Dense(10)
    last.initialize()
    parts = [Part("flat", net, 0), Part("last", last, 0, ("flat",))]
    PartTrainer(parts, loss_of, "sgd", OPTIONS, kvstore="local").step(data, labels)
    assert last.weight.grad().asnumpy().any()


class _First(gluon.HybridBlock):
    def hybrid_forward(self, F, first, second):  # noqa: N803  MXNet's name
        """Return one of two, of which the other is ignored only while something is recorded."""
        return 2 * first if mx.autograd.is_recording() else first + second


class _Blocked(gluon.HybridBlock):
    def hybrid_forward(self, F, first, second):  # noqa: N803  MXNet's name
        """Return a sum of which one has no gradient."""
        return first + F.BlockGrad(second)


@pytest.mark.parametrize("block", [_First, _Blocked])
def test_what_a_part_does_not_use_has_no_gradient(monkeypatch, block):
    """Zeros go back, whatever was in the memory of the gradient; two parts take the same batch."""
    empty = mx.nd.empty
    monkeypatch.setattr(
        mx.nd, "empty", lambda shape, ctx=None, dtype=None: empty(shape, ctx, dtype) * 0 + float("nan")
    )
    used, unused = nn.Dense(10), nn.Dense(10)
    for each in (used, unused):
        each.initialize()
    parts = [
        Part("used", used, 0),
        Part("unused", unused, 0),
        Part("last", block(), 0, ("used", "unused")),
    ]
    data, labels = model_parts.batches()[0]
    PartTrainer(parts, loss_of, "sgd", OPTIONS, kvstore="local", micro_batches=2).step(data, labels)
    assert used.weight.grad().asnumpy().any()
    assert not unused.weight.grad().asnumpy().any()


class _Two(gluon.HybridBlock):
    def hybrid_forward(self, F, x):  # noqa: N803  MXNet's name
        return [x, x]


def parts_of(block, name="part", inputs=("data",), rank=0, kind=Part):
    """Make a trainer of one part, and step once."""
    trainer = PartTrainer([kind(name, block, rank, inputs)], loss_of, "sgd", kvstore="local")
    trainer.step(*model_parts.batches()[0])


def sparse():
    """Make a net whose gradient is row-sparse."""
    net = nn.Embedding(4, 4, sparse_grad=True)
    net.initialize()
    return net


def sequential():
    """Make a net of which no shapes are known."""
    net = nn.Sequential()
    net.add(nn.Dense(10))
    return net


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: pipeline(sequential()), "made of a HybridSequential, and not of a Sequential"),
        (lambda: pipeline(make_chain(), stages=[1]), "are 2, and a worker has 1 ranks"),
        (lambda: pipeline(make_chain(), stages="best"), "must be numbers of layers, or 'auto'"),
        (lambda: pipeline(make_chain(), stages="auto"), "or 'auto' with a sample"),
        (lambda: pipeline(make_chain(), micro_batches=0), "at least one micro-batch"),
        (
            lambda: pipeline(make_chain(), micro_batches=3).step(*model_parts.batches()[0]),
            "a batch of 16 cannot be cut into 3",
        ),
        (
            lambda: pipeline(make_chain()).step(model_parts.batches()[0][0], mx.nd.ones(3)),
            r"different numbers of samples: \[3, 16\]",
        ),
        (lambda: parts_of(sequential()), "part part is a Sequential"),
        (lambda: parts_of(nn.Dense(10), name="data1"), "cannot be called data1"),
        (lambda: parts_of(_Two()), "part part has several outputs"),
        (lambda: parts_of(nn.Flatten(), inputs=("data2",)), "takes data2, and the batch has 1 arrays"),
    ],
)
def test_what_makes_no_net_or_batch_is_refused(use, text):
    """Before anything is computed, with what to do."""
    with pytest.raises(UsageError, match=text):
        use()


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: parts_of(nn.Dense(10), inputs="data"), r"a tuple of names: \('data',\), with a comma"),
        (
            lambda: parts_of(nn.Dense(10), kind=lambda *given: given),
            r"parts\[0\] is a tuple: each must be a kvstore_mpi\.mxnet\.Part, such as",
        ),
        (
            lambda: parts_of(nn.Dense(10), rank="0"),
            "part part: its rank is a whole number, counted from 0, and not '0'",
        ),
        (lambda: parts_of(nn.Dense(10), name=1), r"parts\[0\]: the name of a part is a text, and not 1"),
        (
            lambda: pipeline(make_chain(), micro_batches=2.0),
            r"must be a whole number, not 2\.0",
        ),
        (lambda: pipeline(make_chain(), stages=1), "stages=1 must be a list of numbers of layers"),
        (lambda: pipeline(make_chain(), stages=[1.0]), r"stages=\[1\.0\] must be a list of numbers"),
        (
            lambda: pipeline(make_chain()).step(np.ones((4, 1, 8, 8)), np.ones(4)),
            "not of ndarray: use",
        ),
    ],
)
def test_arguments_of_another_kind(use, text):
    """One clear error each, and none of Python's."""
    with pytest.raises(UsageError, match=text):
        use()


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda output, label: loss_of(output, label).mean(), r"16 samples is an array of shape \(1,\)"),
        (lambda output, label: 0.5, "16 samples is float"),
    ],
)
def test_a_loss_has_a_number_for_each_sample(loss, text):
    """Those of a mean would be divided by the batch twice."""
    trainer = PipelineTrainer(make_chain(), loss, "sgd", kvstore="local", stages=[])
    with pytest.raises(UsageError, match=text):
        trainer.step(*model_parts.batches()[0])


def test_a_loss_may_have_several_numbers_for_each_sample():
    """As one of each word of a sentence, whose first axes are made one."""
    trainer = PipelineTrainer(
        make_chain(), lambda output, _: output.reshape(-1), "sgd", kvstore="local", stages=[]
    )
    data, label = model_parts.batches()[0]
    assert trainer.step(data, label).shape == (160,)


def test_row_sparse_parameters_are_refused():
    """Their gradients cannot be added up over micro-batches."""
    with pytest.raises(
        UnsupportedError, match=r"dense parameters only, and embedding.*weight is row-sparse"
    ):
        parts_of(sparse())
