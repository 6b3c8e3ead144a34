"""What a worker makes of answers, deaths and returns; buffers and callbacks are strings here."""

from __future__ import annotations

import logging

import pytest
from support.one_worker import (
    STEP,
    Worker,
    completed,
    leader,
    member,
    only,
    sent,
    server,
    the_error,
)

from kvstore_mpi.errors import (
    DeadlineError,
    InternalError,
    MismatchError,
    PeerLostError,
    SkippedError,
    ToldToEndError,
    UsageError,
)
from kvstore_mpi.records import SCHEDULER, KeySpec, StoreTerms
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send
from kvstore_mpi.wire.state_parts import StatePart
from kvstore_mpi.worker.collectives import Collective, Kind
from kvstore_mpi.worker.instructions import Collect, Complete, Disconnect, Resolve
from kvstore_mpi.worker.records import Operation

# --- requests ---


def test_a_request_is_answered_once():
    """Repeated or foreign answers change nothing."""
    worker = Worker()
    worker.membership.request(3)
    assert worker.hears(server(), m.Ok(3)) == [Resolve(3)]
    assert worker.hears(server(), m.Ok(3)) == []
    worker.membership.request(-2)
    assert worker.hears(SCHEDULER, m.BarrierRelease(1)) == []
    assert worker.hears(SCHEDULER, m.BarrierRelease(2)) == [Resolve(-2)]


def test_a_refused_request_fails_alone():
    """An unknown optimizer is the caller's problem; the training may go on."""
    worker = Worker()
    worker.membership.request(3)
    (resolve,) = worker.hears(server(), m.Failure("UsageError", "no such optimizer", request=3))
    assert isinstance(resolve.error, UsageError)
    assert "no such optimizer" in str(resolve.error)
    assert "server0" in str(resolve.error)
    assert worker.state.error is None


def test_states_are_gathered_until_the_last_message():
    """Large states come in several."""
    worker = Worker().init("w")
    worker.membership.request(4)
    piece = StatePart(0, 0, 4, 1, 0, 1, 0, 4, "float32")
    assert worker.hears(server(), m.States(4, [piece], last=False), ["x"]) == []
    (resolve,) = worker.hears(server(), m.States(4, [piece], last=True), ["y"])
    assert [(r.spec.key, r.payload) for r in resolve.result] == [("w", "x"), ("w", "y")]


# --- failures ---


def test_a_failure_ends_everything_that_is_pending():
    """And everything that comes later, each exactly once, with the error as it was reported."""
    worker = Worker().init("a").init("b", key_id=1)
    worker.submit(Kind.PUSHPULL, "a")
    worker.submit(Kind.PUSH, "a")
    worker.submit(Kind.PULL, "b")
    worker.membership.request(1)
    out = worker.hears(server(), m.Failure("MismatchError", "key 'a' is wrong", 0, "a"))
    error = the_error(out)
    assert isinstance(error, MismatchError)
    assert "[reported by server0]" in str(error)
    assert sorted(i.done for i in only(Complete, out)) == ["pull b", "push a", "pushpull a"]
    assert all(i.error is error for i in only(Complete, out))
    assert only(Resolve, out) == [Resolve(1, error=error)]
    assert worker.flush() == []
    assert worker.submit(Kind.PUSH, "b") == [Complete("push b", error)]
    assert worker.hears(server(), m.Failure("InternalError", "another")) == []


def test_what_was_under_way_when_it_failed_is_ignored():
    """Answers of servers and announcements may still arrive, and collectives end."""
    worker = leader().init("w").init("v", key_id=1)
    worker.submit(Kind.PUSHPULL, "w")
    (collect,) = only(Collect, worker.flush())
    worker.submit(Kind.PULL, "v")
    worker.state.fail(InternalError("broken"))
    assert worker.hears(server(), m.Values([(1, 0, 4, 0)], shared=False), ["x"]) == []
    assert worker.hears(server(), m.Applied([(0, 0, 4, 1)])) == []
    assert worker.hears(SCHEDULER, m.Placed(0, "w", 0, [(0, 0, 6)])) == []
    assert worker.state.collected(collect, 0.0) == []
    assert worker.flush() == []


