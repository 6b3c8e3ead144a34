"""Weights that a script changes by itself, where only rows travel."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.exchange.row_tables import TURNS  # noqa: E402

pytestmark = pytest.mark.mxnet

ROWS = 2 * TURNS + 1  # and so three rows at a time, the last time fewer


@pytest.mark.parametrize("num_servers", [0, 1])
def test_rows_that_nobody_pushes_are_the_store_s_again(make_group, num_servers):
    """Some with each step, in turn, and all after a round; those that are pushed at once."""
    store = KVStoreMPI("sync", make_group(num_servers=num_servers).workers[0])
    layer = mx.gluon.nn.Embedding(ROWS, 2, sparse_grad=True)
    layer.initialize(mx.init.One())
    trainer = mx.gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=store)

    def step():
        with mx.autograd.record():
            loss = layer(mx.nd.array([7])).sum()
        loss.backward()
        trainer.step(1)

    for _ in range(2):
        step()
    weight = layer.weight.data()
    for turn in range(2):
        weight[:] = 9
        changed = []
        for _ in range(TURNS):
            step()
            changed.append(int((weight.asnumpy()[:, 0] == 9).sum()))
        assert changed[0] < ROWS - 1
        assert changed == sorted(changed, reverse=True)
        assert changed[TURNS // 2] > 0
        expected = np.ones((ROWS, 2))
        expected[7] -= 0.5 * (2 + TURNS * (turn + 1))
        np.testing.assert_array_equal(weight.asnumpy(), expected)
