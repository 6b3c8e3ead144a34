"""Nets that are one block, divided at their operations."""

from __future__ import annotations

import pytest

mx = pytest.importorskip("mxnet")

from mxnet import autograd, gluon  # noqa: E402
from mxnet.gluon import nn  # noqa: E402
from mxnet.gluon.model_zoo import vision  # noqa: E402
from support import model_parts  # noqa: E402
from support.model_parts import OPTIONS, distance, loss_of, train_alone  # noqa: E402

from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.mxnet import PartTrainer, parts_of  # noqa: E402

pytestmark = pytest.mark.mxnet


class Branches(gluon.HybridBlock):
    """Branches that meet twice, an operation with two results, a constant, and a layer used twice."""

    def __init__(self):
        """Build it."""
        super().__init__()
        with self.name_scope():
            self.stem = nn.Conv2D(8, 3, padding=1)
            self.norm = nn.BatchNorm()
            self.left = nn.Conv2D(8, 3, padding=1, activation="relu")
            self.right = nn.Conv2D(8, 1, activation="relu")
            self.twice = nn.Dense(16, flatten=False)
            self.top = nn.Dense(10)

    def hybrid_forward(self, F, x):  # noqa: N803  MXNet's name
        """See ``HybridBlock``."""
        stem = self.norm(self.stem(x))
        left, right = self.left(stem), self.right(stem)
        first, second = F.split(F.concat(left, right, dim=1), num_outputs=2, axis=1)
        joined = F.flatten(first + stem) + F.flatten(second)
        again = self.twice(joined)
        other = F.broadcast_add(self.twice(F.tanh(joined)), F.ones((1, 16)) * 0.5)
        return self.top(F.concat(again, other, dim=1))


def branches():
    """Build it with values that are drawn in its own order."""
    return made(Branches())


def made(net):
    """Give a net values in the order in which one process draws them."""
    model_parts.seed()
    net.initialize(mx.init.Xavier())
    with autograd.train_mode():  # a prediction lays weights anew while others use them: see ``train_alone``
        net(mx.nd.ones((2, 1, 8, 8)))
    mx.nd.waitall()
    return net


def residual():
    """Build a small network of residual blocks."""
    return made(vision.get_resnet(1, 18, classes=10, thumbnail=True))


@pytest.mark.parametrize(("build", "least"), [(branches, 6), (residual, 20)])
def test_the_parts_compute_what_the_net_does(build, least):
    """To the bit, with running statistics; and the net's own parameters are what has been trained."""
    net = build()
    parts = parts_of(net)
    assert len(parts) >= least
    trainer = PartTrainer(parts, loss_of, "sgd", OPTIONS, kvstore="local")
    model_parts.train_parts(trainer)
    assert distance(model_parts.values_of(net), train_alone(build())) == 0.0


class Masked(gluon.HybridBlock):
    """Two branches that take the same random mask over a weight."""

    def __init__(self):
        """Build it."""
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(64, 10), init="xavier")

    def hybrid_forward(self, F, x, weight):  # noqa: N803  MXNet's name
        """See ``HybridBlock``."""
        masked = F.Dropout(weight, p=0.5, mode="always")
        return F.dot(F.flatten(x), masked) - F.dot(F.flatten(x * 1), masked)


def test_a_random_mask_is_drawn_once():
    """Branches that take it are one part: each for itself they would have different ones."""
    net = made(Masked())
    [part] = parts_of(net)
    data, _ = model_parts.batches()[0]
    assert abs(part.block(data).asnumpy()).max() == 0.0


def test_shapes_that_wait_for_the_first_batch():
    """The parts find them, and give the net's parameters their values."""
    net = Branches()
    net.initialize(mx.init.Xavier())
    trainer = PartTrainer(parts_of(net), loss_of, "sgd", OPTIONS, kvstore="local")
    data, labels = model_parts.batches()[0]
    assert trainer.step(data, labels).shape == (model_parts.BATCH,)
    assert net(data).shape == (model_parts.BATCH, 10)


def test_micro_batches_and_two_inputs():
    """As of parts that are made by hand."""
    net = model_parts.make_towers()
    parts = parts_of(net, num_inputs=2)
    assert {name for part in parts for name in part.inputs} >= {"data", "data1"}
    trainer = PartTrainer(parts, loss_of, "sgd", OPTIONS, kvstore="local", micro_batches=2)
    model_parts.train_parts(trainer, inputs=2)
    assert distance(model_parts.values_of(net), train_alone(model_parts.make_towers(), inputs=2)) <= 1e-6


def test_names_do_not_tell_how_many_nets_there_were():
    """A plan of one process holds in another."""
    first, second = ([part.name for part in parts_of(branches())] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)


def test_a_chain_is_one_part():
    """Nothing in it could be computed at the same time as something else."""
    [part] = parts_of(model_parts.make_chain(normalised=True))
    assert part.inputs == ("data",)


def test_several_outputs_are_refused():
    """With what to do."""

    class Two(gluon.HybridBlock):
        def hybrid_forward(self, F, x):  # noqa: N803  MXNet's name
            return [x, x]

    with pytest.raises(UsageError, match="several outputs: join them"):
        parts_of(Two())