@pytest.mark.parametrize(("mode", "fatal"), [("sync", True), ("async", False)])
def test_the_death_of_another_client_is_fatal_in_sync_mode_only(mode, fatal):
    """A dead client never stops another in async mode."""
    worker = Worker(clients=2, workers=2, mode=mode)
    out = worker.hears(SCHEDULER, m.PeerGone("worker1", "client1.0 (host h, pid 1) is dead", False))
    if fatal:
        assert isinstance(the_error(out), PeerLostError)
    else:
        assert [entry.level for entry in only(Log, out)] == [logging.WARNING]
    assert "client1.0" in (str(the_error(out)) if fatal else out[0].text)


@pytest.mark.parametrize("who", ["worker1", "server0"])
def test_async_workers_need_their_client_and_the_servers(who):
    """Nothing goes on without those."""
    worker = leader(mode="async")
    out = worker.hears(SCHEDULER, m.PeerGone(who, f"{who} is dead", False))
    assert isinstance(the_error(out), PeerLostError)


def test_an_operation_that_takes_too_long_is_an_error():
    """It names the operation, the key, this worker and whom it involves."""
    worker = Worker(servers=2).init("w", shards=[(1, 0, 6)])
    worker.submit(Kind.PUSHPULL, "w", now=10.0)
    assert worker.state.tick(10.0 + STEP) == []
    error = the_error(worker.state.tick(11.0 + STEP))
    assert isinstance(error, DeadlineError)
    for part in ("client0.0 (rank 0)", "pushpull number 1", "'w'", "2 of 2 slices", "server1"):
        assert part in str(error)


def test_no_server_is_named_in_a_job_without():
    """A key has its place there, too, of which no server is."""
    worker = Worker(servers=0, workers=2).init("w")
    worker.submit(Kind.PUSHPULL, "w", now=10.0)
    error = the_error(worker.state.tick(11.0 + STEP))
    assert "slices are missing; it involves the workers of its client" in str(error)


# --- servers that go and come back ---

GONE = m.PeerGone("server0", "server0 has died", orderly=False, returns=True)
HALVES = [(0, 0, 4), (1, 4, 8)]
EXCHANGE = StoreTerms(params=True)


def asynchronous(**shape):
    """A worker of an async store with a key on two servers."""
    return Worker(servers=2, mode="async", **shape).init("w", size=8, shards=HALVES)


def test_a_push_of_gradients_does_not_wait_for_a_server_that_is_away():
    """What is under way to it is dropped, at once and later; the other server has its part."""
    worker = asynchronous()
    worker.submit(Kind.PUSH, "w")
    worker.flush()
    worker.hears(server(1), m.Applied([(0, 4, 8, 1)]))
    out = worker.hears(SCHEDULER, GONE)
    assert completed(out) == ["push w"]
    assert [gone.peer for gone in only(Disconnect, out)] == [server(0)]
    assert [log.level for log in only(Log, out)] == [logging.WARNING]
    worker.submit(Kind.PUSH, "w")
    assert [peer for peer, _ in sent(worker.flush(), m.Push)] == [server(1)]
    assert completed(worker.hears(server(1), m.Applied([(0, 4, 8, 2)]))) == ["push w"]


def test_a_server_that_is_away_is_not_told_of_the_end_of_a_key():
    """There is no session with it; with the others there is."""
    worker = asynchronous()
    worker.hears(SCHEDULER, GONE)
    told = [(send.peer, send.message) for send in worker.membership.release(0, "w")]
    assert told == [(server(1), m.Drop(0))]


def test_a_value_of_a_server_that_is_away_is_pulled_when_it_is_back():
    """It is told first how far this client has counted, and its optimizer; the push is not repeated."""
    worker = asynchronous()
    worker.membership.note_optimizer(0, {"name": "sgd"})
    worker.submit(Kind.PUSHPULL, "w")
    worker.flush()
    worker.hears(SCHEDULER, GONE)
    assert worker.hears(server(1), m.Values([(0, 4, 8, 1)], shared=False), ["value"])[1:] == []
    back = sent(worker.membership.server_back(server(0)))
    key = m.Create(KeySpec(0, "w", (8,), "float32"), "async", 0, (0, 4), [(0, 4)], seed=True)
    assert back == [
        (server(0), m.SetOptimizer(0, 0, {"name": "sgd"}, first=True)),
        (server(0), m.Resume([(key, 1)])),
        (server(0), m.Pull([(0, 0, 4, 1)])),
    ]
    assert worker.membership.server_back(server(0)) == []
    assert worker.flush() == []
    out = worker.hears(server(0), m.Values([(0, 0, 4, 1)], shared=False), ["value"])
    assert completed(out) == ["pushpull w"]
    worker.submit(Kind.PUSHPULL, "w")
    assert {peer for peer, _ in sent(worker.flush(), m.Push)} == {server(0), server(1)}


