"""Initial values of a table's rows, which depend on nothing but the row's id, the column and a seed.

So it does not matter which server makes a row, when, and in how many pieces the table is cut; a row that
was never pushed needs no memory, as it can be made again whenever somebody asks for it. Random numbers are
hashes of a counter (splitmix64, whose state begins with a hash of seed and id). Only operations that
IEEE 754 rounds exactly are used, so that all processors have the same bits; logarithms and cosines, by
which normal numbers are often made, differ in the last one. On one core of a virtual machine a uniform
number takes 5 ns, a normal one 12. This file must not know where rows are kept.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import RowInit

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK_64 = 2**64 - 1

_BLOCK_WORDS = 1 << 14
"""Random words that are made at a time: they stay in the cache."""

_CELL_BITS = 16
"""Of a float32, the bits that tell the place within a cell of the table: 128 cells to an octave."""

_LEAST_BITS = int(np.float32(2.0**-32).view(np.uint32)) >> _CELL_BITS


def check_init(init: RowInit) -> None:
    """Raise where there is no such initial value.

    Raises:
        UsageError: The name is not one of those there are, or a number is out of range.
    """
    if init.name not in _KINDS:
        raise UsageError(f"rows cannot begin as {init.name!r}; there are {', '.join(_KINDS)}")
    if type(init.seed) is not int or not -(2**63) <= init.seed <= _MASK_64:
        raise UsageError(f"rows cannot begin by the seed {init.seed!r}: give a whole number of 64 bits")
    if not (math.isfinite(init.a) and math.isfinite(init.b)):
        raise UsageError(f"rows cannot begin with {init.a} and {init.b}: give finite numbers")
    if init.name == "uniform" and init.a > init.b:
        raise UsageError(f"rows cannot begin between {init.a} and {init.b}: give the smaller number first")
    if init.name == "normal" and init.b < 0:
        raise UsageError(f"rows cannot begin with a standard deviation of {init.b}")


def initial_rows(init: RowInit, ids: Array, width: int, dtype: np.dtype[Any]) -> Array:
    """Return the initial values of rows, (ids, width).

    Args:
        init: One that ``check_init`` lets pass.
        ids: Of the whole table and not of a piece; int64, 1-D.
        width: Elements of a row.
        dtype: Of the result; numbers are made as float32.
    """
    out: Array = np.empty((ids.size, width), dtype)
    _KINDS[init.name](out, ids, init)
    return out


def _zeros(out: Array, _ids: Array, _init: RowInit) -> None:
    out.fill(0)


def _constant(out: Array, _ids: Array, init: RowInit) -> None:
    out.fill(init.a)


def _uniform(out: Array, ids: Array, init: RowInit) -> None:
    _fill(out, ids, init.seed, _unit, (init.b - init.a, init.a))


def _normal(out: Array, ids: Array, init: RowInit) -> None:
    _fill(out, ids, init.seed, _standard_normal, (init.b, init.a))


def _xavier(out: Array, ids: Array, init: RowInit) -> None:
    bound = math.sqrt(3 / max(1, out.shape[1]))
    _fill(out, ids, init.seed, _unit, (2 * bound, -bound))


_KINDS: dict[str, Callable[[Array, Array, RowInit], None]] = {
    "zeros": _zeros,
    "constant": _constant,
    "uniform": _uniform,
    "normal": _normal,
    "xavier": _xavier,
}


def _fill(
    out: Array, ids: Array, seed: int, shape: Callable[[Array], Array], line: tuple[float, float]
) -> None:
    """Fill rows with ``factor * shape(random bits) + offset``, which are the two numbers of ``line``."""
    width = out.shape[1]
    words = (width + 1) // 2
    factor, offset = np.float32(line[0]), np.float32(line[1])
    # The counters of a row's words, of two numbers each.
    columns = np.arange(1, words + 1, dtype=np.uint64) * _GOLDEN
    block = max(1, _BLOCK_WORDS // max(1, words))
    for lo in range(0, len(out), block):
        starts = _mixed(ids[lo : lo + block].view(np.uint64) * _GOLDEN + _seed_word(seed))
        bits = _mixed(starts[:, None] + columns).view(np.uint32)[:, :width]
        numbers = shape(bits)
        numbers *= factor
        numbers += offset
        out[lo : lo + block] = numbers


def _seed_word(seed: int) -> np.uint64:
    # Hashed, so that the ids of one seed are not those of the next, moved on by some.
    return np.uint64(_mixed(np.array([seed & _MASK_64], np.uint64))[0])


def _mixed(words: Array) -> Array:
    """Return splitmix64's output for its states, which are overwritten."""
    words ^= words >> np.uint64(30)
    words *= _MIX_1
    words ^= words >> np.uint64(27)
    words *= _MIX_2
    words ^= words >> np.uint64(31)
    return words


def _unit(bits: Array) -> Array:
    """Return numbers of [0, 1): multiples of 2**-24, which float32 holds exactly."""
    numbers: Array = (bits >> np.uint32(8)).astype(np.float32)
    numbers *= np.float32(2.0**-24)
    return numbers


def _standard_normal(bits: Array) -> Array:
    """Return normal numbers: the first bit is the sign, the others give a quantile, from a table.

    The table is finer by an octave wherever tails are half as probable, and straight between its entries;
    the largest number is 6.4.
    """
    quantiles, rises = _quantiles()
    tail = (bits & np.uint32(0x7FFFFFFF)).astype(np.float32)
    tail += np.float32(0.5)
    tail *= np.float32(2.0**-31)
    pattern = tail.view(np.uint32)
    cell = (pattern >> np.uint32(_CELL_BITS)).astype(np.intp)
    cell -= _LEAST_BITS
    numbers: Array = (pattern & np.uint32((1 << _CELL_BITS) - 1)).astype(np.float32)
    numbers *= rises.take(cell)
    numbers += quantiles.take(cell)
    numbers.view(np.uint32)[...] |= bits & np.uint32(0x80000000)
    return numbers


@lru_cache(maxsize=1)
def _quantiles() -> tuple[Array, Array]:
    """Return |x| at the beginning of each cell of P(|X| > |x|), and its rise with each step in the cell."""
    last = int(np.float32(1).view(np.uint32)) >> _CELL_BITS
    patterns = np.arange(_LEAST_BITS, last + 1, dtype=np.uint32) << np.uint32(_CELL_BITS)
    normal = NormalDist()
    # Rounded to float32, which leaves out the bits in which libraries differ about logarithms.
    exact = np.array([-normal.inv_cdf(tail / 2) for tail in patterns.view(np.float32).tolist()])
    quantiles = np.abs(exact).astype(np.float32)
    # The last entry is for a tail of 1, in which nothing rises.
    rises = np.diff(quantiles, append=quantiles[-1:]) * np.float32(2.0**-_CELL_BITS)
    return quantiles, rises
