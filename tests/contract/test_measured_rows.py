"""A step that measures what rows take makes the calls of a training: lookups, dense keys, then tables."""

from __future__ import annotations

import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.measured_rows import DENSE_KEYS, STEPS, WARM_UP, DenseKeys, Tables, step_seconds  # noqa: E402
from kvstore_mpi.planner.row_costs import Load  # noqa: E402


class Store:
    """Notes the calls of a store, and answers none."""

    rank = 1

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, arguments, named))

        return call


def test_each_step_looks_up_and_pushes_all_tables_and_dense_keys():
    """The first table last, with the highest priority; the tables' rows are those of this worker."""
    kv, load = Store(), Load(3, 64, 4, 8, 2)
    dense, tables = DenseKeys(kv), Tables(kv, "many", load)
    assert [name for name, *_ in kv.calls] == ["init"] * DENSE_KEYS + ["partitioner", "init"] * 3
    kv.calls.clear()
    assert step_seconds(kv, tables, dense) > 0
    assert kv.calls.pop()[0] == "_barrier"
    size = 1 + DENSE_KEYS + 3
    steps = [kv.calls[first : first + size] for first in range(0, len(kv.calls), size)]
    assert len(steps) == WARM_UP + STEPS
    for lookup, *others in steps:
        name, (keys,), named = lookup
        assert (name, keys) == ("row_sparse_pull", ["many0", "many1", "many2"])
        assert all((ids.asnumpy() == load.ids(1)).all() for ids in named["row_ids"])
        assert [name for name, *_ in others] == ["pushpull"] * DENSE_KEYS + ["push"] * 3
        assert [arguments[0] for _, arguments, _ in others[DENSE_KEYS:]] == ["many2", "many1", "many0"]
        priorities = [named["priority"] for *_, named in others]
        assert priorities[DENSE_KEYS:] == [-2, -1, 0]
        assert max(priorities[:DENSE_KEYS]) < -2