def test_an_operation_passes_a_server_by_that_was_away_in_the_middle_of_it():
    """The slice that is reduced after it has come back is pulled, because another of the same was lost."""
    worker = leader(servers=1, mode="async").init("w", size=8)
    worker.submit(Kind.PUSHPULL, "w")
    (collect,) = only(Collect, worker.flush())
    worker.state.collected(collect._replace(last=1), 0.0)
    worker.flush()
    worker.hears(SCHEDULER, GONE)
    worker.membership.server_back(server(0))
    out = worker.state.collected(collect._replace(first=1), 0.0) + worker.flush()
    assert sent(out) == [(server(0), m.Pull([(0, 4, 8, 1)]))]


def test_an_exchange_of_parameters_is_skipped():
    """It ends at once; what was pushed is in the buffer, and the other server's part is exchanged."""
    worker = asynchronous()
    worker.state.keys.take_terms(0, EXCHANGE)
    worker.submit(Kind.PUSHPULL, "w")
    worker.flush()
    assert only(Complete, worker.hears(SCHEDULER, GONE)) == []
    out = worker.hears(server(1), m.Values([(0, 4, 8, 1)], shared=False), ["value"])
    (complete,) = only(Complete, out)
    assert isinstance(complete.error, SkippedError)
    assert "'w'" in str(complete.error)
    assert worker.state.error is None


def test_all_ranks_of_a_client_skip_together():
    """The leader announces what was pushed instead of the value; all complete with the same outcome."""
    worker = leader(servers=1, mode="async").init("w", size=4)
    worker.state.keys.take_terms(0, EXCHANGE)
    worker.hears(SCHEDULER, GONE)
    worker.submit(Kind.PUSHPULL, "w")
    (collect,) = only(Collect, worker.flush())
    worker.state.collected(collect, 0.0)
    out = worker.flush()
    ((_, announce),) = sent(out, m.Announce)
    assert [entry[0] for entry in announce.entries] == [Collective.SKIP]
    (skip,) = only(Collect, out)
    (complete,) = only(Complete, worker.state.collected(skip, 0.0))
    assert isinstance(complete.error, SkippedError)
    other = member(servers=1, mode="async")
    other.declare("w", 4)
    other.placed("w", 0, [(0, 0, 4)])
    (collect,) = only(Collect, other.announced((Collective.BROADCAST, 0, 0, 0, 1)))
    other.state.collected(collect, 0.0)
    other.submit(Kind.PUSHPULL, "w")
    for code in (Collective.REDUCE_SHARE, Collective.SKIP):
        (collect,) = only(Collect, other.announced((code, 0, 1, 0, 1)))
        out = other.state.collected(collect, 0.0)
    (complete,) = only(Complete, out)
    assert isinstance(complete.error, SkippedError)


def test_rank_0_creates_a_key_again_on_a_server_that_has_lost_it():
    """As a whole, also what had been acknowledged; the other server has its part."""
    worker = Worker(servers=2, mode="async")
    worker.declare("w", 16)
    creates = sent(worker.placed("w", 0, [(0, 0, 8), (1, 8, 16)]), m.Create)
    worker.hears(server(0), m.Applied([(0, 0, 4, 0)]))
    worker.hears(SCHEDULER, GONE)
    again = sent(worker.membership.server_back(server(0)), m.Create)
    assert again == [create for create in creates if create[0] == server(0)]
    assert completed(worker.hears(server(0), m.Applied([(0, 0, 8, 0)]))) == []
    assert completed(worker.hears(server(1), m.Applied([(0, 8, 16, 0)]))) == ["init w"]


