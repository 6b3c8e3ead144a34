"""A text as numbers of words, cut into streams; knows nothing of MXNet and of key-value stores."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import wheel_data
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = {"lee": "lee_background.cor", "wikipedia": "head500.noblanks.cor"}
"""News in plain English, 60,000 words; and articles of Wikipedia as stems without stop words, 330,000."""

HELD_OUT = 10
"""Every tenth document."""

Numbers = NDArray[np.int64]


class Corpus(NamedTuple):
    """A text, cut for training and testing.

    Attributes:
        train: The words to train on, as numbers.
        test: The words of the documents that are held out.
        counts: How often each word occurs in what is trained on; the frequent words have the low numbers.
    """

    train: Numbers
    test: Numbers
    counts: Numbers


def load(name: str) -> Corpus:
    """Return one of the texts; the same numbers on every call."""
    [path] = wheel_data.unpack(wheel_data.TEXTS, f"gensim/test/test_data/{TEXTS[name]}")
    return number(read(path))


def read(path: Path) -> list[list[str]]:
    """Return the words of each document, which are its lines; one of its own ends each."""
    lines = path.read_text(encoding="utf-8").lower().splitlines()
    return [[*re.findall(r"\w+|[^\w\s]", line), "<end>"] for line in lines]


def number(documents: list[list[str]]) -> Corpus:
    """Number the words by how often they occur; 0 is for words that occur only in held-out documents."""
    test = documents[HELD_OUT - 1 :: HELD_OUT]
    train = [document for index, document in enumerate(documents) if (index + 1) % HELD_OUT]
    found = Counter(word for document in train for word in document)
    words = sorted(found, key=lambda word: (-found[word], word))
    numbers = {word: index for index, word in enumerate(words, 1)}
    counts = np.array([0] + [found[word] for word in words])
    return Corpus(_joined(train, numbers), _joined(test, numbers), counts)


def _joined(documents: list[list[str]], numbers: dict[str, int]) -> Numbers:
    return np.array([numbers.get(word, 0) for document in documents for word in document])


def streams(words: Numbers, count: int) -> Numbers:
    """Return a text as the columns of an array: ``count`` parts that are read at the same time.

    Words that are left when all parts are as long are left out.
    """
    return words[: len(words) - len(words) % count].reshape(count, -1).T


def log_uniform(size: int, count: int, rng: np.random.Generator) -> tuple[Numbers, NDArray[np.float32]]:
    """Draw words, frequent ones often; return them, and the logarithm of how often each word is expected.

    The probability of word k is log((k + 2) / (k + 1)) / log(size + 1), near Zipf's law.
    """
    drawn = np.exp(rng.random(count) * np.log(size + 1)).astype(np.int64) - 1
    ranks = np.arange(size)
    expected = count * np.log((ranks + 2) / (ranks + 1)) / np.log(size + 1)
    return np.minimum(drawn, size - 1), np.log(expected).astype(np.float32)


def unigram_perplexity(corpus: Corpus) -> float:
    """Return the perplexity of a model that knows only how frequent words are, each counted once more."""
    probability = (corpus.counts + 1) / (corpus.counts + 1).sum()
    return float(np.exp(-np.log(probability[corpus.test]).mean()))
