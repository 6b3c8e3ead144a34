"""Optimizer states of row-sparse weights travel between MXNet's own stores and ours, in both directions."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI, TableEmbedding  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.updates.optimizer_states import KeyState, states_to_mxnet  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet

ROWS = 10
OPTIMIZERS = {
    "sgd": {"momentum": 0.9, "wd": 0.01},
    "adam": {"wd": 0.01},
    "adagrad": {},
    "ftrl": {"wd": 0.01},
    "groupadagrad": {},
}


def rows(values, ids):
    return mx.nd.sparse.row_sparse_array((values.astype("float32"), ids), shape=(ROWS, 3))


def value(store):
    out = mx.nd.sparse.zeros("row_sparse", (ROWS, 3))
    store.row_sparse_pull("w", out=out, row_ids=mx.nd.arange(ROWS, dtype="int64"))
    return out.tostype("default").asnumpy()


@pytest.mark.parametrize("layout", [{"servers": 0}, {"servers": 2}], ids=["pure MPI", "servers"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_who_takes_up_the_other_s_states_goes_on_as_it_would_have(tmp_path, name, layout):
    """A store that loads them, of either kind, has the weights of one that never saved any."""
    random = np.random.default_rng(5)
    cluster = Cluster(MemoryNetwork().transport, **layout)
    ours, theirs, straight = (
        KVStoreMPI("sync", cluster.workers[0]),
        mx.kv.create("local"),
        mx.kv.create("local"),
    )
    stores = [ours, theirs, straight]
    begin = np.zeros((ROWS, 3)) if name == "ftrl" else random.uniform(-1, 1, (ROWS, 3))
    for store in stores:
        store.set_optimizer(mx.optimizer.create(name, learning_rate=0.1, **OPTIMIZERS[name]))
        store.init("w", rows(begin, np.arange(ROWS)))

    def train(steps):
        for _ in range(steps):
            ids = np.sort(random.choice(ROWS, 4, replace=False))
            values = random.uniform(-1, 1, (4, 3))
            for store in stores:
                store.push("w", rows(values, ids))

    train(4)
    for source, target, file in ((ours, theirs, "ours"), (straight, ours, "theirs")):
        source.save_optimizer_states(str(tmp_path / file), dump_optimizer=True)
        target.load_optimizer_states(str(tmp_path / file))
        train(3)
        for store in (ours, theirs):
            np.testing.assert_allclose(value(store), value(straight), rtol=1e-5, atol=1e-6)
    assert engine.wait_until_idle(60)
    cluster.close()


@pytest.mark.parametrize("num_rows", [100, 2**63 - 1])
def test_files_have_the_states_of_all_keys_but_tables_on_the_servers(tmp_path, num_rows):
    """The rows of those, and their states, are in snapshots; a store of both saves and loads the others."""
    path = str(tmp_path / "states")
    with Cluster(MemoryNetwork().transport, servers=2) as cluster:
        store = KVStoreMPI("sync", cluster.workers[0])
        store.set_optimizer(mx.optimizer.create("adagrad"))
        table = TableEmbedding(store, "table", 2, num_rows=num_rows)
        with mx.autograd.record():
            table(np.array([1, 2])).backward()
        table.step(1)
        store.init("dense", mx.nd.zeros(3))
        store.push("dense", mx.nd.ones(3))
        store.save_optimizer_states(path)
        saved = pickle.loads(Path(path).read_bytes())
        assert {key: state.asnumpy().tolist() for key, state in saved.items()} == {"dense": [1, 1, 1]}
        store.load_optimizer_states(path)
        assert engine.wait_until_idle(60)


def test_files_leave_out_keys_without_elements():
    """MXNet makes no state for an array with a length of 0, which stands for one that it does not know."""
    states = {
        "empty": KeyState(1, [np.empty(0, np.float32)], (0, 2), "float32"),
        "full": KeyState(1, [np.ones(2, np.float32)], (1, 2), "float32"),
    }
    assert list(states_to_mxnet(mx.optimizer.create("adagrad"), states)) == ["full"]
