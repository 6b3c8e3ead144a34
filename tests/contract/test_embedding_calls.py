"""Calls of an embedding whose table is on the servers: what it takes, and what it refuses."""

from __future__ import annotations

import logging

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI, TableEmbedding, table_embedding  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.records import Retention, RowInit  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = pytest.mark.mxnet

V = 40


def sgd():
    return mx.optimizer.create("sgd", learning_rate=0.25)


def test_several_lookups_in_a_step(make_group):
    """Gradients of all of them are summed, those of an evaluation are none."""
    group = make_group(1, num_servers=1)
    kv = KVStoreMPI("sync", group.workers[0])
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", 2, num_rows=V, dtype="float64")
    table(np.array([7]))
    with mx.autograd.record():
        loss = table(np.array([7, 3])).sum() + 2 * table(mx.nd.array([[3, 3, 1]])).sum()
    loss.backward()
    before = table(np.arange(8)).asnumpy()
    table.step(1)
    moved = before - table(np.arange(8)).asnumpy()
    np.testing.assert_allclose(moved[:, 0], [0, 0.5, 0, 1.25, 0, 0, 0, 0.25])


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype(np.float16)], ids=repr)
def test_rows_of_half_precision(dtype):
    """However the type is named: servers add up in float32 what is too little for the rows themselves."""
    with Cluster(MemoryNetwork().transport, servers=2) as job:
        kv = KVStoreMPI("sync", job.workers[0])
        kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=2**-13))
        table = TableEmbedding(kv, "t", 2, dtype=dtype, init=RowInit("constant", 1.0))
        for _ in range(16):
            with mx.autograd.record():
                rows = table(np.array([[7, 3], [7, 2**40]]))
            rows.backward()
            table.step(1)
        found = table(np.array([7, 3, 8]))
        assert {each.dtype for each in (rows, found)} == {np.float16}
        np.testing.assert_array_equal(found.asnumpy()[:, 0], [1 - 2**-8, 1 - 2**-9, 1])
        assert engine.wait_until_idle(60)


def test_ids_that_are_none(make_group):
    """One clear error each."""
    kv = KVStoreMPI("sync", make_group(1, num_servers=1).workers[0])
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", 2, num_rows=V)
    wrong_ids = (
        ([0.5], "whole numbers"),
        (["a"], "and no <U1"),
        ([-1], "-1 to -1"),
        ([3, V], f"0 to {V - 1}"),
    )
    for wrong, says in wrong_ids:
        with pytest.raises(UsageError, match=says):
            table(np.array(wrong))
        with pytest.raises(UsageError, match=says):
            table.prefetch(np.array(wrong))
    with pytest.raises(UsageError, match="-1 steps old"):
        TableEmbedding(kv, "u", 2, num_rows=V, staleness=-1)
    for size in (0, float("inf"), float("nan"), "3", None):
        with pytest.raises(UsageError, match=rf"step\({size!r}\): a batch has one sample"):
            table.step(size)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"key": 1.5}, r"a key is a text or a whole number, not 1\.5"),
        ({"dim": 0}, "one element at least, .*not dim=0"),
        ({"dim": 2.5}, r"dim=2\.5"),
        ({"num_rows": 2**64}, "num_rows must be a whole number"),
        ({"num_rows": 1e6}, "num_rows must be a whole number"),
        ({"dtype": "bfloat16"}, "rows are float32, float64, float16, not 'bfloat16'"),
        ({"dtype": np.int32}, "rows are float32, float64, float16, not <class 'numpy.int32'>"),
        ({"dtype": None}, "rows are float32, float64, float16, not None"),
        ({"dim": 2**40}, r"67108864 at most, and not dim=1099511627776"),
        ({"staleness": 1.5}, r"staleness=1\.5 steps old"),
        ({"staleness": None}, "staleness=None steps old"),
        (
            {"init": "zeros"},
            r"init must be a kvstore_mpi\.mxnet\.RowInit, such as RowInit.*, not str 'zeros'",
        ),
        ({"init": mx.init.Zero()}, r"init must be a kvstore_mpi\.mxnet\.RowInit"),
        ({"retention": 5}, r"retention must be a kvstore_mpi\.mxnet\.Retention"),
    ],
)
def test_tables_that_cannot_be(make_group, wrong, says):
    """One clear error each, before anything of them has been told to anybody."""
    group = make_group(1, num_servers=1)
    kv = KVStoreMPI("sync", group.workers[0])
    kv.set_optimizer(sgd())
    with pytest.raises(UsageError, match=says):
        TableEmbedding(**{"kv": kv, "key": "t", "dim": 2, **wrong})
    TableEmbedding(kv, "t", 2, num_rows=V)


