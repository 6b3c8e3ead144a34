"""A worker's decisions about operations, message by message; buffers and callbacks are strings here."""

from __future__ import annotations

import pytest
from support.one_worker import (
    SLICE,
    Raw,
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
from kvstore_mpi.records import SCHEDULER, KeySpec, Slice, StoreTerms, Topology
from kvstore_mpi.scheduler.state import SchedulerState
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker import key_creation
from kvstore_mpi.worker.collectives import Collective, Kind
from kvstore_mpi.worker.instructions import Collect, Complete, Keep, Write

# --- alone with servers ---


def test_rank_0_gives_the_servers_their_values():
    """Its buffer is in use until every slice has arrived: only then the operation is over."""
    worker = Worker(servers=2)
    assert sent(worker.declare("w", 10)) == [
        (SCHEDULER, m.Declare(KeySpec(0, "w", (10,), "float32"), "sync", False))
    ]
    out = worker.placed("w", 5, [(1, 0, 4), (0, 4, 10)])
    assert [(peer, create.shard, create.runs) for peer, create in sent(out, m.Create)] == [
        (server(1), (0, 4), [(0, 4)]),
        (server(0), (4, 10), [(4, 10)]),
    ]
    assert [send.payloads for send in out] == [["w[0:4]"], ["w[4:10]"]]
    assert completed(worker.hears(server(0), m.Applied([(5, 4, 10, 0)]))) == []
    assert completed(worker.hears(server(1), m.Applied([(5, 0, 4, 0)]))) == ["init w"]


def test_a_large_initial_value_travels_in_several_messages(monkeypatch):
    """Bundles of slices, so that nothing has to wait behind a whole key."""
    monkeypatch.setattr(key_creation, "BUNDLE_BYTES", 2 * SLICE * 4)
    worker = Worker()
    worker.declare("w", 20)
    creates = [message for _, message in sent(worker.placed("w", 0, [(0, 0, 20)]), m.Create)]
    assert [create.runs for create in creates] == [[(0, 8)], [(8, 16)], [(16, 20)]]


def test_the_others_pull_the_initial_value():
    """From the servers, which answer when rank 0's has come."""
    worker = Worker(1, clients=2, workers=2)
    worker.declare("w")
    (send,) = worker.placed("w", 0, [(0, 0, 6)])
    assert send == Send(server(), m.Pull([(0, 0, 6, 0)]))
    out = worker.hears(server(), m.Values([(0, 0, 4, 0)], shared=False), ["a"])
    assert out == [Write("w[0:4]", "a")]
    out = worker.hears(server(), m.Values([(0, 4, 6, 0)], shared=False), ["b"])
    assert out == [Write("w[4:6]", "b"), Complete("init w")]


def test_pushes_leave_by_priority_at_the_end_of_a_pass():
    """What became ready in one pass shares messages; the first layer goes first."""
    worker = Worker().init("fc").init("conv", key_id=1)
    assert worker.submit(Kind.PUSHPULL, "fc", priority=-1) == []
    assert worker.submit(Kind.PUSH, "conv", priority=0) == []
    (send,) = worker.flush()
    assert send.message == m.Push([(1, 0, 6, 1, False), (0, 0, 6, 1, True)], shared=False)
    assert send.payloads == ["conv[0:6]", "fc[0:6]"]
    assert worker.flush() == []


def test_a_source_is_sent_from_where_it_lies():
    """The values that come back go to the buffer; the operation after that sends the buffer again."""
    worker = Worker().init("w")
    assert worker.state.keys.sends_source(0, "w")
    assert worker.submit(Kind.PUSHPULL, "w", source=Raw("g")) == []
    (send,) = worker.flush()
    assert send.payloads == ["g[0:6]"]
    out = worker.hears(server(), m.Values([(0, 0, 6, 1)], shared=False), ["new"])
    assert out == [Write("w[0:6]", "new"), Complete("pushpull w")]
    worker.submit(Kind.PUSHPULL, "w")
    (send,) = worker.flush()
    assert send.payloads == ["w[0:6]"]


def test_a_source_is_copied_where_a_server_reads_the_buffer():
    """Its slices are in the buffer before it is told; those of others are sent from where they lie."""
    worker = Worker(servers=2).init("w", size=8, shards=[(0, 0, 4), (1, 4, 8)])
    worker.hears(server(1), m.Shared(0))
    assert worker.submit(Kind.PUSHPULL, "w", source=Raw("g")) == [Write("w[4:8]", "g[4:8]")]
    sent = {send.peer: (send.message.shared, send.payloads) for send in worker.flush()}
    assert sent == {server(0): (False, ["g[0:4]"]), server(1): (True, [])}
    worker.hears(server(0), m.Shared(0))
    assert not worker.state.keys.sends_source(0, "w")


def test_a_server_that_maps_the_buffer_late_is_sent_what_was_queued_for_it():
    """Nobody has copied that into the buffer."""
    worker = Worker().init("w")
    worker.submit(Kind.PUSHPULL, "w", source=Raw("g"))
    worker.hears(server(), m.Shared(0))
    (send,) = worker.flush()
    assert (send.message.shared, send.payloads) == (False, ["g[0:6]"])


@pytest.mark.parametrize("who", [leader, member])
def test_a_source_is_copied_where_ranks_work_on_the_buffer(who):
    """A sum over the ranks of a client is made in place."""
    worker = who().init("w")
    assert not worker.state.keys.sends_source(0, "w")
    out = worker.submit(Kind.PUSHPULL, "w", source="gradient")
    assert out[0] == Write("w", "gradient")
    begun = worker.announced((Collective.REDUCE_SHARE, 0, 1, 0, 2)) if who is member else worker.flush()
    assert {collect.operation for collect in only(Collect, begun)} == {Collective.REDUCE_SHARE}


def test_a_source_of_parameters_is_copied():
    """What was pushed stands for a center that does not come."""
    worker = Worker().init("w")
    worker.state.keys.take_terms(0, StoreTerms(params=True))
    assert not worker.state.keys.sends_source(0, "w")
    assert worker.submit(Kind.PUSHPULL, "w", source="params") == [Write("w", "params")]
    (send,) = worker.flush()
    assert send.payloads == ["w[0:6]"]


def test_a_source_is_the_value_of_a_job_of_one():
    """Without servers and other ranks the sum is what was pushed."""
    worker = Worker(servers=0).init("w")
    assert worker.submit(Kind.PUSHPULL, "w", source="g") == [Write("w", "g"), Complete("pushpull w")]


def test_a_pushpull_is_over_with_its_last_value():
    """Values come slice by slice, in any order, and are written where the slices were."""
    worker = Worker().init("w")
    worker.submit(Kind.PUSHPULL, "w")
    worker.flush()
    out = worker.hears(server(), m.Values([(0, 4, 6, 1)], shared=False), ["new"])
    assert out == [Write("w[4:6]", "new")]
    out = worker.hears(server(), m.Values([(0, 0, 4, 1)], shared=False), ["new"])
    assert out == [Write("w[0:4]", "new"), Complete("pushpull w")]


def test_a_value_is_kept_before_its_caller_has_the_buffer_again():
    """The next gradient may be copied into the buffer as soon as the caller is told."""
    worker = Worker(mode="async", keep_values=True).init("w")
    worker.submit(Kind.PUSHPULL, "w")
    worker.flush()
    out = worker.hears(server(), m.Values([(0, 0, 6, 1)], shared=False), ["new"])
    key = worker.state.keys.by_name[0, "w"]
    assert out == [Write("w[0:6]", "new"), Keep(key), Complete("pushpull w")]


@pytest.mark.parametrize(("mode", "kept"), [("async", 1), ("sync", 0)])
def test_values_are_kept_from_when_a_server_cannot_save_them(mode, kept):
    """With snapshots not before, and only where the job can go on without the server."""
    worker = Worker(mode=mode, keep_values=True, snapshot_dir="/full").init("w")
    seen = []
    for number in (1, 2):
        worker.submit(Kind.PUSHPULL, "w")
        worker.flush()
        out = worker.hears(server(), m.Values([(0, 0, 6, number)], shared=False), ["new"])
        seen.append(sum(isinstance(each, Keep) for each in out))
        assert worker.hears(server(), m.KeepValues()) == []
    assert seen == [0, kept]


def test_a_push_is_over_when_it_is_applied():
    """The buffer is the caller's again only then."""
    worker = Worker().init("w")
    worker.submit(Kind.PUSH, "w")
    worker.flush()
    assert worker.hears(server(), m.Applied([(0, 0, 4, 1)])) == []
    assert completed(worker.hears(server(), m.Applied([(0, 4, 6, 1)]))) == ["push w"]


def test_operations_on_a_key_run_in_the_order_of_the_calls():
    """The next starts when the one before has ended; a pull asks for the pushes before it."""
    worker = Worker().init("w")
    assert (
        worker.submit(Kind.PUSH, "w")
        == worker.submit(Kind.PULL, "w")
        == worker.submit(Kind.PUSH, "w")
        == []
    )
    (push,) = worker.flush()
    out = worker.answer(push)
    pull = Send(server(), m.Pull([(0, 0, 6, 1)]))
    assert out == [Complete("push w"), pull]
    assert worker.flush() == []
    assert completed(worker.answer(pull)) == ["pull w"]
    (push,) = worker.flush()
    assert push.message.entries[0] == (0, 0, 6, 2, False)


def test_operations_on_different_keys_overlap():
    """One key's slow server does not hold up another's."""
    worker = Worker(servers=2).init("a").init("b", key_id=1, shards=[(1, 0, 6)])
    worker.submit(Kind.PUSHPULL, "a")
    worker.submit(Kind.PUSHPULL, "b")
    to_a, to_b = worker.flush()
    assert (to_a.peer, to_b.peer) == (server(0), server(1))
    assert completed(worker.answer(to_b)) == ["pushpull b"]
    assert completed(worker.answer(to_a)) == ["pushpull a"]


def test_an_empty_key_is_pushed_and_answered_like_any_other():
    """It has one slice without elements."""
    worker = Worker().init("w", size=0)
    worker.submit(Kind.PUSHPULL, "w")
    (send,) = worker.flush()
    assert send.message.entries == [(0, 0, 0, 1, True)]
    assert completed(worker.answer(send)) == ["pushpull w"]


# --- a client's own store ---


def own_store(rank, client_size):
    """Make a worker of the second of two clients, with one key of its client's own store."""
    worker = Worker(rank, clients=2, workers=2 * client_size, servers=2, mode="client")
    worker.declare("w")
    return worker, worker.placed("w", 0, [(0, 0, 6)]) + worker.flush()


def test_a_clients_own_store_keeps_a_single_rank_to_itself():
    """Without other ranks the value is there at once, and no server hears of it."""
    worker, out = own_store(1, 1)
    assert out == [Complete("init w")]
    assert worker.submit(Kind.PUSHPULL, "w") + worker.flush() == [Complete("pushpull w")]
    assert worker.submit(Kind.PULL, "w") == [Complete("pull w")]


def test_a_clients_own_store_sums_within_the_client():
    """The leader announces the collectives of pure MPI, and no server hears of them."""
    worker, out = own_store(2, 2)
    (collect,) = only(Collect, out)
    assert collect.operation is Collective.BROADCAST
    assert Complete("init w") in worker.state.collected(collect, 0.0)
    out = worker.submit(Kind.PUSHPULL, "w") + worker.flush()
    (collect,) = only(Collect, out)
    assert collect.operation is Collective.ALLREDUCE
    assert {send.peer for send in only(Send, out)} == {node(3)}
    assert Complete("pushpull w") in worker.state.collected(collect, 0.0)


def test_servers_do_not_see_a_clients_own_store():
    """Its keys count for no server when others are placed."""
    state = SchedulerState(Topology(2, 2, 2), slice_elements=4, connect_timeout=9.0, now=0.0)

    def placed(mode, key, size):
        declared = m.Declare(
            KeySpec(0 if mode == "sync" else 1, key, (size,), "float32"), mode, whole=False
        )
        (send,) = state.handle(node(0), declared, 0.0)
        return send.message.shards

    assert placed("client", "own", 100) == [(0, 0, 100)]
    assert placed("sync", "a", 4) == [(0, 0, 4)]
    assert placed("sync", "b", 4) == [(1, 0, 4)]


# --- the end ---


def test_a_client_of_one_may_end_at_once():
    """It tells the scheduler last of all."""
    worker = Worker()
    assert worker.membership.close() == []
    assert worker.membership.may_end
    assert worker.membership.leave() == [Send(SCHEDULER, m.Leave())]


def test_members_of_a_client_end_together():
    """The leader waits for all, the others for the leader."""
    worker = Worker(0, workers=3)
    assert sent(worker.membership.close())[:2] == [(node(1), m.Leave()), (node(2), m.Leave())]
    worker.hears(node(1), m.Leave())
    assert not worker.membership.may_end
    worker.hears(node(2), m.Leave())
    assert worker.membership.may_end
    follower = member()
    assert sent(follower.membership.close())[:1] == [(node(0), m.Leave())]
    follower.hears(node(0), m.Leave())
    assert follower.membership.may_end


@pytest.mark.parametrize(
    ("rank", "servers", "told"),
    [(0, 2, [SCHEDULER, server(0), server(1)]), (1, 2, [SCHEDULER]), (0, 0, [node(0)])],
)
def test_who_may_wait_for_a_rank_hears_at_once_that_its_program_is_over(rank, servers, told):
    """The coordinator, and of rank 0 the servers, though another rank of the client goes on."""
    out = sent(Worker(rank, workers=2, servers=servers).membership.close())
    assert out == [(node(1 - rank), m.Leave()), *((each, m.Finished()) for each in told)]


def test_a_coordinator_of_the_same_client_is_told_once():
    """Where there are no servers, a member tells rank 0 both at once."""
    assert sent(Worker(1, workers=2, servers=0).membership.close()) == [(node(0), m.Leave())]


@pytest.mark.parametrize("before", [True, False])
def test_an_operation_that_the_leader_will_not_call_is_an_error(before):
    """Whether it was called before or after the leader has finished."""
    worker = member().init("w")
    out = worker.submit(Kind.PUSHPULL, "w") if before else []
    assert out == []
    out = worker.hears(node(0), m.Leave())
    if not before:
        assert out == []
        out = worker.submit(Kind.PUSHPULL, "w")
    error = the_error(out)
    assert isinstance(error, MismatchError)
    for part in ("client0.1", "'w'", "pushpull number 1", "unequal numbers of batches"):
        assert part in str(error)


def test_a_collective_that_has_begun_ends_although_the_leader_has_finished():
    """MPI lets the leader go first: its last broadcast returns before the others have it."""
    worker = member().init("w")
    worker.submit(Kind.PUSHPULL, "w")
    (reduce,) = worker.announced((Collective.REDUCE_SHARE, 0, 1, 0, 2))
    worker.state.collected(reduce, 0.0)
    (share,) = worker.announced((Collective.SHARE, 0, 1, 0, 2))
    assert worker.hears(node(0), m.Leave()) == []
    assert completed(worker.state.collected(share, 0.0)) == ["pushpull w"]
    assert worker.state.error is None


def test_what_needs_no_collective_does_not_need_the_leader_either():
    """A member still fetches its initial value or pulls while the leader has finished."""
    worker = member().init("w")
    worker.declare("v")
    worker.submit(Kind.PULL, "w")
    assert worker.hears(node(0), m.Leave()) == []
    (pull,) = worker.placed("v", 1, [(0, 0, 6)])
    assert completed(worker.answer(pull)) == ["init v"]


def test_what_follows_such_a_collective_can_never_happen():
    """The leader has left without calling it."""
    worker = member().init("w")
    worker.submit(Kind.PUSH, "w")
    worker.submit(Kind.PUSH, "w")
    (collect,) = worker.announced((Collective.REDUCE, 0, 1, 0, 2))
    assert worker.hears(node(0), m.Leave()) == []
    out = worker.state.collected(collect, 0.0)
    assert completed(out) == ["push w"]
    assert "push number 2" in str(the_error(out))


def test_a_run_of_slices_is_found_by_its_elements():
    """Values name their slices by where they begin and end."""
    worker = Worker().init("w", size=19)
    key = worker.state.keys.by_name[0, "w"]
    assert [key.indices(piece.lo, piece.hi) for _, piece in key.slices] == [
        range(i, i + 1) for i in range(5)
    ]
    assert key.indices(4, 19) == range(1, 5)
    small = Worker().init("v", size=17).state.keys.by_name[0, "v"]
    assert key.indices(16, 19) == small.indices(16, 17) == range(4, 5)
    assert key.slices[-1][1] == Slice(0, 16, 19)
