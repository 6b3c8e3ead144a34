"""What loosely coupled training must come to: ``ElasticTrainer`` over any worker.

The checks have the form of those in ``mxnet_contract.py`` and need servers. Those that follow a whole
training are in ``elastic_oracles.py``.
``mpilaunch --servers 1 -m support.elastic_training`` runs them all for this process's worker.
"""

from __future__ import annotations

import tempfile
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet import ElasticTrainer, KVStoreMPI
from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.esgd import DiLoCo, LocalSGD
from kvstore_mpi.esgd.stagger import exchange_offset
from kvstore_mpi.testing.adapter_contract import Turn, refused, run_alone
from kvstore_mpi.testing.mxnet_contract import Check, OpenStore
from support.elastic_networks import ALPHA, fill, idle, learn, make_net, total, values
from support.elastic_oracles import ORACLE_CHECKS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

ELASTIC_CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Add a check to those that every worker must pass."""
    ELASTIC_CHECKS.append(function)
    return function


@check
def all_begin_with_the_center(open_store: OpenStore) -> Iterator[Turn]:
    """Workers of different seeds hold rank 0's parameters before their first update counts."""
    kv = open_store()
    net = make_net(seed=kv.rank)
    trainer = ElasticTrainer(net.collect_params(), "sgd", {"learning_rate": 0.0}, kvstore=kv)
    idle(trainer)
    yield kv
    for name, value in values(make_net(seed=0)).items():
        np.testing.assert_array_equal(values(net)[name], value, err_msg=name)


def _conserve(
    open_store: OpenStore, overlap: int, interval: int, compress: str | None = None
) -> Iterator[Turn]:
    kv = open_store()
    alpha = ALPHA / kv.num_clients
    net = make_net(seed=1)
    terms: dict[str, Any] = {"alpha": alpha, "overlap": overlap, "compress": compress}
    trainer = ElasticTrainer(net.collect_params(), "sgd", kvstore=kv, interval=interval, **terms)
    idle(trainer)
    yield kv
    begin = values(net)  # all clients and the center have the same now
    fill(net, kv.client + 1.0)
    for _ in range(2 * interval + overlap):
        idle(trainer)
        yield None
    with trainer.center():  # which applies what is under way
        pass
    own = values(net)
    yield kv
    with trainer.center():
        center = values(net)
    sums = {name: total(kv, name, own[name] / kv.mpi_size) for name in own}
    yield kv
    clients = kv.num_clients
    moved = False
    for name, value in begin.items():
        wanted = clients * (clients + 1) / 2 + value
        np.testing.assert_allclose(sums[name].asnumpy() + center[name], wanted, rtol=1e-5, atol=1e-5)
        moved = moved or not np.allclose(center[name], value)
        np.testing.assert_array_equal(values(net)[name], own[name])
    assert moved


@check
def exchanges_conserve_the_sum(open_store: OpenStore) -> Iterator[Turn]:
    """What the center gains, the clients lose; and ``center`` gives the client's own back."""
    return _conserve(open_store, overlap=0, interval=1)


@check
def exchanges_that_overlap_conserve_it_too(open_store: OpenStore) -> Iterator[Turn]:
    """Each difference counts once on both sides, whenever it is applied."""
    return _conserve(open_store, overlap=2, interval=3)


@check
def compressed_exchanges_conserve_it_too(open_store: OpenStore) -> Iterator[Turn]:
    """Both sides move by what the other has understood, whatever rounding has left over."""
    return _conserve(open_store, overlap=0, interval=1, compress="int8")


@check
def compressed_exchanges_that_overlap_conserve_it_too(open_store: OpenStore) -> Iterator[Turn]:
    """Also when the answer comes to parameters that have moved on."""
    return _conserve(open_store, overlap=2, interval=3, compress="int4")


