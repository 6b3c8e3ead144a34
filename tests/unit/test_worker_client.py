"""What the ranks of a client decide, message by message; buffers and callbacks are strings here."""

from __future__ import annotations

import pytest
from support.one_worker import (
    Worker,
    completed,
    leader,
    member,
    node,
    only,
    sent,
    server,
    the_error,
)

from kvstore_mpi.errors import (
    MismatchError,
)
from kvstore_mpi.records import KeySpec
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.collectives import Collective, Kind
from kvstore_mpi.worker.instructions import Collect, Complete, Failed

# --- the leader of a client ---


def test_the_leader_announces_by_priority_and_keeps_to_it_itself():
    """Every rank carries out the same collectives in the same order."""
    worker = leader().init("fc").init("conv", key_id=1)
    worker.submit(Kind.PUSHPULL, "fc", priority=-1)
    worker.submit(Kind.PUSH, "conv", priority=0)
    announce, *collects = worker.flush()
    assert announce == Send(
        node(1), m.Announce([(Collective.REDUCE, 1, 1, 0, 2, 1), (Collective.REDUCE_SHARE, 0, 1, 0, 2, 1)])
    )
    assert [(c.operation, c.key.spec.key, c.first, c.last) for c in collects] == [
        (Collective.REDUCE, "conv", 0, 2),
        (Collective.REDUCE_SHARE, "fc", 0, 2),
    ]


def test_the_leader_pushes_what_is_reduced_and_shares_what_comes_back():
    """Slice by slice: a slice is on its way while the next one is reduced."""
    worker = leader().init("w")
    worker.submit(Kind.PUSHPULL, "w")
    (collect,) = only(Collect, worker.flush())
    assert worker.state.collected(collect._replace(last=1), 0.0) == []
    (push,) = worker.flush()
    assert push.message.entries == [(0, 0, 4, 1, True)]
    assert completed(worker.answer(push)) == []
    announce, share = worker.flush()
    assert announce.message == m.Announce([(Collective.SHARE, 0, 1, 0, 1, 1)])
    assert worker.state.collected(share, 0.0) == []
    worker.state.collected(collect._replace(first=1), 0.0)
    (push,) = worker.flush()
    worker.answer(push)
    (share,) = only(Collect, worker.flush())
    assert completed(worker.state.collected(share, 0.0)) == ["pushpull w"]


def test_a_push_of_the_leader_is_over_when_it_is_applied():
    """No collective follows."""
    worker = leader().init("w")
    worker.submit(Kind.PUSH, "w")
    (collect,) = only(Collect, worker.flush())
    worker.state.collected(collect, 0.0)
    (push,) = worker.flush()
    assert completed(worker.answer(push)) == ["push w"]


# --- every rank pushes ---


def test_each_rank_pushes_its_own_slices_and_the_leader_announces_all():
    """The first slice is rank 0's and the second rank 1's; a member tells the leader what has come."""
    head, other = leader(leaders="all").init("w"), member(leaders="all").init("w")
    head.submit(Kind.PUSHPULL, "w")
    other.submit(Kind.PUSHPULL, "w")
    (announce, *collects) = head.flush()
    followed = other.hears(node(0), announce.message)
    for worker, jobs in ((head, collects), (other, followed)):
        for job in jobs:
            worker.state.collected(job, 0.0)
    (mine,), (theirs,) = head.flush(), other.flush()
    assert mine.message.entries == [(0, 0, 4, 1, True)]
    assert theirs.message.entries == [(0, 4, 6, 1, True)]
    assert completed(head.answer(mine)) == []
    write, told = other.answer(theirs)
    assert write.payload == "value@4"
    assert told == Send(node(0), m.Arrived([(0, 1, 2)]))
    head.hears(node(1), told.message)
    announce, *shares = head.flush()
    assert announce.message.entries == [
        (Collective.SHARE, 0, 1, 0, 1, 2),
        (Collective.SHARE, 0, 1, 1, 2, 1),
    ]
    assert [list(s.key.by_pusher(s.first, s.last)) for s in shares] == [[(0, 0, 1)], [(1, 1, 2)]]
    done = [instruction for share in shares for instruction in head.state.collected(share, 0.0)]
    assert completed(done) == ["pushpull w"]


def test_a_member_that_pushes_waits_for_its_own_slices_though_the_leader_has_finished():
    """Its operation is over when the server has applied them; then all may go."""
    worker = member(leaders="all").init("w")
    worker.submit(Kind.PUSH, "w")
    for job in worker.announced((Collective.REDUCE, 0, 1, 0, 2)):
        worker.state.collected(job, 0.0)
    (push,) = worker.flush()
    assert only(Failed, worker.hears(node(0), m.Leave())) == []
    assert completed(worker.answer(push)) == ["push w"]
    worker.membership.close()
    assert not worker.membership.may_end
    worker.hears(node(0), m.Released())
    assert worker.membership.may_end


