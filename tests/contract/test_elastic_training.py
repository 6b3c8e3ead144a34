"""Loosely coupled training in one process: the checks of trainer and callback over threads and memory.

What waits for another client cannot be shown in one thread, which MXNet demands: clients are asynchronous
here, or there is one. Clients of several ranks, and synchronous ones, are in ``tests/mpi``.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

# Below the skip, because they import mxnet.
from support import elastic_training as training  # noqa: E402
from support.elastic_oracles import ORACLE_CHECKS  # noqa: E402
from support.exchange_job import start  # noqa: E402

from kvstore_mpi.adapters.mxnet import ElasticCallback, ElasticTrainer, KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import UnsupportedError  # noqa: E402
from kvstore_mpi.esgd import DiLoCo, Elastic  # noqa: E402
from kvstore_mpi.testing.mxnet_contract import run_together  # noqa: E402
from kvstore_mpi.values.base import ClientBase  # noqa: E402

pytestmark = pytest.mark.mxnet

COMPRESSED = [
    training.compressed_exchanges_conserve_it_too,
    training.compressed_exchanges_that_overlap_conserve_it_too,
]


def run(check, clients, mode):
    """Run a check over servers to which everything travels, so that compression applies."""
    with start(clients, servers=2) as job:
        run_together(check, [partial(KVStoreMPI, mode, worker) for worker in job.workers])
        assert engine.wait_until_idle(60)


@pytest.mark.paper("MXNET-MPI section 6", "MXNET-MPI figure 8")
@pytest.mark.parametrize(("clients", "mode"), [(1, "sync"), (1, "async"), (2, "async")])
@pytest.mark.parametrize(
    "check", [*training.ELASTIC_CHECKS, *ORACLE_CHECKS], ids=lambda check: check.__name__
)
def test_contract(check, clients, mode):
    """Every check passes."""
    run(check, clients, mode)


@pytest.mark.parametrize("check", COMPRESSED, ids=lambda check: check.__name__)
def test_what_rounding_leaves_over_would_be_noticed(check, monkeypatch):
    """A client that moves by what it has, and not by what was understood of it, gains or loses the rest."""
    take = ClientBase.take

    def exact(self, lo, hi, payload, bits):
        self._before = False
        take(self, lo, hi, payload, bits)

    monkeypatch.setattr(ClientBase, "take", exact)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        run(check, 2, "async")


def half_trained(store, *, multi_precision, optimizer, rule, devices, module):
    """Return a weight of half precision after each of some steps towards 4."""
    terms = {"learning_rate": 0.125, "momentum": 0.5, "multi_precision": multi_precision}
    contexts, found = [mx.cpu(each) for each in range(devices)], []
    if module:
        elastic = ElasticCallback(store, interval=2, server_optimizer=rule)
        weight = mx.sym.var("f_weight", shape=(1, 1), dtype="float16")
        product = mx.sym.broadcast_mul(mx.sym.var("data"), mx.sym.Cast(weight, dtype="float32"))
        symbol = mx.sym.LinearRegressionOutput(mx.sym.Cast(product, dtype="float32"), name="out")
        inputs, targets = np.ones((20, 1), np.float32), np.full((20, 1), 4.0, np.float32)
        mx.mod.Module(symbol, label_names=["out_label"], context=contexts).fit(
            mx.io.NDArrayIter(inputs, targets, 2, label_name="out_label"),
            num_epoch=1,
            kvstore=elastic.client_store,
            optimizer=optimizer,
            optimizer_params=terms,
            initializer=mx.init.Zero(),
            eval_metric="mse",
            batch_end_callback=[
                elastic,
                lambda param: found.append(
                    param.locals["self"].get_params()[0]["f_weight"].asnumpy().item()
                ),
            ],
        )
        return found
    parameter = mx.gluon.Parameter("w", shape=(1,), dtype="float16")
    parameter.initialize(mx.init.Zero(), ctx=contexts)
    trainer = ElasticTrainer(
        [parameter], optimizer, terms, kvstore=store, interval=2, server_optimizer=rule
    )
    for _ in range(10):
        with mx.autograd.record():
            losses = [((each.astype("float32") - 4.0) ** 2).sum() / 2 for each in parameter.list_data()]
        mx.autograd.backward(losses)
        trainer.step(devices)
        (value,) = {float(each.asscalar()) for each in parameter.list_data()}
        found.append(value)
    return found


@pytest.mark.parametrize("module", [False, True], ids=["Trainer", "Module"])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "nag"])
@pytest.mark.parametrize("rule", [DiLoCo(), Elastic(0.3)], ids=repr)
def test_copies_in_single_precision_move_with_the_parameters(rule, optimizer, devices, module):
    """The next step would otherwise undo what an exchange with the center has done."""
    both = []
    for multi_precision in (False, True):
        with start(1, servers=1) as job:
            store = KVStoreMPI("sync", job.workers[0])
            both.append(
                half_trained(
                    store,
                    multi_precision=multi_precision,
                    optimizer=optimizer,
                    rule=rule,
                    devices=devices,
                    module=module,
                )
            )
            assert engine.wait_until_idle(60)
    np.testing.assert_allclose(both[1], both[0], atol=0.03)
    assert len(set(both[0])) == 10


def test_who_has_loaded_states_goes_on_from_the_center(tmp_path):
    """And not from the copies in single precision that the states have."""
    with start(1, servers=1) as job:
        for value in (1.0, 2.0):
            parameter = mx.gluon.Parameter("w", shape=(1,), dtype="float16")
            parameter.initialize(mx.init.Constant(value))
            terms = {"learning_rate": 0.0, "momentum": 0.5, "multi_precision": True}
            store = KVStoreMPI("sync", job.workers[0])
            trainer = ElasticTrainer([parameter], "sgd", terms, kvstore=store)
            if value == 2.0:
                trainer.load_states(str(tmp_path / "states"))
            with mx.autograd.record():
                loss = parameter.data().sum()
            loss.backward()
            trainer.step(1)
            assert parameter.data().asscalar() == value
            trainer.save_states(str(tmp_path / "states"))
        assert engine.wait_until_idle(60)


def test_row_sparse_parameters_are_named():
    """With what to do about them."""
    block = mx.gluon.nn.Embedding(4, 2, sparse_grad=True, prefix="words_")
    block.initialize()
    with (
        start(1, servers=1) as job,
        pytest.raises(UnsupportedError, match=r"words_weight .*sparse_grad=False"),
    ):
        ElasticTrainer(block.collect_params(), "sgd", {}, kvstore=KVStoreMPI("sync", job.workers[0]))
