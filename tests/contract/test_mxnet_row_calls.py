"""What tables of the MXNet store ask of a worker, when, and what they leave to whom."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from support.held_arrays import held  # noqa: E402

from kvstore_mpi.adapters.mxnet import ClientStore, KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.tables import plan  # noqa: E402
from kvstore_mpi.errors import UnsupportedError, UsageError  # noqa: E402
from kvstore_mpi.esgd import DCASGD, Elastic  # noqa: E402
from kvstore_mpi.hybrid.cost import Pull  # noqa: E402
from kvstore_mpi.testing.mxnet_compatibility import Lion  # noqa: E402
from kvstore_mpi.testing.mxnet_rows import IOTA, D, V, only, rows_of, sgd, sparse  # noqa: E402

pytestmark = pytest.mark.mxnet


def open_one(group, mode="sync"):
    return KVStoreMPI(mode, group.workers[0])


def calls(group):
    """Return the names of all calls since this was called last."""
    mx.nd.waitall()
    names = [call.name for call in group.calls]
    group.calls.clear()
    return names


# --- what is asked of the worker ---


def test_a_dense_weight_is_brought_up_to_date_by_its_push(make_group):
    """One request a step: what has changed comes back with the push, and the pull asks for nothing."""
    group = make_group(num_servers=2)
    kv, weight = open_one(group), mx.nd.zeros((V, D))
    kv.set_optimizer(sgd())
    kv.broadcast("w", weight, out=weight)
    kv.push("w", sparse([1]))
    kv.pull("w", out=weight)
    assert calls(group) == ["init", "init_rows", "pushpull_rows"]
    kv.push("w", sparse([2]))
    kv.pull("w", out=weight)
    assert calls(group) == ["pushpull_rows"]
    kv.pull("w", out=weight)  # others may have pushed meanwhile
    assert calls(group) == ["pull_rows"]


def test_a_row_sparse_weight_stays_on_the_servers(make_group):
    """A push brings nothing back; rows are fetched by their ids."""
    group = make_group(num_servers=2)
    kv, out = open_one(group), mx.nd.sparse.zeros("row_sparse", (V, D))
    kv.set_optimizer(sgd())
    kv.init("w", sparse(range(V)))
    kv.push("w", sparse([1]))
    kv.row_sparse_pull("w", out=out, row_ids=mx.nd.array([1, 2]))
    assert calls(group) == ["init_rows", "push_rows", "pull_rows"]
    kv.row_sparse_pull("w", out=out, row_ids=mx.nd.array([]))
    assert calls(group) == []


def test_without_servers_sums_are_all_that_travels(make_group):
    """The table is on the workers, who update it and read it without a request."""
    group = make_group()
    kv, out = open_one(group), mx.nd.sparse.zeros("row_sparse", (V, D))
    kv.set_optimizer(sgd())
    kv.init("w", sparse(range(V)))
    kv.push("w", sparse([1], [1]))
    kv.row_sparse_pull("w", out=out, row_ids=mx.nd.array([1, 2]))
    assert rows_of(out) == {1: 1, 2: 3}
    assert calls(group) == ["init_rows", "pushpull_rows"]


def test_a_merged_gradient_comes_with_its_push(make_group):
    """Without an optimizer nothing is asked for again, and no row of zeros is in what is given."""
    group = make_group(num_servers=2)
    kv, gradient = open_one(group), sparse([2, 5], [1, 1])
    kv.init("g", sparse(range(V)))
    for row in (3, 4):
        kv.push("g", sparse([row], [1]))
        kv.pull("g", out=gradient, ignore_sparse=False)
        assert rows_of(gradient) == {row: 1}
    assert calls(group) == ["init_rows", "pushpull_rows", "pushpull_rows"]


def test_answers_that_nobody_has_pulled_are_not_lost(make_group):
    """An array that had the weight before two pushes has both afterwards."""
    kv, weight = open_one(make_group(num_servers=1)), mx.nd.zeros((V, D))
    kv.set_optimizer(sgd())
    kv.broadcast("w", weight, out=weight)
    for row in range(0, 6, 2):
        kv.push("w", sparse([row], [1]))
        kv.push("w", sparse([row + 1], [1]))
        kv.pull("w", out=weight)
        expected = np.broadcast_to(-1.0 * only(*range(row + 2)), (V, D))
        np.testing.assert_array_equal(weight.asnumpy(), expected)


@pytest.mark.parametrize("num_servers", [0, 1])
@pytest.mark.parametrize("with_a_reader", [False, True])
def test_lookups_keep_no_rows_for_readers_that_do_not_come(make_group, with_a_reader, num_servers):
    """A step of an embedding pushes and looks up; an evaluation may have read the whole weight long ago."""
    kv, weight = open_one(make_group(num_servers=num_servers)), mx.nd.zeros((64, 1024))
    out, ids = mx.nd.sparse.zeros("row_sparse", weight.shape), mx.nd.arange(0, 64, 8)
    gradient = mx.nd.sparse.row_sparse_array((mx.nd.ones((8, 1024)), ids.asnumpy()), shape=weight.shape)
    kv.set_optimizer(sgd())
    kv.init("w", weight)

    def step():
        kv.push("w", gradient)
        kv.row_sparse_pull("w", out=out, row_ids=ids)
        mx.nd.waitall()

    def traced(steps):
        for _ in range(steps):
            step()
        gc.collect()  # operations that have ended
        return tracemalloc.get_traced_memory()[0]

    step()  # which makes a table of it
    if with_a_reader:
        kv.pull("w", out=weight)
    tracemalloc.start()
    try:
        before = traced(20)
        # For the reader each row at most twice; 40 times 8 of 64 rows would be 20 bytes an element.
        assert traced(40) - before < (10 if with_a_reader else 1) * weight.size
    finally:
        tracemalloc.stop()
    if with_a_reader:
        kv.pull("w", out=weight)
        assert weight.asnumpy()[:2, 0].tolist() == [-61, 0]


@pytest.mark.parametrize("lazy", [False, True])
def test_workers_that_update_all_rows_give_all_of_them(make_group, lazy):
    """With momentum, rows without a gradient move on, unless updates are lazy."""
    kv, weight = open_one(make_group()), mx.nd.zeros((V, D))
    kv.set_optimizer(sgd(momentum=0.5, lazy_update=lazy))
    kv.broadcast("w", weight, out=weight)
    for row in (1, 2):
        kv.push("w", sparse([row], [1]))
        kv.pull("w", out=weight)
    expected = -1.0 * only(1, 2) - (0 if lazy else 0.5) * only(1)
    np.testing.assert_array_equal(weight.asnumpy(), np.broadcast_to(expected, (V, D)))


def test_a_trainer_s_parameter_is_a_table_from_the_beginning(make_group):
    """Its gradient's storage type is known when it is initialised: it never is a dense key."""
    group = make_group(num_servers=1)
    layer = mx.gluon.nn.Embedding(V, D, sparse_grad=True)
    layer.initialize()
    trainer = mx.gluon.Trainer(layer.collect_params(), "sgd", kvstore=open_one(group))
    for _ in range(2):
        with mx.autograd.record():
            loss = layer(mx.nd.array([1, 3, 3])).sum()
        loss.backward()
        trainer.step(1)
    assert calls(group) == ["init_rows", "pushpull_rows", "pushpull_rows"]


