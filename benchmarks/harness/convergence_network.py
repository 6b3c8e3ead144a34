"""A small network on scikit-learn's handwritten digits in NumPy: real gradients at little cost."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.datasets import load_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]

INPUTS, HIDDEN, CLASSES = 64, 64, 10
BATCH = 8
"""Samples of one worker in one step."""

_SHAPES = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
_CUTS = [0, *accumulate(prod(shape) for shape in _SHAPES)]
NUM_PARAMS = _CUTS[-1]


def initial(seed: int) -> Array:
    """Return parameters, flat: normal weights with the variance of He et al. 2015, biases of zero."""
    rng = np.random.default_rng([seed, 1])
    params = np.zeros(NUM_PARAMS, np.float32)
    hidden, _, output, _ = _views(params)
    hidden[:] = rng.normal(0.0, np.sqrt(2.0 / INPUTS), hidden.shape)
    output[:] = rng.normal(0.0, np.sqrt(2.0 / HIDDEN), output.shape)
    return params


def gradient(params: Array, images: Array, labels: Array) -> Array:
    """Return the gradient of the mean cross-entropy of a batch, flat."""
    w1, b1, w2, b2 = _views(params)
    hidden = images @ w1 + b1
    np.maximum(hidden, 0.0, out=hidden)
    scores = hidden @ w2 + b2
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    scores[np.arange(len(labels)), labels] -= 1.0
    scores /= len(labels)
    back = scores @ w2.T
    back[hidden <= 0.0] = 0.0
    flat = np.empty_like(params)
    g1, h1, g2, h2 = _views(flat)
    np.matmul(images.T, back, out=g1)
    back.sum(axis=0, out=h1)
    np.matmul(hidden.T, scores, out=g2)
    scores.sum(axis=0, out=h2)
    return flat


def accuracy(params: Array, images: Array, labels: Array) -> float:
    """Return the part of the images that is classified correctly; 0 when the parameters have diverged."""
    w1, b1, w2, b2 = _views(params)
    with np.errstate(all="ignore"):
        scores = np.maximum(images @ w1 + b1, 0.0) @ w2 + b2
    if not np.isfinite(scores).all():
        return 0.0
    return float((scores.argmax(axis=1) == labels).mean())


def _views(flat: Array) -> list[Array]:
    """Cut flat parameters into weights and biases, without a copy."""
    return [flat[lo:hi].reshape(shape) for lo, hi, shape in zip(_CUTS, _CUTS[1:], _SHAPES)]


class Digits:
    """The data of one seed: 60 % to train on, 20 % to tune on, 20 % to test on, and each worker's part."""

    def __init__(self, seed: int, num_workers: int, *, iid: bool) -> None:
        """Split and deal out.

        Args:
            seed: Decides the split, the parts and their order.
            num_workers: Each has a fixed part of the training data, as with MXNet's ``num_parts``.
            iid: Every worker draws from all training data instead.
        """
        images, labels = load_digits(return_X_y=True)
        rng = np.random.default_rng([seed, 0])
        order = rng.permutation(len(labels))
        images, labels = (images / 16.0).astype(np.float32)[order], labels[order]
        cuts = [len(labels) * 3 // 5, len(labels) * 4 // 5]
        self._images, self.tuning_images, self.test_images = np.split(images, cuts)
        self._labels, self.tuning_labels, self.test_labels = np.split(labels, cuts)
        total = cuts[0]
        self._parts = [
            np.arange(total) if iid else np.arange(total)[w::num_workers] for w in range(num_workers)
        ]
        self._rngs = [np.random.default_rng([seed, 2, worker]) for worker in range(num_workers)]
        self._left: list[Array] = [np.empty(0, int)] * num_workers

    def batch(self, workers: Sequence[int]) -> tuple[Array, Array]:
        """Return the next samples of some workers; each shuffles its part anew for every epoch."""
        chosen = np.concatenate([self._next(worker) for worker in workers])
        return self._images[chosen], self._labels[chosen]

    def _next(self, worker: int) -> Array:
        if len(self._left[worker]) < BATCH:
            self._left[worker] = self._rngs[worker].permutation(self._parts[worker])
        left = self._left[worker]
        self._left[worker] = left[BATCH:]
        return left[:BATCH]
