"""Keys that ``--set slice_elements`` would cut into slices that cannot travel."""

from __future__ import annotations

import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import KeySpec, NodeId, Role
from kvstore_mpi.worker.key_creation import MOST_SLICES, check_new


def check(size, slice_elements, dtype="float32", **spec):
    """Take part in a new key."""
    key = KeySpec(0, "w", (size,), dtype, **spec)
    check_new(key, NodeId(Role.WORKER, 0), NodeConfig(slice_elements=slice_elements), loose=False)


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
    check(size, slice_elements, dtype)


def test_too_many_and_too_large_slices_are_refused_with_a_size_that_is_none():
    with pytest.raises(UsageError, match=r"'w' .* into 40,001 slices .* slice_elements=8 or more"):
        check(7 * MOST_SLICES + 1, 7)
    check(7 * MOST_SLICES + 1, 8)
    with pytest.raises(UsageError, match=r"'w' .* 2,147,483,656 bytes .* slice_elements=268435456 or less"):
        check(1 << 30, (1 << 28) + 1, "float64")


def test_tables_are_cut_by_rows():
    check(1 << 40, 1, layout="rows", partitions=2)
