"""What the members of a client tell their leader, and what it announces because of that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.one_worker import STEP, Worker, completed, leader, member, node, only, sent, the_error

from kvstore_mpi.errors import DeadlineError, MismatchError
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker.client import BUCKET_BYTES, BUCKETS_AHEAD
from kvstore_mpi.worker.collectives import Collective, Kind
from kvstore_mpi.worker.instructions import Collect
from kvstore_mpi.worker.status import waits_of

KEYS = ["a", "b"]
ALLREDUCE, REDUCE, SHARE = Collective.ALLREDUCE, Collective.REDUCE, Collective.SHARE


def with_keys(worker):
    """Of one slice each, so that a collective is of one."""
    for key_id, key in enumerate(KEYS):
        worker.init(key, key_id, size=4)
    worker.members_are_ready = False
    worker.told.clear()
    return worker


def announced(worker):
    """Return what the leader announces now, and carries out itself."""
    return [(each.operation, each.key.spec.key, each.sequence) for each in only(Collect, worker.flush())]


def hear_ready(worker, rank, *keys):
    """A member has come to the next operations of some keys."""
    assert worker.hears(node(rank), m.Ready([KEYS.index(key) for key in keys])) == []


# --- the leader ---


@pytest.mark.parametrize("first", ["leader", "members"])
def test_what_all_ranks_have_come_to_is_announced(first):
    """Whoever has come to it first."""
    worker = with_keys(Worker(0, workers=3))
    if first == "leader":
        worker.submit(Kind.PUSH, "a")
    for rank in (2, 1):
        assert announced(worker) == []
        hear_ready(worker, rank, "a")
    if first == "members":
        assert announced(worker) == []
        worker.submit(Kind.PUSH, "a")
    assert announced(worker) == [(REDUCE, "a", 1)]


def test_the_most_urgent_key_waits_for_its_members_and_holds_up_no_other():
    """A member that waits for b before it comes to a gets b."""
    worker = with_keys(leader(servers=0))
    worker.submit(Kind.PUSHPULL, "a", priority=9)
    worker.submit(Kind.PUSHPULL, "b", priority=-9)
    hear_ready(worker, 1, "b")
    (second,) = only(Collect, worker.flush())
    assert completed(worker.state.collected(second, 0.0)) == ["pushpull b"]
    hear_ready(worker, 1, "a")
    assert announced(worker) == [(ALLREDUCE, "a", 1)]


def test_what_members_are_ready_for_goes_by_priority():
    """In whichever order they have come to it."""
    worker = with_keys(leader(servers=0))
    worker.submit(Kind.PUSHPULL, "a", priority=-1)
    worker.submit(Kind.PUSHPULL, "b", priority=1)
    hear_ready(worker, 1, "a", "b")
    assert announced(worker) == [(ALLREDUCE, "b", 1), (ALLREDUCE, "a", 1)]


def test_one_call_of_a_member_counts_for_one_operation():
    """The next one of the same key needs another."""
    worker = with_keys(leader(servers=0))
    hear_ready(worker, 1, "a")
    for sequence in (1, 2):
        worker.submit(Kind.PUSH, "a")
        if sequence == 2:
            assert announced(worker) == []
            hear_ready(worker, 1, "a")
        (collect,) = only(Collect, worker.flush())
        assert collect.sequence == sequence
        worker.state.collected(collect, 0.0)


def test_what_follows_of_an_operation_needs_no_other_word():
    """All ranks are in it: values are shared when they come."""
    worker = with_keys(leader())
    worker.submit(Kind.PUSHPULL, "a")
    hear_ready(worker, 1, "a")
    (reduced,) = only(Collect, worker.flush())
    worker.state.collected(reduced, 0.0)
    (pushed,) = worker.flush()
    worker.answer(pushed)
    assert announced(worker) == [(SHARE, "a", 1)]


@pytest.mark.parametrize("before", [True, False])
def test_a_member_that_has_finished_comes_to_nothing_more(before):
    """The leader has another batch than rank 2: unequal numbers, named by key, before or after its call."""
    worker = with_keys(Worker(0, workers=3))
    hear_ready(worker, 1, "a")
    out = worker.hears(node(2), m.Leave()) if before else []
    out += worker.submit(Kind.PUSH, "a")
    if not before:
        assert out == []
        out = worker.hears(node(2), m.Leave())
    error = the_error(out)
    assert isinstance(error, MismatchError)
    for part in ("rank 2 has finished", "client0.0", "push number 1 of key 'a'", "unequal numbers"):
        assert part in str(error)


def test_members_that_leave_after_their_last_call_are_not_blamed():
    """Their last call was told before, and a client of one rank waits for nobody."""
    worker = with_keys(leader(servers=0))
    hear_ready(worker, 1, "a")
    assert worker.hears(node(1), m.Leave()) == []
    worker.submit(Kind.PUSH, "a")
    assert announced(worker) == [(ALLREDUCE, "a", 1)]


def test_who_is_late_is_named_at_the_deadline():
    """And not those that have come."""
    worker = with_keys(Worker(0, workers=3))
    worker.submit(Kind.PUSH, "a")
    hear_ready(worker, 1, "a")
    error = the_error(worker.state.tick(STEP + 1.0))
    assert isinstance(error, DeadlineError)
    assert str(error).endswith("of its client, of which rank 2 did not call it")


def test_whoever_asks_what_the_leader_waits_for_is_told_who_is_late():
    """``mpilaunch inspect`` shows it."""
    worker = with_keys(Worker(0, workers=3))
    worker.submit(Kind.PUSH, "a")
    names = {1: "client0.1", 2: "client0.2"}
    for rank, awaited in ((2, ["client0.1"]), (1, ["client0.1", "client0.2"])):
        hear_ready(worker, rank, "a")
        (wait,) = waits_of(worker.state, SimpleNamespace(current=None), names, STEP, 1.0)
        assert wait.awaited == awaited


@pytest.mark.parametrize(("servers", "awaited"), [(0, "client0.0"), (1, "scheduler")])
def test_before_a_key_has_its_place_the_coordinator_is_waited_for(servers, awaited):
    """Which rank 0 is without servers: the job has no scheduler that could be looked at."""
    worker = Worker(1, workers=2, servers=servers)
    worker.declare("a")
    names = {0: "client0.0"}
    (wait,) = waits_of(worker.state, SimpleNamespace(current=None), names, STEP, 1.0)
    assert wait.awaited == [awaited]
    assert "rank 0 has not initialised it" in wait.text


# --- members ---


def test_a_member_tells_what_it_has_come_to():
    """All of a pass in one message, and the next operation of a key when the one before has ended."""
    worker = with_keys(member())
    for key in ("b", "a", "b"):
        worker.submit(Kind.PUSH, key)
    assert sent(worker.state.flush(0.0, lambda _peer: 0)) == [(node(0), m.Ready([1, 0]))]
    (job,) = worker.announced((REDUCE, 1, 1, 0, 1))
    assert completed(worker.state.collected(job, 0.0)) == ["push b"]
    assert sent(worker.state.flush(0.0, lambda _peer: 0)) == [(node(0), m.Ready([1]))]
    assert sent(worker.state.flush(0.0, lambda _peer: 0)) == []


def test_a_pull_that_each_rank_makes_for_itself_is_told_to_nobody():
    """Neither is the initial value of a synchronous key, which each asks for."""
    worker = member()
    worker.init("a", 0, size=4)
    worker.submit(Kind.PULL, "a")
    worker.flush()
    assert worker.told == []


def test_with_enough_under_way_what_a_member_has_come_to_is_told_together():
    """Later, when there is less: without a word of the leader or of another program."""
    worker = with_keys(member(servers=0))
    size = BUCKET_BYTES // 4
    for number in range(2, 2 + BUCKETS_AHEAD):
        worker.init(f"large {number}", number, size=size, shards=[(0, 0, size)])
        worker.submit(Kind.PUSH, f"large {number}")
    worker.flush()
    worker.told.clear()
    entries = [(ALLREDUCE, number, 1, 0, size // 4) for number in range(2, 2 + BUCKETS_AHEAD)]
    first, *_ = worker.announced(*entries)
    for key in KEYS:
        worker.submit(Kind.PUSH, key)
        worker.flush()
        assert worker.told == []
    worker.state.collected(first._replace(last=first.last // 2), 0.0)
    worker.flush()
    assert worker.told == []
    worker.state.collected(first._replace(first=first.last // 2), 0.0)
    worker.flush()
    assert worker.told == [0, 1]
