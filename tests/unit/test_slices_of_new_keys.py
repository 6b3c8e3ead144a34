"""Keys that ``--set slice_elements`` would cut into slices that cannot travel."""

from __future__ import annotations

import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import KeySpec, Shard
from kvstore_mpi.values.layout import layout_of
from kvstore_mpi.wire.codec import MAX_FRAME_BYTES
from kvstore_mpi.worker.key_creation import MOST_SLICES, check_slices


def check(size, slice_elements, dtype="float32"):
    check_slices(KeySpec(0, "w", (size,), dtype), slice_elements)


@pytest.mark.parametrize(
    ("size", "slice_elements", "dtype"),
    [
        (7 * MOST_SLICES, 7, "float32"),
        (1 << 30, 1 << 28, "float64"),
        (1 << 28, 1 << 40, "float64"),
        (1 << 30, 1 << 40, "float16"),
        (0, 1, "float32"),
    ],
)
def test_what_can_travel(size, slice_elements, dtype):
    """It is not refused, and cut into slices of which each fits into a message."""
    check(size, slice_elements, dtype)
    layout = layout_of(KeySpec(0, "w", (size,), dtype))
    slices = [slice_ for _, slice_ in layout.cut(0, [Shard(0, 0, size)], slice_elements)]
    assert len(slices) <= MOST_SLICES
    assert max(layout.num_bytes(lo, hi) for _, lo, hi in slices) <= MAX_FRAME_BYTES


def test_too_many_and_too_large_slices_are_refused_with_a_size_that_is_none():
    with pytest.raises(UsageError, match=r"'w' .* into 40,001 slices .* slice_elements=8 or more"):
        check(7 * MOST_SLICES + 1, 7)
    check(7 * MOST_SLICES + 1, 8)
    with pytest.raises(UsageError, match=r"'w' .* 2,147,483,656 bytes .* slice_elements=268435456 or less"):
        check(1 << 30, (1 << 28) + 1, "float64")
