"""``kv.prefetch``: rows travel before they are asked for, and are those that would come without."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402
from kvstore_mpi.testing.mxnet_rows import D, V, rows_of, sgd, sparse  # noqa: E402

pytestmark = pytest.mark.mxnet


@pytest.fixture(params=["sync", "async"])
def kv(request):
    """A store with a row-sparse weight on a server.

    ``asked`` returns the ids of all pulls since, and ``came`` those of the rows that they have brought.
    """
    with local_groups() as make:
        yield make_store(make, request.param)
    assert engine.wait_until_idle(10)


def make_store(make, mode="sync"):
    group = make(num_servers=1)
    store = KVStoreMPI(mode, group.workers[0])
    store.set_optimizer(sgd())
    store.init("w", sparse(range(V)))
    worker, pulled, brought = group.workers[0], [], []
    pull_rows = worker.pull_rows

    def recording(*call, **how):
        pulled.append(call[5].tolist())
        brought.append(call[4])
        pull_rows(*call, **how)

    def asked():
        mx.nd.waitall()
        found = pulled.copy()
        pulled.clear()
        return found

    def came():
        mx.nd.waitall()
        found = [sorted(i for part in parts for i in part.ids.tolist()) for parts in brought]
        brought.clear()
        return found

    worker.pull_rows, store.asked, store.came = recording, asked, came
    return store


def pull(store, ids):
    out = mx.nd.sparse.zeros("row_sparse", (V, D))
    store.row_sparse_pull("w", out=out, row_ids=mx.nd.array(ids))
    return rows_of(out)


def test_rows_that_were_fetched_are_not_asked_for_again(kv):
    """Before the first push, and behind each; of other rows the rest is fetched."""
    kv.prefetch("w", mx.nd.array([3, 1]))
    assert kv.asked() == [[1, 3]]
    assert pull(kv, [1]) == {1: 2}
    assert pull(kv, [1, 2, 3]) == {1: 2, 2: 3, 3: 4}
    assert kv.asked() == [[2]]


def test_what_the_next_step_needs_travels_at_once_and_what_this_one_changes_once_more(kv):
    """Of the rows that have come, a push brings those alone that it has changed."""
    pull(kv, [0])
    kv.prefetch("w", mx.nd.array([1, 2]))
    kv.prefetch("w", mx.nd.array([2, 4]))
    assert kv.came() == [[0], [1, 2], [4]]
    kv.push("w", sparse([2], [1]))
    assert kv.came() == [[2], []]
    rows = pull(kv, [1, 2])
    assert rows[1] == 2
    assert rows[2] != 3
    assert kv.came() == []


def test_rows_that_this_step_has_looked_up_are_fetched_behind_its_push(kv):
    """It will change them, so that before they would travel in vain."""
    pull(kv, [0, 3])
    kv.prefetch("w", mx.nd.array([0, 1]))
    assert kv.came() == [[0, 3], [1]]
    kv.push("w", sparse([0], [1]))
    assert kv.came() == [[], [0]]
    assert pull(kv, [0, 1]).keys() == {0, 1}
    assert kv.asked()[-2:] == [[1], [0]]


def test_what_nobody_asks_for_is_kept_once(kv):
    """What pushes bring of it would add up: after some it comes as a whole again."""
    kv.prefetch("w", mx.nd.array([1, 2]))
    for _ in range(4):
        kv.push("w", sparse([2], [1]))
    assert kv.came() == [[1, 2], [2], [1, 2], [2], [1, 2]]
    assert pull(kv, [1])[1] == 2


def test_a_push_in_between_is_in_the_rows(kv):
    """They are fetched once more."""
    kv.prefetch("w", mx.nd.array([2]))
    before = pull(kv, [2])
    kv.push("w", sparse([2], [1]))
    assert pull(kv, [2]) != before
    assert kv.asked() == [[2], [2]]


def test_a_barrier_brings_what_others_have_pushed(kv):
    """Of an async store rows that have come are asked for once more, and of a sync store none are."""
    kv.prefetch("w", mx.nd.array([2]))
    kv.barrier()
    pull(kv, [2])
    assert kv.asked() == [[2]] * (2 if "async" in kv.type else 1)


def test_behind_a_barrier_rows_that_were_given_out_are_asked_for_again(kv):
    """Of an async store; but what waits for this step's push waits on."""
    kv.prefetch("w", mx.nd.array([2]))
    pull(kv, [2])
    kv.prefetch("w", mx.nd.array([2]))
    kv.barrier()
    assert kv.asked() == [[2]]
    pull(kv, [2])
    assert kv.asked() == ([[2]] if "async" in kv.type else [])


def test_rows_that_are_asked_for_before_the_push_are_wanted_no_more(kv):
    """Behind the push nothing travels for an intent that a lookup has met."""
    pull(kv, [2])
    kv.prefetch("w", mx.nd.array([2]))
    pull(kv, [2])
    assert kv.asked() == [[2], [2]]
    kv.push("w", sparse([2], [1]))
    assert kv.asked() == []


def test_devices_that_ask_for_rows_of_their_own_share_what_was_fetched(kv):
    outs = [mx.nd.sparse.zeros("row_sparse", (V, D)) for _ in range(2)]
    kv.prefetch(["w"], [mx.nd.array([1, 2])])
    kv.row_sparse_pull("w", out=outs, row_ids=[mx.nd.array([1]), mx.nd.array([2])])
    assert [rows_of(out) for out in outs] == [{1: 2}, {2: 3}]
    assert kv.asked() == [[1, 2]]


@pytest.mark.parametrize("wrong", [[V], [-1], [0.5], [float("nan")]], ids=str)
def test_wrong_ids_are_refused_in_the_call(kv, wrong):
    with pytest.raises(UsageError, match=r"key 'w': row_ids"):
        kv.prefetch("w", mx.nd.array(wrong))
    with pytest.raises(UsageError, match="'never' has not been initialised"):
        kv.prefetch("never", mx.nd.array([0]))


def test_what_every_worker_has_is_not_fetched(kv):
    """A dense weight is brought up to date by its pushes; without servers every table is here."""
    weight = mx.nd.zeros((V, D))
    kv.init("dense", weight)
    kv.push("dense", sparse([1]))
    for key in ("w", "dense"):
        kv.prefetch(key, mx.nd.array([]))
    kv.prefetch("dense", mx.nd.array([1]))
    assert kv.asked() == []


IDS = st.lists(st.integers(0, V - 1), max_size=4)
CALLS = st.lists(st.tuples(st.sampled_from(["prefetch", "push", "pull"]), IDS), max_size=12)


@settings(max_examples=15, deadline=None)
@given(calls=CALLS)
def test_any_program_gets_the_rows_that_it_would_get_without(calls):
    """To the bit, whatever is prefetched when."""
    with local_groups() as make:
        stores = [make_store(make), make_store(make)]
        for number, (what, ids) in enumerate(calls):
            if what == "prefetch":
                stores[0].prefetch("w", mx.nd.array(ids))
            elif what == "push":
                rows = sorted(set(ids))
                for store in stores:
                    store.push("w", sparse(rows, [number + 1] * len(rows)))
            else:
                assert pull(stores[0], ids) == pull(stores[1], ids)
        everything = np.arange(V)
        assert pull(stores[0], everything) == pull(stores[1], everything)
