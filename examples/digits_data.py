"""The handwritten digits that come with scikit-learn, cut for training and dealt out to workers.

Knows nothing of MXNet and of key-value stores.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Digits = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Float32 images in [0, 1] of shape (n, 1, 8, 8), and float32 labels of shape (n,)."""


def load() -> tuple[Digits, Digits]:
    """Return the 1437 digits to train on and the 360 to test on; the same ones on every call."""
    flat, names = load_digits(return_X_y=True)
    images, labels = (flat / 16).astype("float32").reshape(-1, 1, 8, 8), names.astype("float32")
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=360, random_state=0, stratify=labels
    )
    return (train_images, train_labels), (test_images, test_labels)


def shard(digits: Digits, rank: int, num_workers: int) -> Digits:
    """Return the part of a data set that belongs to one worker.

    All parts have the same size, so all workers take the same number of steps; a store that waits for
    every worker in every step needs that. A rest smaller than the number of workers is left out.
    """
    images, labels = digits
    end = len(images) - len(images) % num_workers
    return images[rank:end:num_workers], labels[rank:end:num_workers]
