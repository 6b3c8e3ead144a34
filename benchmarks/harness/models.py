"""The models whose traffic is replayed: tensors in forward order, their share of the compute, their scale.

This file must not import mxnet, read clocks or start anything; ``zoo.py`` reads shapes from MXNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstore_mpi.p3.bound import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence

ITEM_BYTES = 4
FORWARD_SHARE = 1 / 3
"""Backward computes two products for each one of forward."""

PAPER_SLICE_ELEMENTS = 50_000
STOCK_SLICE_ELEMENTS = 40_000
STOCK_BIG_ARRAY_ELEMENTS = 1_000_000
"""Defaults of stock MXNet: MXNET_KVSTORE_SLICE_THRESHOLD and MXNET_KVSTORE_BIGARRAY_BOUND."""

SLICE_SCALE = 4
"""Slices shrink by this with every model. Work per message does not shrink with a model, so slices as fine
as 1/16 would measure the processors; see the README."""

SCALES = {"resnet50": 4, "inceptionv3": 4, "vgg19": 16, "sockeye": 4}
"""By how much the tensors of each model shrink, so that a run is short."""


@dataclass(frozen=True)
class Tensor:
    """One parameter.

    Attributes:
        elements: Its size in float32 elements.
        work: Multiplications that it takes part in for one example.
    """

    elements: int
    work: float


@dataclass(frozen=True)
class Model:
    """A model at the size at which it is measured.

    Attributes:
        name: What the table calls it.
        tensors: Its trainable parameters in forward order, at full size.
        scale: By how much the tensors are made smaller.
    """

    name: str
    tensors: tuple[Tensor, ...]
    scale: int

    def elements(self) -> list[int]:
        """Return the scaled sizes; no tensor vanishes."""
        return [-(-tensor.elements // self.scale) for tensor in self.tensors]

    def layers(self, compute_s: float) -> list[Layer]:
        """Return the scaled tensors with their times, which add up to ``compute_s``."""
        return [
            Layer(
                ITEM_BYTES * elements,
                share * compute_s * FORWARD_SHARE,
                share * compute_s * (1 - FORWARD_SHARE),
            )
            for elements, share in zip(self.elements(), work_shares(self.tensors))
        ]


@dataclass(frozen=True)
class Granularity:
    """Where tensors are cut.

    Attributes:
        slice_elements: Most elements in one of our slices.
        stock_slice_elements: The same of stock's P3.
        big_array_elements: From this size on stock's ``dist_sync`` spreads a tensor over all servers.
    """

    slice_elements: int
    stock_slice_elements: int
    big_array_elements: int

    @classmethod
    def of(cls, model: Model) -> Granularity:
        """Return the defaults of each store, made smaller with the model if that is."""
        slice_scale = min(SLICE_SCALE, model.scale)
        return cls(
            PAPER_SLICE_ELEMENTS // slice_scale,
            STOCK_SLICE_ELEMENTS // slice_scale,
            STOCK_BIG_ARRAY_ELEMENTS // model.scale,
        )


def work_shares(tensors: Sequence[Tensor]) -> list[float]:
    """Return each tensor's share of the work of all."""
    total = sum(tensor.work for tensor in tensors)
    return [tensor.work / total for tensor in tensors]


EMBEDDING = 512
HIDDEN = 512
SOURCE_WORDS = 17_191
TARGET_WORDS = 7_709


def sockeye() -> Model:
    """Return the tensors of a translation model like the paper's: LSTM, two layers in, two out, 512 wide.

    The sizes of the vocabularies are those of IWSLT15 English to Vietnamese. An embedding is looked up, so
    that it counts for no work; every other matrix is multiplied once per word.
    """
    tensors = [
        _embedding(SOURCE_WORDS),
        *_lstm(EMBEDDING, HIDDEN // 2),  # the first layer reads in both directions
        *_lstm(EMBEDDING, HIDDEN // 2),
        *_lstm(HIDDEN, HIDDEN),
        *(part for _ in range(4) for part in _dense(HIDDEN, HIDDEN)),  # the decoder's first states
        _embedding(TARGET_WORDS),
        *_lstm(EMBEDDING + HIDDEN, HIDDEN),  # the word before, and the attention's last output
        *_lstm(HIDDEN, HIDDEN),
        _matrix(HIDDEN, HIDDEN),  # attention: source, query, score
        _matrix(HIDDEN, HIDDEN),
        _matrix(HIDDEN, 1),
        *_dense(2 * HIDDEN, HIDDEN),
        *_dense(HIDDEN, TARGET_WORDS),
    ]
    return Model("sockeye", tuple(tensors), SCALES["sockeye"])


def _embedding(words: int) -> Tensor:
    """Return a table of word vectors."""
    return Tensor(words * EMBEDDING, 0.0)


def _matrix(inputs: int, outputs: int) -> Tensor:
    """Return a matrix that every word is multiplied with."""
    return Tensor(inputs * outputs, float(inputs * outputs))


def _dense(inputs: int, outputs: int) -> tuple[Tensor, ...]:
    """Return a matrix and its bias."""
    return _matrix(inputs, outputs), Tensor(outputs, 0.0)


def _lstm(inputs: int, units: int) -> tuple[Tensor, ...]:
    """Return the two matrices and two biases of a layer with four gates."""
    return (*_dense(inputs, 4 * units), *_dense(units, 4 * units))
