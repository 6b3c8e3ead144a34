"""Trainers whose parameters are in different orders would sum different layers: all are told."""

from __future__ import annotations

import contextlib

import pytest

mx = pytest.importorskip("mxnet")

from mxnet import autograd, gluon  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.updates.parameter_order import normalised  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.testing.mxnet_compatibility import Lion  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet

LAYOUTS = {
    "pure MPI": {"workers_per_client": 2, "servers": 0},
    "servers": {"clients": 2, "servers": 2},
    "sums": {"clients": 2, "servers": 1},
    "own updates": {"clients": 2, "servers": 1},
}


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (["dense3_bias", "dense4_bias"], ["dense8_bias", "dense9_bias"], True),
        (["dense10_bias", "dense9_bias"], ["dense8_bias", "dense9_bias"], False),
        (["net1_dense0_w", "net1_dense1_w"], ["net2_dense0_w", "net2_dense1_w"], True),
        (["a0_w", "b10_w", "b9_w"], ["a0_w", "b3_w", "b7_w"], False),
        (["w", "b"], ["w", "b"], True),
        (["w", "b"], ["b", "w"], False),
        (["x1y2", "x1y3"], ["x4y7", "x4y9"], True),
    ],
)
def test_names_are_alike_wherever_counting_began(one, other, alike):
    assert (normalised(one) == normalised(other)) is alike
    assert sorted(normalised(one)) == sorted(normalised(other))


def outcome(layout, numbers):
    """Return what workers end with whose nets have layers of these numbers; nothing if they can train."""
    cluster = Cluster(MemoryNetwork().transport, peer_timeout=2.0, **LAYOUTS[layout])
    try:
        trainers = []
        for worker, of_net in zip(cluster.workers, numbers):
            net = gluon.nn.HybridSequential()
            net.add(
                *(gluon.nn.Dense(2, in_units=2, use_bias=False, prefix=f"dense{each}_") for each in of_net)
            )
            net.initialize()
            # That of sums is one that servers do not know.
            optimizer = Lion() if layout == "sums" else "sgd"
            kwargs = {"optimizer": optimizer, "kvstore": KVStoreMPI("sync", worker)}
            kwargs["update_on_kvstore"] = layout != "own updates"
            trainers.append((net, gluon.Trainer(net.collect_params(), **kwargs)))
        for net, trainer in trainers:
            with autograd.record():
                net(mx.nd.ones((1, 2))).backward()
            trainer.step(1)
        mx.nd.waitall()
    except mx.MXNetError as error:
        return str(error)
    else:
        return ""
    finally:
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()
        assert engine.wait_until_idle(60)
        cluster.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_that_are_counted_across_ten(layout):
    """One worker has made a layer more."""
    assert "different orders" in outcome(layout, [(9, 10), (8, 9)])


@pytest.mark.parametrize("layout", ["pure MPI", "servers", "own updates"])
def test_layers_that_are_counted_from_elsewhere(layout):
    """Their order is the same."""
    assert outcome(layout, [(7, 8), (5, 6)]) == ""


@pytest.mark.parametrize("layout", ["pure MPI", "servers"])
def test_an_optimizer_that_knows_parameters_without_a_trainer(layout):
    """As one that a script gives by itself; what is told twice of a store counts once."""
    cluster = Cluster(MemoryNetwork().transport, **LAYOUTS[layout])
    told = []
    try:
        for worker, names in zip(cluster.workers, (("d10_w", "d9_w"), ("d8_w", "d9_w"))):
            worker.note_numbers = told.append
            store = KVStoreMPI("sync", worker)
            parameters = {key: gluon.Parameter(name, shape=(2,)) for key, name in enumerate(names)}
            for _ in range(2):
                store.set_optimizer(mx.optimizer.SGD(param_dict=parameters))
    finally:
        cluster.close()
    one, other = told
    assert (one.store, one.given, one.key, one.step) == (other.store, other.given, other.key, other.step)
    assert one.digest != other.digest
