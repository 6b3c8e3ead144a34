"""NeuMF (He et al., 2017): matrix factorisation beside a small neural net, with two tables for each.

In float64, so that its figures do not depend on the number of workers. A gradient is summed over the
samples of each worker first, so in another order with each number; in float32 Adam makes so much of the
rounding of small gradients that after 2,400 steps it decides on up to 13 of 943 users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NeuMF(gluon.Block):
    """Users and items to the logarithm of the odds that they belong together."""

    def __init__(self, num_users: int, num_items: int, width: int) -> None:
        """Make a model; a step touches the rows of its users and items in the four tables."""
        super().__init__()
        with self.name_scope():
            self.factors = self._table(num_users, width), self._table(num_items, width)
            self.inputs = self._table(num_users, 2 * width), self._table(num_items, 2 * width)
            self.layers = gluon.nn.HybridSequential()
            self.layers.add(
                gluon.nn.Dense(2 * width, in_units=4 * width, activation="relu"),
                gluon.nn.Dense(width, in_units=2 * width, activation="relu"),
            )
            self.last = gluon.nn.Dense(1, in_units=2 * width)
        self.initialize(mx.init.Xavier())
        self.cast("float64")

    def _table(self, size: int, width: int) -> gluon.nn.Embedding:
        init = mx.init.Normal(0.05)
        table = gluon.nn.Embedding(size, width, sparse_grad=True, weight_initializer=init)
        self.register_child(table)
        return table

    def forward(self, users: nd.NDArray, items: nd.NDArray) -> nd.NDArray:
        """Return one number for each pair."""
        product = self.factors[0](users) * self.factors[1](items)
        deep = self.layers(nd.concat(self.inputs[0](users), self.inputs[1](items)))
        return self.last(nd.concat(product, deep)).reshape(-1)


def scores(net: NeuMF, candidates: NDArray[np.int64]) -> Any:
    """Return what the net thinks of the candidates of each user."""
    users = np.repeat(np.arange(len(candidates)), candidates.shape[1])
    return net(nd.array(users), nd.array(candidates.ravel())).asnumpy().reshape(candidates.shape)
