"""What a step of a net in parts computes in which order, and what it gives the store."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

mx = pytest.importorskip("mxnet")

from support import model_parts  # noqa: E402
from support.model_parts import OPTIONS, STEPS, distance, loss_of, make_chain  # noqa: E402

from kvstore_mpi import node  # noqa: E402
from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.parts import part_trainer  # noqa: E402
from kvstore_mpi.adapters.mxnet.parts.segment_run import Unobserved  # noqa: E402
from kvstore_mpi.mxnet import PipelineTrainer  # noqa: E402
from kvstore_mpi.planner.pipelines.schedules import one_f_one_b  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402

pytestmark = pytest.mark.mxnet


def pipeline(kvstore, **options):
    """Make a trainer of a chain."""
    return PipelineTrainer(make_chain(), loss_of, "sgd", OPTIONS, kvstore=kvstore, **options)


def told(actions):
    """Write actions as ``F0``, ``B0`` and so on."""
    return [f"{'F' if each.forward else 'B'}{each.micro_batch}" for each in actions]


@pytest.mark.parametrize(
    ("rank", "order"),
    [
        (0, ["F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"]),
        (1, ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"]),
        (2, ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"]),
    ],
)
def test_a_pipeline_has_the_order_of_1f1b(monkeypatch, rank, order):
    """Stage i of S goes forward S - 1 - i times ahead, and then in turns."""
    monkeypatch.setattr(part_trainer, "own_links", lambda: None)
    store = SimpleNamespace(model_parallel=3, model_rank=rank)
    trainer = pipeline(store, stages=[1, 3], micro_batches=4)
    assert told(trainer._actions) == order
    assert trainer._actions == one_f_one_b(3, 4)[rank]


class Written(Unobserved):
    """Writes down what is computed."""

    def __init__(self):
        """Nothing has been computed."""
        self.actions = []

    def begins(self, action):
        """Write it down."""
        self.actions.append(action)


def test_a_step_computes_in_that_order():
    """One stage goes forward and back in turns, and so holds one micro-batch at a time."""
    trainer = pipeline("local", stages=[], micro_batches=3)
    trainer.observer = Written()
    data, labels = (each[:15] for each in model_parts.batches()[0])
    trainer.step(data, labels)
    assert told(trainer.observer.actions) == ["F0", "B0", "F1", "B1", "F2", "B2"]


@pytest.fixture
def make_stores():
    """Make the stores of some workers, and end them."""
    with local_groups() as make:
        yield lambda servers, workers=1, mode="sync": [
            KVStoreMPI(mode, each) for each in make(workers, num_servers=servers).workers
        ]
    assert engine.wait_until_idle(60)


@pytest.mark.parametrize("servers", [0, 1])
def test_gradients_are_pushed_once_a_step(make_stores, servers):
    """Each key, however many micro-batches there are, and nothing is pushed or pulled besides."""
    [store], calls = make_stores(servers), Counter()

    def counted(name):
        call = getattr(store, name)

        def count(key, *arguments, **options):
            calls[name, key] += 1
            return call(key, *arguments, **options)

        return count

    for name in ("push", "pull", "pushpull"):
        setattr(store, name, counted(name))
    trainer = pipeline(store, stages=[], micro_batches=4)
    model_parts.train_parts(trainer)
    assert calls == {("pushpull", key): STEPS for key in range(8)}  # weight and bias of each layer


def test_gathering_has_the_last_steps_of_all_workers_compared(monkeypatch):
    """Who saves a net then hears that other workers have other weights, and not only at the job's end."""
    calls = []
    worker = SimpleNamespace(tell_numbers=lambda: calls.append("told"))
    monkeypatch.setattr(node, "existing_worker", lambda: worker)
    trainer = pipeline("local", stages=[])
    trainer.step(*model_parts.batches()[0])
    assert not calls
    trainer.gather()
    assert calls == ["told"]


@pytest.mark.parametrize(
    ("servers", "workers", "mode"),
    [(0, 1, "sync"), (1, 1, "sync"), (1, 1, "async"), (0, 2, "sync"), (1, 2, "sync")],
)
def test_gradients_are_divided_by_the_batch_that_there_is(make_stores, servers, workers, mode):
    """Also by a smaller one at the end of an epoch, whoever updates the weights."""
    sizes = [model_parts.BATCH, model_parts.BATCH // 4, model_parts.BATCH]
    expected = model_parts.train_alone(make_chain(), sizes=sizes)
    batches, nets, trainers = model_parts.batches(), [], []
    for store in make_stores(servers, workers, mode):
        nets.append(make_chain())
        options = {"stages": [], "sample": batches[0][0]}  # values now, before another net draws its own
        trainers.append(PipelineTrainer(nets[-1], loss_of, "sgd", OPTIONS, kvstore=store, **options))
    for (data, labels), size in zip(batches, sizes):
        for worker, trainer in enumerate(trainers):
            trainer.step(data[:size][worker::workers], labels[:size][worker::workers])
    for net in nets:
        assert distance(model_parts.values_of(net), expected) <= 1e-6
