"""A word language model whose softmax is over a sample of the words, with tied and untied embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from corpus import Numbers, log_uniform, streams
from mxnet import gluon, nd

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEPS = 20
"""Words of each stream in a batch, through which gradients flow back."""


class WordModel(gluon.Block):
    """Words to the loss of the words that follow, by an LSTM.

    A step touches the rows of the words that it reads, of those that follow and of the sample: of a
    thousand words or so, however many there are.
    """

    def __init__(self, num_words: int, width: int, *, tied: bool) -> None:
        """Make a model; tied embeddings are one table for words that come in and words that go out."""
        super().__init__()
        self.num_words = num_words
        with self.name_scope():
            self.words = gluon.nn.Embedding(num_words, width, sparse_grad=True)
            self.lstm = gluon.rnn.LSTM(2 * width, input_size=width)
            self.dense = gluon.nn.Dense(width, in_units=2 * width, flatten=False)
            params = self.words.params if tied else None
            self.outputs = gluon.nn.Embedding(num_words, width, sparse_grad=True, params=params)
            self.biases = gluon.nn.Embedding(num_words, 1, sparse_grad=True)
        self.initialize(mx.init.Uniform(0.1))

    def hidden(self, words: nd.NDArray, state: list[nd.NDArray]) -> tuple[nd.NDArray, list[nd.NDArray]]:
        """Return what the LSTM says after each word (as one row each), and its state."""
        said, state = self.lstm(self.words(words), state)
        return self.dense(said).reshape((-3, 0)), state

    def forward(self, words: nd.NDArray, following: nd.NDArray, state: Any, sample: Any) -> Any:
        """Return the loss of each word that follows, and the state.

        Args:
            words: Numbers of words, one column for each stream.
            following: The words that follow them.
            state: State of the LSTM.
            sample: Words to tell the right one from, and the logarithm of how often each word is expected
                among them, which is subtracted: a softmax over a sample is then one over all words.
        """
        hidden, state = self.hidden(words, state)
        right, (drawn, expected) = following.reshape(-1), sample
        of_right = (hidden * self.outputs(right)).sum(axis=1) + self.biases(right).reshape(-1)
        of_drawn = nd.dot(hidden, self.outputs(drawn), transpose_b=True) + self.biases(drawn).T
        hits = nd.broadcast_equal(right.expand_dims(1), drawn.expand_dims(0))
        of_drawn = of_drawn - expected[drawn].expand_dims(0) - 1e9 * hits.astype("float32")
        return _loss(of_right - expected[right], of_drawn), state


def _loss(of_right: nd.NDArray, of_others: nd.NDArray) -> nd.NDArray:
    """Return minus the logarithm of the softmax; MXNet's own log_softmax dies of some sizes on CPUs."""
    most = nd.BlockGrad(of_others.max(axis=1, keepdims=True))
    total = nd.log(nd.exp(of_others - most).sum(axis=1)) + most.reshape(-1)
    return nd.Activation(total - of_right, act_type="softrelu")


def draw(num_words: int, count: int, rng: np.random.Generator) -> tuple[nd.NDArray, nd.NDArray]:
    """Return a sample of words for ``WordModel.forward``."""
    drawn, expected = log_uniform(num_words, count, rng)
    return nd.array(drawn, dtype="int32"), nd.array(expected)


def batches(text: Numbers) -> Any:
    """Yield the words of each batch and those that follow."""
    for begin in range(0, len(text) - STEPS, STEPS):
        cut = nd.array(text[begin : begin + STEPS + 1], dtype="int32")
        yield cut[:-1], cut[1:]


def perplexity(net: WordModel, text: NDArray[np.int64]) -> float:
    """Return the perplexity of a text, by the softmax over all words."""
    columns = streams(text, 10)
    state, total, count = net.lstm.begin_state(10), 0.0, 0
    table, biases = net.outputs.weight.data(), net.biases.weight.data().T
    for words, following in batches(columns):
        hidden, state = net.hidden(words, state)
        scores = nd.dot(hidden, table, transpose_b=True) + biases
        right = following.reshape(-1)
        loss = _loss(nd.pick(scores, right), scores - 1e9 * nd.one_hot(right, net.num_words))
        total, count = total + float(loss.sum().asscalar()), count + len(loss)
    return float(np.exp(total / count))
