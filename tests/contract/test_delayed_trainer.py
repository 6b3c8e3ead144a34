"""Updates made of several batches equal those of one larger batch; what cannot be delayed is refused."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from mxnet import autograd, gluon  # noqa: E402
from support.delayed_training import DELAY, LR, distance, train, trained_at_once  # noqa: E402

from kvstore_mpi.adapters.mxnet import DelayedTrainer, KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import UnsupportedError, UsageError  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402

pytestmark = pytest.mark.mxnet


def make(delay, **more):
    """Return a trainer of one parameter, and the parameter."""
    param = gluon.Parameter("w", shape=(2,), init="zeros")
    param.initialize()
    return DelayedTrainer([param], "sgd", {"learning_rate": 0.5}, None, delay=delay, **more), param


@pytest.mark.paper("Pal et al. section 4")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("kvstore", ["device", None, "sync"])
def test_several_batches_equal_one_that_is_as_large(kvstore, optimizer):
    """On a local store, on none, and on ours: 2 updates of 3 batches each, the last one left over."""
    with local_groups() as group:
        kv = KVStoreMPI("sync", group(num_servers=1).workers[0]) if kvstore == "sync" else kvstore
        found = train(kv, optimizer, DELAY)
        mx.nd.waitall()
    assert engine.wait_until_idle(60)
    assert distance(found, trained_at_once(optimizer)) <= 1e-5
    assert distance(train("device", optimizer, 1), found) > 1e-3


def test_the_learning_rate_is_that_of_an_update():
    """It grows with the batch, whenever it is set; a schedule has rates of its own."""
    trainer, _ = make(4)
    assert trainer.learning_rate == 2.0
    trainer.set_learning_rate(0.25)
    assert trainer.learning_rate == 1.0
    assert make(4, scale_lr=False)[0].learning_rate == 0.5
    schedule = {"lr_scheduler": mx.lr_scheduler.FactorScheduler(10), "learning_rate": 0.1}
    with pytest.raises(UsageError, match="scale_lr=False"):
        DelayedTrainer([make(1)[1]], "sgd", schedule, None, delay=2)


def test_between_updates_gradients_are_added_and_afterwards_they_are_zero():
    """The mean of both batches is what counts."""
    trainer, param = make(2)
    for factor in (1.0, 3.0):
        assert param.data().asnumpy().tolist() == [0.0, 0.0]
        with autograd.record():
            loss = param.data() * factor
        loss.backward()
        trainer.step(1)
    assert param.data().asnumpy().tolist() == [-2.0, -2.0]  # 0.5 x 2 x (1 + 3) / 2
    assert param.grad().asnumpy().tolist() == [0.0, 0.0]


def test_what_cannot_be_delayed_is_refused():
    """The halves of a step, gradients of some rows, and less than one batch."""
    trainer, _ = make(2)
    with pytest.raises(UnsupportedError, match="call step"):
        trainer.allreduce_grads()
    with pytest.raises(UnsupportedError, match="call step"):
        trainer.update(1)
    with pytest.raises(UsageError, match="1 batch or more"):
        make(0)
    rows = gluon.Parameter("rows", shape=(4, 2), grad_stype="row_sparse", init="zeros")
    rows.initialize()
    with pytest.raises(UnsupportedError, match="row-sparse"):
        DelayedTrainer([rows], "sgd", None, delay=2)


@pytest.mark.parametrize(("delay", "made"), [(4, False), (4, True), (1, False)])
def test_a_delay_for_which_nobody_asks_is_told(monkeypatch, tmp_path, caplog, delay, made):
    """By rank 0, when its store is given an optimizer, as by an ordinary Trainer's first step."""
    monkeypatch.setenv("KVMPI_DELAY", str(delay))
    monkeypatch.setenv("KVMPI_RECORD_DIR", str(tmp_path))
    if made:
        make(None)
    with local_groups() as group:
        for worker in group(2, num_servers=1).workers:
            KVStoreMPI("sync", worker).set_optimizer(mx.optimizer.SGD())
        mx.nd.waitall()
    assert engine.wait_until_idle(60)
    said = [each.message for each in caplog.records if "--delay" in each.message]
    assert len(said) == (delay == 4 and not made)
    assert all(text.startswith("--delay 4 has no effect: updates are made of one batch") for text in said)


def test_without_a_delay_it_is_the_trainer_of_gluon(monkeypatch):
    """Which is what a process that was told nothing has; mpilaunch --delay tells it."""
    trainer, param = make(None)
    assert (param.grad_req, trainer.learning_rate) == ("write", 0.5)
    monkeypatch.setenv("KVMPI_DELAY", "3")
    trainer, param = make(None)
    assert (param.grad_req, trainer.learning_rate) == ("add", 1.5)
    assert np.isclose(LR * 3, DelayedTrainer([param], "sgd", {"learning_rate": LR}, None).learning_rate)