def test_a_key_that_was_pushed_densely_stays_dense(make_group):
    """What servers have summed they go on with."""
    group = make_group(num_servers=1)
    kv, weight = open_one(group), mx.nd.zeros((V, D))
    kv.set_optimizer(sgd())
    kv.init("w", weight)
    kv.push("w", mx.nd.ones((V, D)))
    kv.push("w", sparse([1], [1]))
    kv.pull("w", out=weight)
    np.testing.assert_array_equal(weight.asnumpy(), np.broadcast_to(-1.0 - only(1), (V, D)))
    assert "push_rows" not in calls(group)


@pytest.mark.parametrize(
    ("optimizer", "mode"), [(Elastic(), "sync"), (DCASGD("sgd", learning_rate=0.1), "async")]
)
def test_what_needs_whole_tensors_has_no_tables(make_group, optimizer, mode):
    """Nor can it be given to a store that has some."""
    group = make_group(num_servers=1)
    kv = open_one(group, mode)
    kv.set_optimizer(optimizer)
    kv.init("w", sparse(range(V)))
    assert calls(group) == ["init"]
    kv = open_one(group, mode)
    kv.init("w", sparse(range(V)))
    with pytest.raises((UsageError, UnsupportedError), match="'w'"):
        kv.set_optimizer(optimizer)


# --- when ---


