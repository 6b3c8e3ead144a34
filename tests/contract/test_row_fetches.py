"""Looked-up rows on their way through the engine: how many operations they take, and what fails."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import FetchedRows  # noqa: E402
from kvstore_mpi.adapters.mxnet.tables import row_fetches  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402
from kvstore_mpi.testing.mxnet_rows import D, V, sgd, sparse  # noqa: E402

pytestmark = pytest.mark.mxnet
ASKED = [5, 1, 5]
ASCENDING = [1, 1, 5]


@pytest.fixture
def unites():
    """Whether the ranks of a client look up together."""
    return False


@pytest.fixture
def store(monkeypatch, unites):
    """A store whose table has the number of each row in all of its elements."""
    with local_groups() as make:
        worker = make(num_servers=2).workers[0]
        monkeypatch.setattr(type(worker), "unites_lookups", unites)
        kv = KVStoreMPI("sync", worker)
        kv.set_optimizer(sgd())
        rows = np.repeat(np.arange(V, dtype=np.float32)[:, None], D, axis=1)
        kv.init("w", mx.nd.sparse.row_sparse_array((rows, np.arange(V)), shape=(V, D)))
        mx.nd.waitall()
        yield kv
    assert engine.wait_until_idle(60)


@pytest.fixture
def calls(store, monkeypatch):
    """What is asked for, and whether together with other ranks."""
    worker, calls = store._tables._worker, []
    pull_rows = worker.pull_rows

    def recording(*args, together=False, **how):
        calls.append((args[5].tolist(), together))
        pull_rows(*args, **how)

    monkeypatch.setattr(worker, "pull_rows", recording)
    return calls


def look_up(kv, asked=ASKED):
    out = mx.nd.sparse.zeros("row_sparse", (V, D))
    kv.row_sparse_pull("w", out=out, row_ids=mx.nd.array(asked))
    return out


@pytest.mark.parametrize("asked", [ASKED, ASCENDING])
@pytest.mark.parametrize(("few", "operations"), [(True, 1), (False, 2)])
def test_few_rows_need_one_operation(store, monkeypatch, few, operations, asked):
    """Whoever receives them writes them; many are written by an operation of their own. Both are right."""
    if not few:
        monkeypatch.setattr(row_fetches, "FEW_BYTES", 0)
    pushed = []
    push = engine.push_async
    monkeypatch.setattr(engine, "push_async", lambda *args, **how: (pushed.append(1), push(*args, **how)))
    out = look_up(store, asked)
    assert out.indices.asnumpy().tolist() == [1, 5]
    assert out.data.asnumpy().tolist() == [[1.0] * D, [5.0] * D]
    assert len(pushed) == operations


@pytest.mark.parametrize("few", [True, False])
def test_looked_up_rows_may_travel_rounded(store, monkeypatch, few):
    """Where the store's user has said so; those of a whole table may not."""
    if not few:
        monkeypatch.setattr(row_fetches, "FEW_BYTES", 0)
    worker, exact = store._tables._worker, []
    pull_rows = worker.pull_rows
    monkeypatch.setattr(
        worker, "pull_rows", lambda *args, **how: (exact.append(how["exact"]), pull_rows(*args, **how))
    )
    look_up(store).wait_to_read()
    whole = mx.nd.zeros((V, D))
    store.pull("w", out=whole, ignore_sparse=False)
    whole.wait_to_read()
    store.prefetch("w", mx.nd.array([2]))
    mx.nd.waitall()
    assert exact == [False, True, False]


@pytest.mark.parametrize("few", [True, False])
def test_rows_that_cannot_be_written_are_an_error_of_who_reads_them(store, monkeypatch, few):
    """The error does not end the thread that received them, and the store says it at the next call."""
    if not few:
        monkeypatch.setattr(row_fetches, "FEW_BYTES", 0)

    def take(_rows, _parts):
        raise MemoryError("no room for rows")

    monkeypatch.setattr(FetchedRows, "take", take)
    out = look_up(store)
    with pytest.raises(mx.MXNetError, match="no room for rows"):
        out.wait_to_read()
    with pytest.raises(MemoryError, match="no room for rows"):
        store.push("w", sparse([1]))


def test_a_lookup_that_fails_writes_nothing(store, monkeypatch):
    """What failed on the way is the error, and not that nothing has come."""

    def pull_rows(_store, _key, _priority, done, _out, _ids, **_how):
        done(ConnectionError("a server is gone"))

    taken = []
    monkeypatch.setattr(FetchedRows, "take", lambda *_: taken.append(1))
    monkeypatch.setattr(store._tables._worker, "pull_rows", pull_rows)
    out = look_up(store)
    with pytest.raises(mx.MXNetError, match="a server is gone"):
        out.wait_to_read()
    assert not taken


@pytest.mark.parametrize("unites", [True, False])
@pytest.mark.parametrize("few", [True, False])
def test_others_may_wait_for_a_lookup_of_nothing(store, calls, monkeypatch, few, unites):
    """Who needs no row from servers makes the call all the same, if others make it with this worker."""
    if not few:
        monkeypatch.setattr(row_fetches, "FEW_BYTES", 0)
    assert look_up(store, []).indices.shape == (0,)
    for wanted in ([2, 4], []):
        store.prefetch("w", mx.nd.array(wanted))
    out = look_up(store, [4, 2])
    assert out.data.asnumpy().tolist() == [[2.0] * D, [4.0] * D]
    store.push("w", sparse([1]))
    look_up(store, [2])
    mx.nd.waitall()
    nothing = [([], True)] if unites else []
    assert calls == [*nothing, ([2, 4], unites), *nothing, ([2], unites)]


@pytest.mark.parametrize("unites", [True])
def test_what_is_wanted_behind_a_push_others_may_wait_for_as_well(store, calls):
    """Of rows that are wanted, and of those that this step has looked up, none may be left."""
    look_up(store, [1])
    store.prefetch("w", mx.nd.array([4]))
    store.push("w", sparse([1]))
    mx.nd.waitall()
    assert calls == [([1], True), ([4], True), ([4], True), ([], True)]


@pytest.mark.parametrize("unites", [True])
@pytest.mark.parametrize("few", [True, False])
def test_what_is_missing_of_rows_that_were_wanted_ahead_waits_for_nobody(store, calls, monkeypatch, few):
    """All ranks have met for what they wanted; of the rest each has its own."""
    if not few:
        monkeypatch.setattr(row_fetches, "FEW_BYTES", 0)
    store.prefetch("w", mx.nd.array([2]))
    for asked in ([3], [2], [2, 5]):
        assert look_up(store, asked).indices.asnumpy().tolist() == asked
    assert calls == [([2], True), ([3], False), ([5], False)]
