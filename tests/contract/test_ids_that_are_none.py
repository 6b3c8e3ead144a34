"""Ids of rows that are too large for any, or no numbers: the error has them as the user wrote them."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI, TableEmbedding  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402
from kvstore_mpi.testing.mxnet_rows import D, V, sgd, sparse  # noqa: E402

pytestmark = pytest.mark.mxnet


@pytest.fixture
def store():
    """Make a store with servers that has an optimizer."""
    with local_groups() as make:
        kv = KVStoreMPI("sync", make(num_servers=1).workers[0])
        kv.set_optimizer(sgd())
        yield kv
    assert engine.wait_until_idle(60)


@pytest.mark.parametrize(
    ("wrong", "dtype", "shown"),
    [
        (1e300, "float64", r"1e\+300"),
        (-1e300, "float64", r"-1e\+300"),
        (2.0**70, "float32", r"1\.1805916e\+21"),
        (2.0**63, "float64", r"9\.223372036854776e\+18"),
        (np.inf, "float32", "inf"),
        (np.nan, "float16", "nan"),
        (0.5, "float16", "0.5"),
    ],
)
def test_an_id_that_is_none_is_shown(store, wrong, dtype, shown):
    """Whoever is given it."""
    out = mx.nd.sparse.zeros("row_sparse", (V, D))
    store.init("w", sparse(range(V)))
    store.init("dense", mx.nd.ones((V, D)))
    table = TableEmbedding(store, "t", D, num_rows=V)
    ids = mx.nd.array([[1, wrong]], dtype=dtype)
    says = f" are whole numbers from 0 to 2\\*\\*63 - 1, and {shown} is none$"
    for key in ("w", "dense"):
        with pytest.raises(UsageError, match=f"^key '{key}': row_ids{says}"):
            store.row_sparse_pull(key, out=out, row_ids=ids)
        with pytest.raises(UsageError, match=f"^key '{key}': row_ids{says}"):
            store.prefetch(key, ids)
    for look_up in (table, table.prefetch):
        with pytest.raises(UsageError, match=f"^table 't': ids{says}"):
            look_up(ids)
