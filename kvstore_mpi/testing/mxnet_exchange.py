"""What exchanges of parameters over the MXNet store must come to, whatever carries them.

The checks have the form of those in ``mxnet_contract.py`` and need servers.
``mpilaunch --servers 1 -m kvstore_mpi.testing.mxnet_exchange`` runs them all for this process's worker.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet import KVStoreMPI
from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.esgd import DCASGD, DiLoCo, Elastic, LocalSGD, Outer, StalenessAware
from kvstore_mpi.testing.adapter_contract import SHAPE, Turn, refused, run_alone
from kvstore_mpi.testing.mxnet_contract import Check, OpenStore, expect, full
from kvstore_mpi.values.coding import coding_of

if TYPE_CHECKING:
    from collections.abc import Iterator

EXCHANGE_CHECKS: list[Check] = []
ALPHA = 0.25


def check(function: Check) -> Check:
    """Add a check to those that every worker must pass."""
    EXCHANGE_CHECKS.append(function)
    return function


def close_to(array: Any, value: Any) -> None:
    """Compare an array with what it must be, to rounding."""
    np.testing.assert_allclose(array.asnumpy(), np.broadcast_to(value, array.shape), rtol=1e-5)


def moved(kv: KVStoreMPI, start: float, target: float, rounds: int) -> float:
    """Return the center when all clients have pushed ``target`` as often as that."""
    if kv.type == "dist_sync_mpi":
        rate, times = ALPHA * kv.num_clients, rounds
    else:
        rate, times = ALPHA, rounds * kv.num_clients
    return target + float((1 - rate) ** times * (start - target))


@check
def an_exchange_moves_the_center(open_store: OpenStore) -> Iterator[Turn]:
    """Parameters go in, the center before comes out; each client counts once, however many ranks it has."""
    kv = open_store()
    kv.set_optimizer(Elastic(ALPHA))
    params, center, after = full(5), full(-1), full(-1)
    kv.init("w", full(1))
    yield kv
    kv.pushpull("w", params, out=center)
    yield kv
    kv.pull("w", out=after)
    yield kv
    expect(params, 5)
    close_to(after, moved(kv, 1, 5, 1))
    earlier = kv.num_clients if "async" in kv.type else 1  # exchanges that may have come before
    possible = [5 + (1 - ALPHA) ** n * (1 - 5) for n in range(earlier)]
    assert np.isclose(possible, center.asnumpy()[0, 0], rtol=1e-5).any(), (possible, center)


@check
def the_first_device_counts(open_store: OpenStore) -> Iterator[Turn]:
    """The arrays of several devices are copies of the same parameters, and all get the center."""
    kv = open_store()
    kv.set_optimizer(LocalSGD())
    kv.init("w", full(1))
    devices = [full(3), full(30, ctx=mx.cpu(1))]
    outs = [full(0), full(0, ctx=mx.cpu(1))]
    kv.pushpull("w", devices, out=outs)
    kv.push("w", devices)
    kv.pull("w", out=devices)
    yield kv
    for array in (*outs, *devices):
        close_to(array, 3)


@check
def out_may_be_the_parameters(open_store: OpenStore) -> Iterator[Turn]:
    """With optimizers whose clients adopt the new center that is all that a client has to do."""
    kv = open_store()
    kv.set_optimizer(DiLoCo(lr=1.0, momentum=0.0))
    weights = [full(4), full(2, shape=(7,))]
    kv.init([0, 1], [full(0), full(0, shape=(7,))])
    kv.pushpull([0, 1], weights, out=weights, priority=3)
    yield kv
    close_to(weights[0], 4)
    close_to(weights[1], 2)


@check
def rank_zeros_value_seeds_the_center(open_store: OpenStore) -> Iterator[Turn]:
    """Init and broadcast give every worker the center; workers of other values adopt it."""
    kv = open_store()
    kv.set_optimizer(Elastic(ALPHA))
    weight = full(kv.rank + 3)
    kv.broadcast("w", weight, out=weight)
    yield kv
    expect(weight, 3)
    assert kv.server_optimizer is not None
    assert kv.server_optimizer.params == {"alpha": ALPHA}


@check
def a_plain_trainer_is_refused(open_store: OpenStore) -> Iterator[Turn]:
    """It would push gradients, and the center would decay to zero without a word."""
    for on_kvstore in (True, False) if "async" not in open_store().type else (True,):
        kv = open_store()
        kv.set_optimizer(Elastic(ALPHA))
        net = mx.gluon.nn.Dense(2, in_units=3)
        net.initialize()
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=kv, update_on_kvstore=on_kvstore)
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 3)))
        loss.backward()
        yield kv
        refused(UsageError, "ElasticTrainer", trainer.step, 1)
        yield kv


@check
def a_module_is_refused(open_store: OpenStore) -> Iterator[Turn]:
    """Likewise."""
    kv = open_store()
    kv.set_optimizer(DiLoCo())
    module = mx.mod.Module(
        mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
    )
    module.bind([("data", (1, 3))], [("softmax_label", (1,))])
    module.init_params()
    refused(UsageError, "ElasticTrainer", module.init_optimizer, kv, "sgd")
    yield kv


@check
def a_store_of_gradients_stays_one(open_store: OpenStore) -> Iterator[Turn]:
    """An optimizer that takes parameters cannot replace one that takes gradients."""
    kv = open_store()
    kv.set_optimizer(mx.optimizer.SGD())
    refused(UsageError, "takes gradients", kv.set_optimizer, Elastic(ALPHA))
    yield kv


@check
def gradients_are_compressed_as_a_trainer_asks(open_store: OpenStore) -> Iterator[Turn]:
    """By ``compression_params``, which counts for the optimizers that come after, saved states or not."""
    kv = open_store()
    for wrong in ({"type": "int8"}, {"type": "bfloat16", "threshold": 0.5}):
        refused(UnsupportedError, "not supported", kv.set_gradient_compression, wrong)
    none = {"type": "2bit", "threshold": 0}
    refused(UsageError, "must be a positive number", kv.set_gradient_compression, none)
    kv.set_gradient_compression({"type": "bfloat16"})
    kv.set_optimizer(mx.optimizer.SGD())
    yield kv
    has_compression(kv, "bfloat16")
    kv.set_optimizer(mx.optimizer.SGD(), compress="float16")
    yield kv
    kv._updater.set_states(kv._updater.get_states(dump_optimizer=True))  # noqa: SLF001
    has_compression(kv, "float16")
    for threshold in ({}, {"threshold": 0.25}):
        kv.set_gradient_compression({"type": "2bit", **threshold})
        kv.set_optimizer(mx.optimizer.SGD())
        yield kv
        has_compression(kv, "2bit:0.25" if threshold else "2bit")
    kv.set_gradient_compression({"type": "none"})
    yield kv
    kv.set_optimizer(mx.optimizer.SGD())
    has_compression(kv, None)
    yield kv


def has_compression(kv: KVStoreMPI, compress: str | None) -> None:
    """Make sure that the optimizer that counts has this; other workers may be told of the one before it."""
    assert kv.server_optimizer is not None
    assert kv.rank or kv.server_optimizer.compress == coding_of(compress)


@check
def mistakes_with_parameters_are_refused(open_store: OpenStore) -> Iterator[Turn]:
    """What cannot work raises at the call and leaves the store usable."""
    kv = open_store()
    mistakes: list[tuple[str, dict[str, Any]]] = [
        ("compress must be", {"compress": "zip"}),
        ("quorum", {"quorum": -1}),
        ("quorum", {"quorum": kv.num_clients + 1}),
    ]
    for words, terms in mistakes:
        refused(UsageError, words, partial(kv.set_optimizer, Elastic(ALPHA), **terms))
    refused(UsageError, "takes gradients", partial(kv.set_optimizer, mx.optimizer.SGD(), compress="int8"))
    refused(UsageError, "neither an optimizer", kv.set_optimizer, "elastic")
    kv.set_optimizer(Elastic(ALPHA))
    kv.init(["w", "i"], [full(1), full(1, dtype="int32")])
    refused(UsageError, "without out", kv.pushpull, "w", full(1))
    refused(UsageError, "only floating-point", kv.push, "i", full(1, dtype="int32"))
    sparse = mx.nd.sparse.zeros("row_sparse", SHAPE)
    refused(UnsupportedError, "row-sparse", kv.push, "w", sparse)
    center = full(0)
    kv.pushpull("w", full(1), out=center)
    yield kv
    close_to(center, 1)


@check
def delayed_gradients(open_store: OpenStore) -> Iterator[Turn]:
    """Optimizers that compensate for delays take gradients, with momentum, like MXNet's own."""
    for optimizer in (
        DCASGD("sgd", learning_rate=0.5, momentum=0.5, lamda=0.0),
        StalenessAware("sgd", learning_rate=0.5, momentum=0.5),
    ):
        kv = open_store()
        kv.set_optimizer(optimizer)
        weight = full(0)
        kv.init("w", weight)
        yield kv
        kv.pushpull("w", full(2), out=weight)
        yield kv
        assert np.isfinite(weight.asnumpy()).all()
        assert (weight.asnumpy() < 0).all()