@check
def ranks_of_a_client_stay_equal(open_store: OpenStore) -> Iterator[Turn]:
    """With different samples on every rank their parameters have the same bits after every step."""
    kv = open_store()
    own = kv.client_store()
    net = make_net(seed=kv.rank)
    hyper = {"learning_rate": 0.05, "momentum": 0.9}
    trainer = ElasticTrainer(
        net.collect_params(), "sgd", hyper, kvstore=kv, interval=2, server_optimizer=DiLoCo()
    )
    out = mx.nd.zeros(1, dtype="float64")
    own.init("checksums", out)
    for step in range(7):
        learn(net, trainer, 100 * kv.rank + step)
        yield kv
        checksum = zlib.crc32(b"".join(value.tobytes() for value in values(net).values()))
        own.pushpull("checksums", mx.nd.array([checksum], dtype="float64"), out=out)
        yield kv
        assert int(out.asscalar()) == kv.mpi_size * checksum  # if one differs, it is not the mean


@check
def gradients_are_averaged_over_the_ranks(open_store: OpenStore) -> Iterator[Turn]:
    """Without an exchange a client steps as one process with the batches of all its ranks."""
    kv = open_store()
    net, alone = make_net(seed=5), make_net(seed=5)
    hyper = {"learning_rate": 0.1}
    trainer = ElasticTrainer(net.collect_params(), "sgd", hyper, kvstore=kv, interval=100)
    plain = mx.gluon.Trainer(alone.collect_params(), "sgd", hyper, kvstore=None)
    for step in range(3):
        learn(net, trainer, 10 * kv.mpi_rank + step)
        yield kv
        draws = [np.random.RandomState(10 * rank + step).randn(4, 3) for rank in range(kv.mpi_size)]
        with mx.autograd.record():
            loss = (alone(mx.nd.array(np.concatenate(draws))) ** 2).sum()
        loss.backward()
        plain.step(4 * kv.mpi_size)
    for name, value in values(alone).items():
        np.testing.assert_allclose(values(net)[name], value, rtol=1e-5, atol=1e-6)


@check
def exchanges_come_when_they_are_due(open_store: OpenStore) -> Iterator[Turn]:
    """Each array is exchanged once in an interval, none before the first step has ended."""
    kv = open_store()
    net = make_net(seed=2)
    trainer = ElasticTrainer(net.collect_params(), "sgd", kvstore=kv, interval=3)
    asked: list[tuple[int, int]] = []
    steps = 0
    original = kv.pushpull_staged

    def noted(key: Any, *args: Any) -> Any:
        asked.append((steps, key))
        return original(key, *args)

    # Of this store only, for this check.
    kv.pushpull_staged = noted  # type: ignore[assignment,method-assign]
    keys = len(net.collect_params().keys())
    for _ in range(10):
        steps += 1
        idle(trainer)
        yield kv
    staggered = "async" in kv.type
    offsets = [exchange_offset(kv.client, kv.num_clients, key, keys, 3) * staggered for key in range(keys)]
    wanted = [(step, key) for step in range(1, 11) for key in range(keys) if step % 3 == offsets[key]]
    assert asked == wanted, (asked, wanted)


def _exchange_statistics(
    kv: KVStoreMPI, **options: Any
) -> Generator[Turn, None, tuple[Any, ElasticTrainer]]:
    """Exchange running means that are 0 in the center and rank + 1 here; return them and the trainer.

    In the first step: they are of the first pass, as BatchNorm would have made them.
    """
    net = make_net(seed=3, norm=True)
    trainer = ElasticTrainer(net.collect_params(), "sgd", kvstore=kv, interval=1, **options)
    trainer.join()
    yield kv
    mean = net[1].running_mean
    mean.set_data(mx.nd.full((5,), kv.rank + 1.0))
    idle(trainer)
    yield kv
    return mean, trainer


