"""Agreement on keys: rank 0 decides, and the others hear of it, or that they differ."""

from __future__ import annotations

import pytest
from support.scheduler_job import (
    TIMEOUT,
    Job,
    declare,
    sent,
    the_failure,
    worker,
)

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.records import Growth, RowInit, name_of_table
from kvstore_mpi.scheduler import keys
from kvstore_mpi.wire import messages as m


@pytest.mark.parametrize("first", [0, 1])
def test_others_are_told_of_a_table_in_the_place_of_a_dense_key(first):
    """Once, in an asynchronous store; who makes the key later is told then. In rounds all push it."""
    job, table = Job(3, 3), declare(name_of_table("w"), mode="async")
    out = [each for each in job.says(worker(first), table) if isinstance(each.message, m.PushesRows)]
    told = m.PushesRows(table.spec.store, "w")
    assert {each.peer: each.message for each in out} == {
        worker(rank): told for rank in range(3) if rank != first
    }
    assert not sent(job.says(worker(1 - first), table), m.PushesRows)
    assert sent(job.says(worker(2), declare(mode="async")), m.PushesRows) == {worker(2): told}
    assert not sent(job.says(worker(2), declare("v", mode="async")), m.PushesRows)
    assert not sent(job.says(worker(0), declare(name_of_table("v"))), m.PushesRows)


def test_a_key_is_placed_for_whoever_declares_it_the_same_way():
    """Rank 0 decides; the others get the same number and shards, whenever they ask."""
    job = Job()
    assert job.says(worker(1), declare()) == []
    answers = sent(job.says(worker(0), declare()), m.Placed)
    assert answers[worker(0)] == answers[worker(1)]
    assert answers[worker(0)].key_id == 0
    assert answers[worker(0)].shards == [(0, 0, 12)]
    assert sent(job.says(worker(1), declare()))[worker(1)] == answers[worker(0)]


def test_keys_are_numbered_in_the_order_of_rank_0():
    """The others may declare theirs in another order, and in several stores."""
    job = Job()
    for key, store in (("b", 0), (7, 0), ("b", 1)):
        assert job.says(worker(1), declare(key, store=store)) == []
    numbers = [
        sent(job.says(worker(0), declare(key, store=store)))[worker(1)].key_id
        for key, store in (("b", 1), ("b", 0), (7, 0))
    ]
    assert numbers == [0, 1, 2]


def test_a_declaration_looks_at_its_own_key_alone(monkeypatch):
    """With thousands of keys the scheduler, or rank 0 in pure MPI, would be silent for too long."""
    names, find = [], keys._name
    monkeypatch.setattr(keys, "_name", lambda spec: names.append(spec) or find(spec))
    job, count = Job(), 200
    for rank in (1, 0):
        for key in range(count):
            job.says(worker(rank), declare(key))
    assert len(names) < 10 * count


def _field(declared, name):
    return getattr(declared if name == "mode" else declared.spec, name)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"shape": (4, 3)}, "shape"),
        ({"dtype": "float64"}, "dtype"),
        ({"mode": "async"}, "mode"),
        ({"partitions": 2}, "partitions"),
        ({"growth": Growth(RowInit("constant", 1.0))}, "growth"),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_a_key_that_differs_between_workers_is_refused(change, what, early):
    """The message names the key, both workers and both values; only the deviating worker is told."""
    job = Job()
    if early:
        job.says(worker(1), declare(**change))
        answers = sent(job.says(worker(0), declare()))
    else:
        job.says(worker(0), declare())
        answers = sent(job.says(worker(1), declare(**change)))
    failure = answers[worker(1)]
    assert failure.error == MismatchError.__name__
    assert (failure.store, failure.key) == (0, "w")
    for part in ("'w'", "client1.0", "client0.0", what, str(change[what]), str(_field(declare(), what))):
        assert part in failure.text
    assert not early or isinstance(answers[worker(0)], m.Placed)


def test_a_key_that_rank_0_does_not_have_is_refused_in_time():
    """The set of keys differs; waiting longer cannot help."""
    job = Job()
    job.says(worker(1), declare("extra"), now=5.0)
    assert job.state.tick(5.0 + TIMEOUT) == []
    peer, failure = the_failure(job.state.tick(6.0 + TIMEOUT))
    assert peer == worker(1)
    assert failure.error == MismatchError.__name__
    assert "'extra'" in failure.text
    assert "client1.0" in failure.text
    assert job.state.tick(7.0 + TIMEOUT) == []


@pytest.mark.parametrize("over", [m.Leave(), m.Finished()])
@pytest.mark.parametrize("before", [True, False])
def test_a_key_that_rank_0_can_no_longer_declare_is_refused_at_once(before, over):
    """Rank 0 has finished without it, with or without the rest of its client."""
    job = Job()
    if before:
        job.says(worker(1), declare("extra"))
    out = job.says(worker(0), over)
    if not before:
        out = job.says(worker(1), declare("extra"))
    failure = sent(out, m.Failure)[worker(1)]
    assert "'extra'" in failure.text
    assert "has finished without it" in failure.text


def test_keys_are_spread_over_servers_and_whole_keys_are_not():
    """Placement follows what rank 0 declares."""
    job = Job(servers=2)
    spread = sent(job.says(worker(0), declare("a", shape=(20,))))[worker(0)]
    assert spread.shards == [(0, 0, 10), (1, 10, 20)]
    whole = sent(job.says(worker(0), declare("b", shape=(20,), whole=True)))[worker(0)]
    assert whole.shards == [(0, 0, 20)]