def test_a_server_that_has_lost_a_key_is_given_a_copy():
    """Where one was kept; without one, nobody has the value any more, and that is an error."""
    worker = asynchronous()
    worker.state.keys.by_name[0, "w"].kept = bytearray(range(32))
    ((peer, create),) = sent(worker.hears(server(1), m.Missing([0])), m.Create)
    assert (peer, create.shard, create.seed) == (server(1), (4, 8), True)
    for options in ({}, {"snapshot_dir": "s"}):
        error = the_error(asynchronous(**options).hears(server(1), m.Missing([0])))
        assert isinstance(error, PeerLostError)
        assert "'w'" in str(error)
        assert ("give --snapshot-dir" in str(error)) == (not options)


def test_requests_are_repeated_to_a_server_that_is_back():
    """It has forgotten them; while it is away nothing is sent."""
    worker = asynchronous()
    ask = Send(server(0), m.GetStates(1, 0))
    assert worker.membership.request(1, [ask]) == [ask]
    worker.hears(SCHEDULER, GONE)
    late = Send(server(0), m.GetStates(2, 0))
    assert worker.membership.request(2, [late]) == []
    assert only(Send, worker.membership.server_back(server(0)))[-2:] == [ask, late]


@pytest.mark.parametrize("closes", ["before", "while it is away", "never"])
@pytest.mark.parametrize(("rank", "ranks"), [(0, 2), (1, 2), (0, 1)])
def test_a_server_that_is_back_hears_that_rank_0_has_finished(rank, ranks, closes):
    """Who waits at it for rank 0's optimizer, and keeps that from leaving, would do so to the deadline."""
    worker = Worker(rank, workers=ranks, servers=2, mode="async")
    if closes == "before":
        worker.membership.close()
    worker.hears(SCHEDULER, GONE)
    if closes == "while it is away":
        assert server(0) not in {peer for peer, _ in sent(worker.membership.close())}
    told = sent(worker.membership.server_back(server(0)), m.Finished)
    assert told == ([(server(0), m.Finished())] if (rank, ranks) == (0, 2) and closes != "never" else [])


@pytest.mark.parametrize("gone", [GONE, m.PeerGone("server0", "is dead", orderly=False)])
def test_a_synchronous_worker_needs_its_servers(gone):
    """And an asynchronous one those that do not come back."""
    worker = Worker(mode="async" if not gone.returns else "sync").init("w")
    assert isinstance(the_error(worker.hears(SCHEDULER, gone)), PeerLostError)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_is_told_to_end_has_not_finished(rank):
    """Its client would take it for one with fewer batches than theirs."""
    worker = Worker(rank=rank, workers=2).init("w")
    worker.membership.interrupt("has been told to end")
    assert worker.membership.close() == []


def test_a_worker_that_is_told_to_end_says_so_and_does_not_complain():
    """Its operations end with an error, which is no news for the log. The others do not complain either."""
    worker = Worker().init("w")
    told = worker.membership.interrupt("has been told to end")
    assert Send(SCHEDULER, m.Interrupted("has been told to end")) in told
    assert isinstance(the_error(told), ToldToEndError)
    for asked in (True, False):
        gone = m.PeerGone("worker1", "client1.0 is gone", orderly=False, asked=asked)
        error = the_error(Worker(clients=2, workers=2).init("w").hears(SCHEDULER, gone))
        assert isinstance(error, ToldToEndError) is asked


@pytest.mark.parametrize(("coding", "num_bytes"), [(0, 16), (8, 8)])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_value_of_another_size_ends_the_worker_with_what_came(coding, num_bytes, more):
    """All of the answer is left: what it would have ended ends with the error."""
    worker, ended = Worker().init("w", size=8), []
    worker.state.submit(0, "w", Operation(Kind.PUSHPULL, 0, ended.append), 0.0)
    answer = m.Values([(0, 0, 4, 1), (0, 4, 8, 1)], shared=False, coding=coding)
    worker.io._hand_over(server(), answer, [bytes(num_bytes), bytes(num_bytes + more)], 0.0)
    assert [type(error) for error in ended] == [MismatchError]
    assert f"{num_bytes + more} " in str(ended[0])