@check
def statistics_without_gradients_take_part(open_store: OpenStore) -> Iterator[Turn]:
    """A center of BatchNorm's running mean gets the mean over a client's ranks.

    In an asynchronous store another client's may have come in its place before the answer left.
    """
    kv = open_store()
    mean, _ = yield from _exchange_statistics(kv, server_optimizer=LocalSGD())
    of_clients = np.arange(1.0, kv.num_workers + 1).reshape(kv.num_clients, -1).mean(axis=1)
    possible = of_clients if "async" in kv.type else [of_clients.mean()]
    got = mean.data().asnumpy()
    assert any(np.allclose(got, wanted, rtol=1e-6) for wanted in possible), (got, possible)


@check
def statistics_are_averaged_elastically(open_store: OpenStore) -> Iterator[Turn]:
    """Each rank moves by alpha towards the center, and the center towards the mean over the ranks.

    From zero, in a synchronous store; in an asynchronous one it depends on who comes first.
    """
    kv = open_store()
    alpha = ALPHA / kv.num_clients
    mean, trainer = yield from _exchange_statistics(kv, alpha=alpha)
    if "async" not in kv.type:
        np.testing.assert_allclose(mean.data().asnumpy(), (1 - alpha) * (kv.rank + 1.0), rtol=1e-6)
        with trainer.center():
            of_all = np.mean(np.arange(1.0, kv.num_workers + 1))
            np.testing.assert_allclose(mean.data().asnumpy(), ALPHA * of_all, rtol=1e-6)


@check
def the_counter_is_saved(open_store: OpenStore) -> Iterator[Turn]:
    """A trainer that loads states goes on in the same interval; MXNet's own can read them, too."""
    kv = open_store()
    net = make_net(seed=4)
    hyper = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = ElasticTrainer(net.collect_params(), "sgd", hyper, kvstore=kv, interval=50)
    for step in range(3):
        learn(net, trainer, step)
        yield kv
    kv = open_store()
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "states")
        trainer.save_states(file)
        later = ElasticTrainer(net.collect_params(), "sgd", hyper, kvstore=kv, interval=50)
        yield kv
        later.load_states(file)
        plain = mx.gluon.Trainer(net.collect_params(), "sgd", hyper, kvstore=None)
        plain.load_states(file)
    yield kv
    assert later._centers.steps == 3
    for number, momentum in trainer._updaters[0].states.items():
        for other in (later, plain):
            states = other._updaters[0].states
            np.testing.assert_array_equal(states[number].asnumpy(), momentum.asnumpy())


@check
def mistakes_are_refused(open_store: OpenStore) -> Iterator[Turn]:
    """Each says what to give instead."""
    kv = open_store()
    net = make_net(seed=6)
    make = partial(ElasticTrainer, net.collect_params(), "sgd", kvstore=kv)
    refused(UsageError, "not both", make, alpha=0.5, server_optimizer=LocalSGD())
    refused(UsageError, "interval", make, interval=0)
    refused(UsageError, "overlap", make, interval=4, overlap=4)
    refused(UsageError, "alpha", make, alpha=1.5)
    refused(UsageError, "take parameters", make, server_optimizer=mx.optimizer.SGD())
    refused(UsageError, "such as DiLoCo(), and not its class", make, server_optimizer=DiLoCo)
    refused(UsageError, "quorum_wait not negative, not 0 and nan", make, quorum_wait=float("nan"))
    refused(
        UsageError,
        "store with servers",
        ElasticTrainer,
        net.collect_params(),
        "sgd",
        kvstore=mx.kv.create("local"),
    )
    sparse = mx.gluon.nn.Embedding(4, 2, sparse_grad=True)
    sparse.initialize()
    refused(UnsupportedError, "sparse", ElasticTrainer, sparse.collect_params(), "sgd", kvstore=kv)
    yield kv


def main() -> None:
    """Run all checks for this process's worker, in stores of both modes."""
    for mode in ("sync", "async"):
        for one in (*ORACLE_CHECKS, *ELASTIC_CHECKS):
            run_alone(one, partial(KVStoreMPI, mode))
            print(f"passed: {one.__name__} ({mode})", flush=True)  # noqa: T201  what the launcher's user sees


if __name__ == "__main__":
    main()