def test_whole_numbers_of_any_type(make_group, monkeypatch):
    """Those that scripts compute are NumPy's, which no message carries."""
    worker = make_group(1, num_servers=1).workers[0]
    kv, made = KVStoreMPI("sync", worker), []
    kv.set_optimizer(sgd())
    init_rows = worker.init_rows

    def noted(store, key, shape, *more, growth, **how):
        made.append((*shape, *growth.retention))
        init_rows(store, key, shape, *more, growth=growth, **how)

    monkeypatch.setattr(worker, "init_rows", noted)
    retention = Retention(np.int64(9), np.int32(8), np.uint8(7))
    TableEmbedding(kv, "t", np.int64(2), num_rows=np.int32(V), retention=retention)
    assert made == [(V, 2, 9, 8, 7, "recent")]
    assert {type(each) for each in made[0]} == {int, str}


@pytest.mark.parametrize("ids", [3, np.int32(3), np.array(3)])
def test_one_id_has_one_row(make_group, ids):
    """Without dimensions, as an index has none; its gradient is that of any other."""
    kv = KVStoreMPI("sync", make_group(1, num_servers=1).workers[0])
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", 2, num_rows=V, init=RowInit("constant", 1))
    with mx.autograd.record():
        row = table(ids)
        (row * row).sum().backward()
    assert row.shape == (2,)
    table.step(1)
    np.testing.assert_array_equal(table(ids).asnumpy(), [0.5, 0.5])


@pytest.mark.parametrize("num_servers", [0, 1])
def test_without_servers_or_an_optimizer(make_group, num_servers):
    """There is nobody to make rows then, and the call says what is missing."""
    kv = KVStoreMPI("sync", make_group(1, num_servers=num_servers).workers[0])
    with pytest.raises(
        UsageError, match=r"start the job with --servers 1 or more, and call kv\.set_optimizer"
    ):
        TableEmbedding(kv, "t", 2)


@pytest.mark.parametrize(
    ("said", "given", "cut"),
    [
        ((3,), 0, (3, "mod")),
        ((3, "range"), 0, (3, "range")),
        ((3,), 2, (2, "mod")),
        (("auto",), 2, (2, "mod")),
        (("auto", "range"), 0, (1, "range")),
    ],
)
def test_it_is_cut_as_was_said(make_group, monkeypatch, said, given, cut):
    """By its key or a pattern; what the table itself is given counts before that."""
    kv = KVStoreMPI("sync", make_group(1, num_servers=1).workers[0])
    kv.set_optimizer(sgd())
    kv.partitioner("t*", *said)
    cuts = []

    def init_rows(*args, partitions, by, **how):
        cuts.append((partitions, by))
        create(*args, partitions=partitions, by=by, **how)

    create = kv._exchange.worker.init_rows
    monkeypatch.setattr(kv._exchange.worker, "init_rows", init_rows)
    TableEmbedding(kv, "t1", 2, num_rows=V, partitions=given)
    assert cuts == [cut]


@pytest.mark.parametrize(
    ("mode", "how", "why"),
    [
        ("async", {}, "workers of an async store have no step in common"),
        ("sync", {"retention": Retention(max_rows=9)}, "their number decides which rows go"),
        ("sync", {"num_rows": 1}, "it has fewer rows than there are servers"),
    ],
)
def test_pieces_are_not_looked_for_where_that_changes_what_is_trained(make_group, caplog, mode, how, why):
    """The log says so, and the table is cut as it is anyway."""
    caplog.set_level(logging.INFO, "kvstore_mpi.mxnet")
    kv = KVStoreMPI(mode, make_group(1, num_servers=2).workers[0])
    kv.set_optimizer(sgd())
    kv.partitioner("*", "auto")
    assert TableEmbedding(kv, "t", 2, **{"num_rows": V, **how})([0]).shape == (1, 2)
    assert "table 't': as many pieces as without partitioner" in caplog.text
    assert why in caplog.text
    caplog.clear()
    TableEmbedding(kv, "u", 2, num_rows=V, partitions=1)
    assert not caplog.text


def test_a_table_that_is_never_stepped_is_told(make_group, monkeypatch, caplog):
    """Its lookups pile up in memory, for a step that a frozen table does not have."""
    monkeypatch.setattr(table_embedding, "_MANY_PASSES", 3)
    kv = KVStoreMPI("sync", make_group(1, num_servers=1).workers[0])
    kv.set_optimizer(sgd())
    table = TableEmbedding(kv, "t", 2, num_rows=V)
    for _ in range(2):
        for _ in range(2):
            with mx.autograd.record():
                table([1]).backward()
        table.step(1)
    assert not caplog.text
    for _ in range(5):
        with mx.autograd.record():
            table([1])
    assert caplog.text.count("table 't': 3 recorded lookups since the last step()") == 1
