"""ComplEx (Trouillon et al., 2016): entities and relations as vectors of complex numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mxnet as mx
from mxnet import gluon, nd

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ComplEx(gluon.Block):
    """Triples to the loss of telling their tails from other entities."""

    def __init__(self, num_entities: int, num_relations: int, width: int) -> None:
        """Make a model; the first half of a row is real, the second imaginary."""
        super().__init__()
        with self.name_scope():
            init = mx.init.Normal(0.3)
            self.entities = gluon.nn.Embedding(
                num_entities, 2 * width, sparse_grad=True, weight_initializer=init
            )
            self.relations = gluon.nn.Embedding(
                num_relations, 2 * width, sparse_grad=True, weight_initializer=init
            )
        self.initialize()

    def expected(self, heads: nd.NDArray, relations: nd.NDArray) -> nd.NDArray:
        """Return head times relation: the vectors whose products with the entities are the scores."""
        (a, b), (c, d) = (
            table(numbers).split(2, axis=1)
            for table, numbers in ((self.entities, heads), (self.relations, relations))
        )
        return nd.concat(a * c - b * d, a * d + b * c)

    def forward(self, triples: nd.NDArray, others: nd.NDArray) -> nd.NDArray:
        """Return one loss for each triple.

        The others are weighted by what the model itself thinks of them (self-adversarial negatives, Sun et
        al., 2019); the weights are no path for gradients.
        """
        expected = self.expected(triples[:, 0], triples[:, 1])
        right = (expected * self.entities(triples[:, 2])).sum(axis=1)
        wrong = nd.dot(expected, self.entities(others), transpose_b=True)
        weights = nd.BlockGrad(nd.softmax(wrong, axis=1))
        softplus = nd.Activation(wrong, act_type="softrelu")
        return nd.Activation(-right, act_type="softrelu") + (weights * softplus).sum(axis=1)

    def scores(self, pairs: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return a score of each entity as the tail of pairs of a head and a relation."""
        expected = self.expected(nd.array(pairs[:, 0]), nd.array(pairs[:, 1]))
        every: NDArray[np.float32] = nd.dot(
            expected, self.entities.weight.data(), transpose_b=True
        ).asnumpy()
        return every