def test_the_leader_releases_its_members_when_all_have_finished():
    """Nobody may be missed by the servers while another rank of its client still pushes."""
    worker = leader(leaders="all").init("w")
    assert sent(worker.membership.close())[0] == (node(1), m.Leave())
    assert not worker.membership.may_end
    assert sent(worker.hears(node(1), m.Leave())) == [(node(1), m.Released())]
    assert worker.membership.may_end


def test_new_numbers_of_an_optimizer_reach_all_servers_before_anybody_pushes():
    """The pushes of other ranks would overtake the message."""
    worker = leader(leaders="all", servers=2).init("w", size=8, shards=[(0, 0, 4), (1, 4, 8)])
    told = worker.membership.set_hyper(0, {"lr": 0.5})
    assert sent(told) == [(server(i), m.SetHyper(0, {"lr": 0.5}, confirm=True)) for i in range(2)]
    worker.submit(Kind.PUSH, "w")
    worker.hears(server(0), m.HyperSet())
    assert worker.flush() == []
    worker.hears(server(1), m.HyperSet())
    assert len(only(Collect, worker.flush())) == 1


# --- the other members of a client ---


def test_a_member_follows_the_announced_order():
    """And not that of its own calls."""
    worker = member().init("a").init("b", key_id=1)
    assert worker.submit(Kind.PUSH, "b") == []
    assert worker.submit(Kind.PUSH, "a") == []
    out = worker.announced((Collective.REDUCE, 0, 1, 0, 2), (Collective.REDUCE, 1, 1, 0, 2))
    assert [c.key.spec.key for c in only(Collect, out)] == ["a", "b"]
    assert completed(worker.state.collected(out[0], 0.0)) == ["push a"]


def test_a_pushpull_of_a_member_is_over_when_all_slices_are_shared():
    """Reduced is not enough."""
    worker = member().init("w")
    worker.submit(Kind.PUSHPULL, "w")
    (reduce,) = worker.announced((Collective.REDUCE_SHARE, 0, 1, 0, 2))
    assert worker.state.collected(reduce, 0.0) == []
    first, second = worker.announced((Collective.SHARE, 0, 1, 1, 2), (Collective.SHARE, 0, 1, 0, 1))
    assert worker.state.collected(first, 0.0) == []
    assert completed(worker.state.collected(second, 0.0)) == ["pushpull w"]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(Kind.PUSH, Collective.REDUCE_SHARE), (Kind.PUSHPULL, Collective.REDUCE)],
)
def test_push_against_pushpull_is_an_error(mine, theirs):
    """All ranks of a client call the same; the message names the key, the rank and both calls."""
    worker = member().init("w")
    worker.submit(mine, "w")
    out = worker.announced((theirs, 0, 1, 0, 2))
    error = the_error(out)
    assert isinstance(error, MismatchError)
    for part in ("'w'", "client0.1 (rank 1)", mine.value, "number 1"):
        assert part in str(error)
    assert Complete(f"{mine.value} w", error) in out


# --- pure MPI ---


def test_without_servers_the_initial_value_is_broadcast_and_pushes_are_reduced_to_all():
    """The same announcements, other collectives."""
    worker = leader(servers=0)
    assert sent(worker.declare("w")) == [
        (node(0), m.Declare(KeySpec(0, "w", (6,), "float32"), "sync", False))
    ]
    worker.placed("w", 0, [(0, 0, 6)])
    announce, collect = worker.flush()
    assert announce == Send(node(1), m.Announce([(Collective.BROADCAST, 0, 0, 0, 2, 1)]))
    assert completed(worker.state.collected(collect, 0.0)) == ["init w"]
    worker.submit(Kind.PUSHPULL, "w")
    _, collect = worker.flush()
    assert collect.operation is Collective.ALLREDUCE
    assert completed(worker.state.collected(collect, 0.0)) == ["pushpull w"]
    assert completed(worker.submit(Kind.PULL, "w")) == ["pull w"]


def test_a_member_without_servers_follows():
    """A push is an allreduce as well, so push and pushpull agree here."""
    worker = member(servers=0).init("w")
    worker.submit(Kind.PUSH, "w")
    (collect,) = worker.announced((Collective.ALLREDUCE, 0, 1, 0, 2))
    assert completed(worker.state.collected(collect, 0.0)) == ["push w"]


def test_one_worker_alone_is_done_at_once():
    """The sum over one worker is there already."""
    worker = Worker(servers=0)
    worker.declare("w")
    assert completed(worker.placed("w", 0, [(0, 0, 6)])) == ["init w"]
    for kind in (Kind.PUSH, Kind.PULL, Kind.PUSHPULL):
        assert completed(worker.submit(kind, "w")) == [f"{kind.value} w"]