def test_calls_return_before_anything_has_come(make_group):
    """Push, pull and row_sparse_pull are queued; nothing waits for the servers."""
    group = make_group(num_servers=1)
    kv, weight = open_one(group), mx.nd.zeros((V, D))
    rows = [mx.nd.sparse.zeros("row_sparse", (V, D)) for _ in range(3)]
    kv.set_optimizer(sgd())
    kv.init(["d", "s"], [mx.nd.zeros((V, D)), sparse(range(V))])
    kv.push("d", sparse([0]))
    kv.pull("d", out=weight)
    weight.wait_to_read()
    group.hold(lambda _call: True)
    for out in rows:
        kv.push(["d", "s"], [sparse([1], [1]), sparse([1], [1])])
        kv.pull("d", out=weight)
        kv.row_sparse_pull("s", out=out, row_ids=mx.nd.array([1]))
    group.release()
    kv.barrier()
    np.testing.assert_array_equal(weight.asnumpy(), np.broadcast_to(-1.0 * only(0) - 3 * only(1), (V, D)))
    assert [rows_of(out) for out in rows] == [{1: 1}, {1: 0}, {1: -1}]


def test_gradients_may_be_written_while_a_push_waits(make_group):
    """The next step's gradient is queued behind a push that waits for the server: nothing hangs."""
    group = make_group(num_servers=1)
    kv, weight = open_one(group), mx.nd.zeros((V, D))
    kv.set_optimizer(sgd())
    kv.broadcast("w", weight, out=weight)
    weight.attach_grad(stype="row_sparse")
    kv.push("w", sparse([]))
    kv.pull("w", out=weight)
    weight.wait_to_read()
    group.hold(lambda _call: True)
    for word in (1, 2, 3):
        with mx.autograd.record():
            loss = mx.nd.Embedding(mx.nd.array([word]), weight, V, D, sparse_grad=True).sum()
        loss.backward()
        kv.push("w", weight.grad)
        kv.pull("w", out=weight)
    group.release()
    np.testing.assert_array_equal(weight.asnumpy(), np.broadcast_to(-1.0 * only(1, 2, 3), (V, D)))


def test_async_stores_update_at_every_push(make_group):
    """A pull without a push before it shows what others have pushed."""
    first, second = (KVStoreMPI("async", worker) for worker in make_group(2, num_servers=1).workers)
    weights = [mx.nd.zeros((V, D)), mx.nd.zeros((V, D))]
    for kv in (first, second):
        kv.set_optimizer(sgd())
        kv.init("w", sparse([]))
    for row in (1, 2):
        first.push("w", sparse([row], [1]))
    first.pull("w", out=weights[0])
    np.testing.assert_array_equal(weights[0].asnumpy(), np.broadcast_to(-1.0 * only(1, 2), (V, D)))
    second.push("w", sparse([2], [1]))
    second.pull("w", out=weights[1])
    expected = np.broadcast_to(-1.0 * only(1, 2) - only(2), (V, D))
    np.testing.assert_array_equal(weights[1].asnumpy(), expected)
    first.pull("w", out=weights[0])
    np.testing.assert_array_equal(weights[0].asnumpy(), expected)


# --- layouts, errors, other stores ---


def test_a_weight_that_an_evaluation_has_laid_out_anew_is_written_whole(make_group):
    """oneDNN keeps the weights of a convolution in its own layout after an inference."""
    shape = (64, 64, 3, 3)
    kv = open_one(make_group(num_servers=1))
    kv.set_optimizer(sgd())
    pattern = (np.arange(np.prod(shape)) % 97).reshape(shape).astype(np.float32)
    weight = mx.nd.array(pattern)
    kv.broadcast("w", weight, out=weight)
    images = mx.nd.ones((2, 64, 8, 8))
    for step in range(4):
        for _ in range(2 * (step % 2)):
            mx.nd.Convolution(images, weight, kernel=(3, 3), num_filter=64, no_bias=True).wait_to_read()
        kv.push("w", sparse([step], [1], shape))
        kv.pull("w", out=weight)
        pattern[step] -= 1
        np.testing.assert_array_equal(weight.asnumpy(), pattern)


@pytest.mark.parametrize("ids", [[3, V], [-1, 3]])
def test_pushed_ids_that_no_row_has_are_an_error(make_group, ids):
    """It is raised by the next call, and the weight carries it."""
    kv, weight = open_one(make_group(num_servers=1)), mx.nd.zeros((V, D))
    kv.set_optimizer(sgd())
    kv.broadcast("w", weight, out=weight)
    gradient = sparse(ids)
    with held(gradient):  # or the push itself may raise it
        kv.push("w", gradient)
    with pytest.raises(UsageError, match=f"but there are {V} rows"):
        kv.barrier()
    with contextlib.suppress(mx.MXNetError):  # the array has the error, and MXNet tells whoever waits next
        mx.nd.waitall()


