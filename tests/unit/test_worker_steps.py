"""A leader whose program runs ahead of its client's: what it announces, so that nobody waits for ever."""

from __future__ import annotations

import pytest
from support.one_worker import Worker, completed, leader, member, node, only, sent

from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker.collectives import Collective, Kind
from kvstore_mpi.worker.instructions import Collect

KEYS = ["a", "b"]
SHARE, REDUCE = Collective.SHARE, Collective.REDUCE_SHARE


def with_keys(worker):
    """Of one slice each, so that a collective is of one."""
    for key_id, key in enumerate(KEYS):
        worker.init(key, key_id, size=4)
    return worker


def announced(worker):
    """Return what the leader announces now, and carries out itself."""
    return only(Collect, worker.flush())


def names(collects):
    return [(each.operation, each.key.spec.key, each.sequence) for each in collects]


def run_ahead(worker, members=()):
    """Begin with a second step when a of the first has ended and b has not; return what b waits for."""
    for key in KEYS:
        worker.submit(Kind.PUSHPULL, key)
    for reduced in announced(worker):
        worker.state.collected(reduced, 0.0)
    (pushed,) = worker.flush()
    (first, second) = pushed.message.entries
    worker.answer(pushed._replace(message=m.Push([first], shared=False)))
    (share,) = announced(worker)
    assert completed(worker.state.collected(share, 0.0)) == ["pushpull a"]
    for rank in members:
        assert worker.hears(node(rank), m.Reached(2)) == []
    worker.submit(Kind.PUSHPULL, "a")
    return pushed._replace(message=m.Push([second], shared=False))


def test_the_next_step_is_not_announced_before_the_values_of_this_one():
    """A member that waits for b has not called a again, and has to get b all the same."""
    worker = with_keys(leader())
    last = run_ahead(worker)
    assert announced(worker) == []
    worker.answer(last)
    (share,) = announced(worker)
    assert names([share]) == [(SHARE, "b", 1)]
    assert completed(worker.state.collected(share, 0.0)) == ["pushpull b"]
    assert names(announced(worker)) == [(REDUCE, "a", 2)]


def test_the_next_step_is_announced_when_all_members_have_begun_with_it():
    """They wait for nothing of the step before, or would not have."""
    worker = with_keys(Worker(0, workers=3))
    run_ahead(worker, members=[2])
    assert announced(worker) == []
    assert worker.hears(node(1), m.Reached(2)) == []
    assert names(announced(worker)) == [(REDUCE, "a", 2)]


def test_what_members_have_begun_with_before_is_announced_at_once():
    """The slower one is the leader."""
    worker = with_keys(leader())
    run_ahead(worker, members=[1])
    assert names(announced(worker)) == [(REDUCE, "a", 2)]


def test_steps_that_have_ended_hold_up_nothing():
    """So it is where gradients depend on all weights."""
    worker = with_keys(leader())
    for sequence in (1, 2, 3):
        for key in KEYS:
            worker.submit(Kind.PUSH, key)
        reduced = announced(worker)
        assert [each.sequence for each in reduced] == [sequence, sequence]
        for each in reduced:
            worker.state.collected(each, 0.0)
        (pushed,) = worker.flush()
        assert completed(worker.answer(pushed)) == ["push a", "push b"]


@pytest.mark.parametrize("waits", [True, False])
def test_a_member_tells_when_it_runs_ahead(waits):
    """Once for each step; one that waits for its values has nothing to tell."""
    worker = with_keys(member())
    told = []
    for step in (1, 2, 3):
        for key in KEYS:
            told += sent(worker.submit(Kind.PUSH, key), m.Reached)
        for key_id, key in enumerate(KEYS) if waits else ():
            (job,) = worker.announced((Collective.REDUCE, key_id, step, 0, 1))
            assert completed(worker.state.collected(job, 0.0)) == [f"push {key}"]
    assert told == ([] if waits else [(node(0), m.Reached(2)), (node(0), m.Reached(3))])


def test_without_servers_an_urgent_key_of_the_next_step_overtakes_nothing_of_this_one():
    """Its gradient would be waited for by ranks that wait for the less urgent key."""
    worker = with_keys(leader(servers=0))
    worker.submit(Kind.PUSHPULL, "a", priority=9)
    (first,) = announced(worker)
    worker.submit(Kind.PUSHPULL, "b", priority=-9)
    assert completed(worker.state.collected(first, 0.0)) == ["pushpull a"]
    worker.submit(Kind.PUSHPULL, "a", priority=9)
    (second,) = announced(worker)
    assert second.key.spec.key == "b"
    assert completed(worker.state.collected(second, 0.0)) == ["pushpull b"]
    assert names(announced(worker)) == [(Collective.ALLREDUCE, "a", 2)]
