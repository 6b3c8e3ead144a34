"""Workers of two ranks that train nets in parts; run by ``test_model_parallel.py``.

``parts.py STORE WHAT``: the last trainer's ranks differ in their ``batch`` or ``optimizer``. Every rank
compares all parameters with those of one process.
"""

import sys
from pathlib import Path

import mxnet as mx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import model_parts
from support.model_parts import OPTIONS, distance, loss_of, make_chain, make_towers, train_alone

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.mxnet import PartTrainer, PipelineTrainer

STORE, DIFFERENT = sys.argv[1:]


def train(make, make_trainer, kv, inputs=1):
    """Return the difference between a net trained in parts and one that is not."""
    net = make()
    model_parts.train_parts(make_trainer(net), kv.rank, kv.num_workers, inputs=inputs)
    return distance(model_parts.values_of(net), train_alone(make(), inputs=inputs))


def pipeline(**options):
    """Return what makes a trainer of a chain."""
    return lambda net: PipelineTrainer(
        net, loss_of, "sgd", OPTIONS, kvstore=mx.kv.create(STORE), **{"stages": [2], **options}
    )


def towers(ranks, micro_batches):
    """Return what makes a trainer of the towers."""
    return lambda net: PartTrainer(
        net.parts(ranks), loss_of, "sgd", OPTIONS, kvstore=mx.kv.create(STORE), micro_batches=micro_batches
    )


def before_its_shapes_are_known():
    """Nobody can be given parameters: all ranks say so, and none waits."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4, prefix="first_"), mx.gluon.nn.Dense(10, prefix="last_"))
    net.initialize()
    with pytest.raises(UsageError, match="shape of first_weight"):
        pipeline(stages=[1])(net).gather()


def quick(kv):
    """Chains and towers, against one process; then a rank with another batch than the other."""
    # Two workers add up their gradients, which one process does in another order.
    exact = 0.0 if kv.num_workers == 1 else 1e-6
    assert train(make_chain, pipeline(), kv) <= exact
    assert train(make_chain, pipeline(micro_batches=4), kv) <= 1e-6
    sample = model_parts.batches()[0][0][:: kv.num_workers]
    assert train(make_chain, pipeline(stages="auto", sample=sample, micro_batches=2), kv) <= 1e-6
    assert train(make_towers, towers([0, 0, 1, 1, 1, 0], 1), kv, inputs=2) <= exact
    assert train(make_towers, towers([1, 0, 1, 0, 0, 1], 1), kv, inputs=2) <= exact
    assert train(make_towers, towers([1, 0, 1, 0, 0, 1], 2), kv, inputs=2) <= 1e-6
    if kv.num_workers == 1:
        normalised = lambda: make_chain(normalised=True)  # noqa: E731
        assert train(normalised, pipeline(stages=[3]), kv) == 0.0
    before_its_shapes_are_known()
    optimizer = "adam" if DIFFERENT == "optimizer" and kv.model_rank else "sgd"
    trainer = PipelineTrainer(make_chain(), loss_of, optimizer, kvstore=mx.kv.create(STORE), stages=[2])
    data, labels = model_parts.batches(inputs=1)[0]
    part = slice(kv.model_rank if DIFFERENT == "batch" else 0, None)
    try:
        trainer.step(data[part], labels[part])
    except MismatchError as error:
        assert "different nets, plans, optimizers or batches" in str(error)  # noqa: PT017
        sys.stdout.write(f"rank {kv.model_rank} of worker {kv.rank} says so\n")
        sys.stdout.flush()
        raise


quick(mx.kv.create(STORE))