@pytest.mark.parametrize("num_servers", [0, 1])
def test_arrays_compressed_by_rows_are_refused(make_group, num_servers):
    """They are inputs of a net, and neither weights nor gradients; keys go on with what they take."""
    kv = open_one(make_group(1, num_servers=num_servers))
    csr = mx.nd.ones((V, D)).tostype("csr")
    with pytest.raises(UsageError, match="stored as csr"):
        kv.init("c", csr)
    for key, weight in (("dense", mx.nd.zeros((V, D))), ("rows", sparse([], []))):
        kv.init(key, weight)
        for call in (kv.push, kv.pushpull):
            with pytest.raises(
                UsageError, match=rf"key '{key}': an array of \({V}, {D}\) is stored as csr"
            ):
                call(key, csr)
        kv.push(key, sparse([1], 2))
    out = mx.nd.zeros((V, D))
    kv.pull("dense", out=out)
    assert out.asnumpy().sum() == 2 * D


def test_pushed_ids_may_be_repeated_and_unsorted(make_group):
    """They are put in order, and rows of one id added up, before they leave."""
    kv, weight = open_one(make_group(num_servers=1)), mx.nd.zeros((V, D))
    kv.set_optimizer(sgd())
    kv.broadcast("w", weight, out=weight)
    kv.push("w", sparse([4, 1, 4], [1, 2, 4]))
    kv.pull("w", out=weight)
    np.testing.assert_array_equal(weight.asnumpy(), np.broadcast_to(-5.0 * only(4) - 2 * only(1), (V, D)))


@pytest.mark.parametrize("keys_first", [False, True])
def test_an_optimizer_that_servers_do_not_know_is_applied_by_the_workers(make_group, keys_first):
    """It is given the row-sparse sum, and tables that were on the servers only are fetched."""
    kv, weight = open_one(make_group(num_servers=1)), mx.nd.zeros((V, D))
    seen = []

    class Watching(Lion):
        def update(self, index, weight, grad, state):
            seen.append(rows_of(grad))
            super().update(index, weight, grad.tostype("default"), state)

    optimizer = Watching(learning_rate=0.5)
    if not keys_first:
        kv.set_optimizer(optimizer)
    kv.init(["s", "d"], [sparse(range(V)), mx.nd.array(np.broadcast_to(IOTA, (V, D)))])
    if keys_first:
        kv.set_optimizer(optimizer)
    for key in ("s", "d"):
        kv.push(key, [sparse([2, 5], [1, 1]), sparse([5], [1])])
        kv.pull(key, out=weight)
        np.testing.assert_array_equal(weight.asnumpy(), np.broadcast_to(IOTA - 0.5 * only(2, 5), (V, D)))
    assert seen == [{2: 1, 5: 2}] * 2


def test_a_client_s_own_store_sums_among_its_workers(make_group):
    """Trainer and Module then update their own weights: a pull brings the merged gradient."""
    kv = ClientStore(make_group(num_servers=1).workers[0])
    kv.init("g", mx.nd.zeros((V, D)))
    gradients = [sparse([1, 3], [1, 1]), sparse([3], [1])]
    kv.push("g", gradients)
    kv.pull("g", out=gradients, ignore_sparse=False)
    assert [rows_of(each) for each in gradients] == [{1: 1, 3: 2}] * 2
    kv.pushpull("g", gradients[1])
    assert rows_of(gradients[1]) == {1: 1, 3: 2}


def test_functions_that_update_are_given_rows(make_group):
    """Without servers an updater may be any function."""
    kv, weight, seen = open_one(make_group()), mx.nd.zeros((V, D)), []
    kv._set_updater(lambda key, gradient, stored: seen.append((key, gradient.stype, stored.shape)))
    kv.init(3, sparse(range(V)))
    kv.push(3, sparse([1]))
    kv.pull(3, out=weight)
    np.testing.assert_array_equal(weight.asnumpy(), np.broadcast_to(IOTA, (V, D)))
    assert seen == [(3, "row_sparse", (V, D))]


@pytest.mark.parametrize(
    ("mirror", "unites", "pull"),
    [(None, False, Pull.EACH), (None, True, Pull.OWN), (np.zeros(1), False, Pull.CHANGED)],
)
def test_what_a_plan_takes_to_come_back(mirror, unites, pull):
    """The rows of each rank, or of all ranks of a host once; of a whole weight what has changed."""
    table, worker = SimpleNamespace(mirror=mirror), SimpleNamespace(unites_lookups=unites)
    assert plan._pull_of(table, worker) is pull