@check
def a_trainer_with_delayed_gradients(open_store: OpenStore) -> Iterator[Turn]:
    """Any MXNet optimizer of a Trainer can be compensated; a change of its learning rate still counts."""
    for how in ("dc-asgd", "staleness-aware"):
        kv = open_store()
        if "async" not in kv.type:
            refused(UsageError, "no gradient is delayed", kv.compensate_delays, how)
            return
        refused(UsageError, "there is no", kv.compensate_delays, "hope")
        kv.compensate_delays(how)
        net = mx.gluon.nn.Dense(1, in_units=1, use_bias=False)
        net.initialize(mx.init.One())
        options = {"learning_rate": 0.125, "momentum": 0.5}
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", options, kvstore=kv)
        for _ in range(2):
            with mx.autograd.record():
                loss = net(mx.nd.ones((1, 1))).sum()
            loss.backward()
            yield kv
            trainer.step(1)
            trainer.set_learning_rate(0.0)
            yield kv
        assert kv.server_optimizer is not None
        assert kv.server_optimizer.name == how
        weight = float(net.weight.data().asscalar())
        assert np.isfinite(weight)
        assert weight < 1.0
        if kv.num_workers == 1:  # nothing is delayed: one step, and half of it again
            assert weight == 1.0 - 0.125 - 0.0625


@check
def states_of_the_server_optimizer_are_saved(open_store: OpenStore) -> Iterator[Turn]:
    """The outer momentum can be saved and loaded, as bytes of the store's updater."""
    kv = open_store()
    kv.set_optimizer(Outer("sgd", learning_rate=1.0, momentum=0.5))
    center = full(0)
    kv.init("w", full(1))
    kv.pushpull("w", full(2), out=center)
    yield kv
    updater = kv._updater  # noqa: SLF001  MXNet's Trainer looks there, too
    saved = updater.get_states()
    yield kv
    updater.set_states(saved)
    yield kv
    assert updater.get_states() == saved


def main() -> None:
    """Run all checks for this process's worker of a real job, in both modes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modes", nargs="*", default=["sync", "async"])
    for mode in parser.parse_args().modes:
        for one in EXCHANGE_CHECKS:
            run_alone(one, partial(KVStoreMPI, mode))
            print(f"passed: {one.__name__} ({mode})", flush=True)  # noqa: T201  the report of a command


if __name__ == "__main__":
    main()
