"""The example with workers of several ranks trains what one process does with the same global batches."""

from __future__ import annotations

import numpy as np
import pytest
from support.part_jobs import CLIENTS, SCRIPTS, launch

mx = pytest.importorskip("mxnet")

from mxnet import autograd, gluon  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.thorough, pytest.mark.slow]

EXAMPLES = SCRIPTS.parents[1] / "examples"
WORKERS, SIZE, SEED = 2, 32, 4


def epoch_alone(net, train, shard):
    """Train one epoch in one piece, each step with what all workers of the job have in it."""
    shards = [shard(train, worker, WORKERS) for worker in range(WORKERS)]
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9}, kvstore=None
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    order = np.random.default_rng(SEED).permutation(len(shards[0][0]))
    for at in range(0, len(order) // SIZE * SIZE, SIZE):
        batch = order[at : at + SIZE]
        images, labels = (
            mx.nd.array(np.concatenate([each[batch] for each in arrays])) for arrays in zip(*shards)
        )
        with autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        trainer.step(len(images))


def test_the_digits_are_trained_as_by_one_process(tmp_path, monkeypatch):
    """Two clients of two ranks and a server, one epoch, whose batches come in four micro-batches."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import digits_data  # noqa: PLC0415  as the example has it
    from digits_gluon import make_net  # noqa: PLC0415  likewise

    saved = tmp_path / "net.params"
    words = ("--epochs", "1", "--target", "0", "--stages", "2", "--save", str(saved))
    code, text = launch(tmp_path, EXAMPLES / "digits_pipeline.py", *words, options=CLIENTS)
    assert code == 0, text
    mx.random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002  MXNet's initialisers draw from it
    alone, job = make_net(), make_net()
    job.load_parameters(str(saved))
    train, _ = digits_data.load()
    epoch_alone(alone, train, digits_data.shard)
    pairs = zip(alone.collect_params().values(), job.collect_params().values())
    for expected, found in ((one.data().asnumpy(), other.data().asnumpy()) for one, other in pairs):
        assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)
