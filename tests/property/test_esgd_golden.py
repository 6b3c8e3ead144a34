"""Golden trajectories: two clients in a recorded order, in float32, beside plain Python floats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.center import Center
from support.elastic_client import adopt, elastic_step

from kvstore_mpi import DCASGD, DelayedNesterov, DiLoCo, Elastic, StalenessAware

GOLDEN = json.loads((Path(__file__).parent / "golden" / "esgd.json").read_text(encoding="utf-8"))


def follow(name, optimizer, learn):
    center = Center(optimizer.spec(), np.array(GOLDEN["center"], np.float32))
    clients, given = [center.give(0), center.give(1)], [center.give(0), center.give(1)]
    for client, expected in zip(GOLDEN["order"], GOLDEN[name]):
        step = np.array(GOLDEN["steps"][client], np.float32)
        learn(center, client, clients[client], given[client], step)
        given[client] = center.weight.copy()
        np.testing.assert_allclose([*center.weight, *clients[client]], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.paper("MXNET-MPI equations 2 and 3")
def test_elastic():
    """Elastic averaging at alpha = 0.3."""

    def learn(center, client, weight, given, step):
        weight += step
        elastic_step(weight, center.exchange(client, weight.copy()), 0.3)

    follow("elastic", Elastic(0.3), learn)


@pytest.mark.paper("DiLoCo algorithm 1", "Async Local-SGD algorithm 3")
@pytest.mark.parametrize(
    ("name", "optimizer"), [("diloco", DiLoCo()), ("delayed_nesterov", DelayedNesterov(2))]
)
def test_outer(name, optimizer):
    """The clients adopt the center."""

    def learn(center, client, weight, given, step):
        weight += step
        adopt(weight, center.exchange(client, weight.copy()))

    follow(name, optimizer, learn)


@pytest.mark.paper("DC-ASGD equation 10", "Staleness-aware async-SGD section 3")
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("dc_asgd", DCASGD("sgd", learning_rate=0.1, momentum=0.9, lamda=0.5)),
        ("staleness_aware", StalenessAware("sgd", learning_rate=0.1)),
    ],
)
def test_delayed_gradients(name, optimizer):
    """The clients push gradients at what they were given last."""

    def learn(center, client, weight, given, step):
        gradient = step + np.float32(0.1) * given
        adopt(weight, center.exchange(client, gradient))

    follow(name, optimizer, learn)
