"""A worker's decisions, message by message; buffers and callbacks are strings here."""

from __future__ import annotations

import logging

import pytest

from kvstore_mpi.errors import (
    DeadlineError,
    InternalError,
    MismatchError,
    PeerLostError,
    SkippedError,
    UsageError,
)
from kvstore_mpi.records import SCHEDULER, KeySpec, Mode, NodeId, Role, Slice, StoreTerms, Topology
from kvstore_mpi.scheduler.state import SchedulerState
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send
from kvstore_mpi.worker import key_creation
from kvstore_mpi.worker import state as ws
from kvstore_mpi.worker.records import (
    Collect,
    Collective,
    Complete,
    Disconnect,
    Failed,
    Keep,
    Kind,
    Resolve,
    Write,
)

SLICE = 4
STEP = 600.0


def node(rank):
    return NodeId(Role.WORKER, rank)


def server(index=0):
    return NodeId(Role.SERVER, index)


class Raw(str):
    """The bytes of a buffer of float32; a part of them says which elements it has."""

    __slots__ = ()

    def __getitem__(self, part):
        return f"{self}[{part.start // 4}:{part.stop // 4}]"


class Worker:
    """A worker with keys that have been initialised; operations are named by what they are."""

    def __init__(self, rank=0, *, clients=1, workers=1, servers=1, mode="sync", **options):
        self.topology = Topology(clients, workers, servers)
        self.coordinator = SCHEDULER if servers else node(0)
        self.state = ws.WorkerState(
            self.topology,
            rank,
            coordinator=self.coordinator,
            slice_elements=SLICE,
            step_timeout=STEP,
            place=lambda _buffer: None,
            **options,
        )
        self.state.keys.open_store(0, Mode(mode))
        self.mode = mode

    def submit(self, kind, key, priority=0, now=0.0, source=None):
        done = f"{kind.value} {key}"
        return self.state.submit(0, key, ws.Operation(kind, priority, done, source), now)

    def declare(self, key, size=6):
        self.state.keys.add(KeySpec(0, key, (size,), "float32"), key, Raw(key), 4)
        return self.submit(Kind.INIT, key)

    def flush(self):
        return self.state.flush(0.0, lambda _peer: 0)

    def hears(self, sender, message, payloads=(), now=0.0):
        return self.state.received(sender, message, list(payloads), now)

    def placed(self, key, key_id, shards):
        return self.hears(self.coordinator, m.Placed(0, key, key_id, shards))

    def init(self, key, key_id=0, size=6, shards=None):
        """Initialise a key, and answer as servers and the rest of the client would."""
        self.declare(key, size)
        out = self.placed(key, key_id, [(0, 0, size)] if shards is None else shards) + self.flush()
        if not self.topology.num_servers and self.topology.client_size > 1:
            if not self.leads:
                (collect,) = self.announced((Collective.BROADCAST, key_id, 0, 0, len(self.slices(key))))
            else:
                (collect,) = only(Collect, out)
            out = self.state.collected(collect, 0.0)
        else:
            for send in only(Send, out):
                out = self.answer(send)
            for collect in only(Collect, self.flush() if self.leads else []):
                out = self.state.collected(collect, 0.0)
        assert Complete(f"init {key}") in out or not self.topology.num_servers
        return self

    def slices(self, key):
        return self.state.keys[0, key].slices

    @property
    def leads(self):
        return self.state._leads

    def answer(self, send):
        """Answer a message as a server would at once."""
        message = send.message
        if isinstance(message, m.Create):
            return self.hears(
                send.peer, m.Applied([(message.key_id, lo, hi, 0) for lo, hi in message.runs])
            )
        entries = [entry[:4] for entry in message.entries]
        if isinstance(message, m.Push) and not message.entries[0][4]:
            return self.hears(send.peer, m.Applied(entries))
        return self.hears(send.peer, m.Values(entries, shared=False), [f"value@{e[1]}" for e in entries])

    def announced(self, *entries):
        leader = self.topology.leader_of(self.state._client)
        return self.hears(leader, m.Announce([(int(code), *rest, 1) for code, *rest in entries]))


def member(**shape):
    """Rank 1 of a client of two."""
    return Worker(1, workers=2, **shape)


def leader(**shape):
    """Rank 0 of a client of two."""
    return Worker(0, workers=2, **shape)


def only(kind, instructions):
    return [i for i in instructions if isinstance(i, kind)]


def sent(instructions, kind=m.Message):
    return [(s.peer, s.message) for s in only(Send, instructions) if isinstance(s.message, kind)]


def completed(instructions):
    return [i.done for i in only(Complete, instructions) if i.error is None]


def the_error(instructions):
    (failed,) = only(Failed, instructions)
    return failed.error


# --- alone with servers ---


def test_rank_0_gives_the_servers_their_values():
    """Its buffer is in use until every slice has arrived: only then the operation is over."""
    worker = Worker(servers=2)
    assert sent(worker.declare("w", 10)) == [
        (SCHEDULER, m.Declare(0, "sync", "w", (10,), "float32", False))
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
    key = worker.state.keys[0, "w"]
    assert out == [Write("w[0:6]", "new"), Keep(key), Complete("pushpull w")]


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
    head, other = leader(all_push=True).init("w"), member(all_push=True).init("w")
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
    worker = member(all_push=True).init("w")
    worker.submit(Kind.PUSH, "w")
    for job in worker.announced((Collective.REDUCE, 0, 1, 0, 2)):
        worker.state.collected(job, 0.0)
    (push,) = worker.flush()
    assert only(Failed, worker.hears(node(0), m.Leave())) == []
    assert completed(worker.answer(push)) == ["push w"]
    worker.state.close(0.0)
    assert not worker.state.may_end
    worker.hears(node(0), m.Released())
    assert worker.state.may_end


def test_the_leader_releases_its_members_when_all_have_finished():
    """Nobody may be missed by the servers while another rank of its client still pushes."""
    worker = leader(all_push=True).init("w")
    assert sent(worker.state.close(0.0)) == [(node(1), m.Leave())]
    assert not worker.state.may_end
    assert sent(worker.hears(node(1), m.Leave())) == [(node(1), m.Released())]
    assert worker.state.may_end


def test_new_numbers_of_an_optimizer_reach_all_servers_before_anybody_pushes():
    """The pushes of other ranks would overtake the message."""
    worker = leader(all_push=True, servers=2).init("w", size=8, shards=[(0, 0, 4), (1, 4, 8)])
    told = worker.state.set_hyper(0, {"lr": 0.5})
    assert sent(told) == [(server(i), m.SetHyper(0, {"lr": 0.5}, confirm=True)) for i in range(2)]
    worker.submit(Kind.PUSH, "w")
    worker.hears(server(0), m.HyperSet())
    assert worker.flush() == []
    worker.hears(server(1), m.HyperSet())
    assert len(only(Collect, worker.flush())) == 1


# --- the other members of a client ---


def test_a_member_follows_the_announced_order_and_waits_for_its_own_program():
    """Nothing overtakes an announced operation that this rank has not called yet."""
    worker = member().init("a").init("b", key_id=1)
    assert worker.submit(Kind.PUSH, "b") == []
    entries = [(Collective.REDUCE, 0, 1, 0, 2), (Collective.REDUCE, 1, 1, 0, 2)]
    assert worker.announced(*entries) == []
    out = worker.submit(Kind.PUSH, "a")
    assert [c.key.spec.key for c in only(Collect, out)] == ["a", "b"]
    assert completed(worker.state.collected(out[0], 0.0)) == ["push a"]


def test_a_member_waits_while_its_earlier_operation_is_under_way():
    """The leader may be one push ahead."""
    worker = member().init("w")
    worker.submit(Kind.PUSH, "w")
    worker.submit(Kind.PUSH, "w")
    (first,) = worker.announced((Collective.REDUCE, 0, 1, 0, 2))
    assert worker.announced((Collective.REDUCE, 0, 2, 0, 2)) == []
    done, second = worker.state.collected(first, 0.0)
    assert done == Complete("push w")
    assert second.operation is Collective.REDUCE


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
    assert sent(worker.declare("w")) == [(node(0), m.Declare(0, "sync", "w", (6,), "float32", False))]
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


# --- requests ---


def test_a_request_is_answered_once():
    """Repeated or foreign answers change nothing."""
    worker = Worker()
    worker.state.request(3)
    assert worker.hears(server(), m.Ok(3)) == [Resolve(3)]
    assert worker.hears(server(), m.Ok(3)) == []
    worker.state.request(-2)
    assert worker.hears(SCHEDULER, m.BarrierRelease(1)) == []
    assert worker.hears(SCHEDULER, m.BarrierRelease(2)) == [Resolve(-2)]


def test_a_refused_request_fails_alone():
    """An unknown optimizer is the caller's problem; the training may go on."""
    worker = Worker()
    worker.state.request(3)
    (resolve,) = worker.hears(server(), m.Failure("UsageError", "no such optimizer", request=3))
    assert isinstance(resolve.error, UsageError)
    assert "no such optimizer" in str(resolve.error)
    assert "server0" in str(resolve.error)
    assert worker.state.error is None


def test_states_are_gathered_until_the_last_message():
    """Large states come in several."""
    worker = Worker().init("w")
    worker.state.request(4)
    piece = m.StatePiece(0, 0, 4, 1, 0, 1, 0, 4, "float32")
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
    worker.state.request(1)
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


# --- the end ---


def test_a_client_of_one_may_end_at_once():
    """It tells the scheduler last of all."""
    worker = Worker()
    assert worker.state.close(0.0) == []
    assert worker.state.may_end
    assert worker.state.leave() == [Send(SCHEDULER, m.Leave())]


def test_members_of_a_client_end_together():
    """The leader waits for all, the others for the leader."""
    worker = Worker(0, workers=3)
    assert sent(worker.state.close(0.0)) == [(node(1), m.Leave()), (node(2), m.Leave())]
    worker.hears(node(1), m.Leave())
    assert not worker.state.may_end
    worker.hears(node(2), m.Leave())
    assert worker.state.may_end
    follower = member()
    assert sent(follower.state.close(0.0)) == [(node(0), m.Leave())]
    follower.hears(node(0), m.Leave())
    assert follower.state.may_end


def test_a_finished_member_that_is_still_needed_says_so():
    """The leader has another batch: unequal numbers, named by key."""
    worker = member().init("w")
    worker.state.close(0.0)
    error = the_error(worker.announced((Collective.REDUCE, 0, 1, 0, 2)))
    assert isinstance(error, MismatchError)
    for part in ("client0.1", "'w'", "unequal numbers of batches"):
        assert part in str(error)


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
    key = worker.state.keys[0, "w"]
    assert [key.indices(piece.lo, piece.hi) for _, piece in key.slices] == [
        range(i, i + 1) for i in range(5)
    ]
    assert key.indices(4, 19) == range(1, 5)
    assert key.slices[-1][1] == Slice(0, 16, 19)


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
        declared = m.Declare(0 if mode == "sync" else 1, mode, key, (size,), "float32", whole=False)
        (send,) = state.handle(node(0), declared, 0.0)
        return send.message.shards

    assert placed("client", "own", 100) == [(0, 0, 100)]
    assert placed("sync", "a", 4) == [(0, 0, 4)]
    assert placed("sync", "b", 4) == [(1, 0, 4)]


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


def test_a_value_of_a_server_that_is_away_is_pulled_when_it_is_back():
    """It is told first how far this client has counted, and its optimizer; the push is not repeated."""
    worker = asynchronous()
    worker.state.note_optimizer(0, {"name": "sgd"})
    worker.submit(Kind.PUSHPULL, "w")
    worker.flush()
    worker.hears(SCHEDULER, GONE)
    assert worker.hears(server(1), m.Values([(0, 4, 8, 1)], shared=False), ["value"])[1:] == []
    back = sent(worker.state.server_back(server(0)))
    assert back == [
        (server(0), m.SetOptimizer(0, 0, {"name": "sgd"}, first=True)),
        (server(0), m.Resume([(0, 1)])),
        (server(0), m.Pull([(0, 0, 4, 1)])),
    ]
    assert worker.state.server_back(server(0)) == []
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
    worker.state.server_back(server(0))
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
    """The leader announces what was pushed in place of the value; all complete with the same outcome."""
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
    again = sent(worker.state.server_back(server(0)), m.Create)
    assert again == [create for create in creates if create[0] == server(0)]
    assert completed(worker.hears(server(0), m.Applied([(0, 0, 8, 0)]))) == []
    assert completed(worker.hears(server(1), m.Applied([(0, 8, 16, 0)]))) == ["init w"]


def test_a_server_that_has_lost_a_key_is_given_a_copy():
    """Where one was kept; without one, nobody has the value any more, and that is an error."""
    worker = asynchronous()
    worker.state.keys[0, "w"].kept = bytearray(range(32))
    ((peer, create),) = sent(worker.hears(server(1), m.Missing([0])), m.Create)
    assert (peer, create.shard, create.seed) == (server(1), (4, 8), True)
    worker = asynchronous()
    error = the_error(worker.hears(server(1), m.Missing([0])))
    assert isinstance(error, PeerLostError)
    assert "'w'" in str(error)


def test_requests_are_repeated_to_a_server_that_is_back():
    """It has forgotten them; while it is away nothing is sent."""
    worker = asynchronous()
    ask = Send(server(0), m.GetStates(1, 0))
    assert worker.state.request(1, [ask]) == [ask]
    worker.hears(SCHEDULER, GONE)
    late = Send(server(0), m.GetStates(2, 0))
    assert worker.state.request(2, [late]) == []
    assert only(Send, worker.state.server_back(server(0)))[-2:] == [ask, late]


@pytest.mark.parametrize("gone", [GONE, m.PeerGone("server0", "is dead", orderly=False)])
def test_a_synchronous_worker_needs_its_servers(gone):
    """And an asynchronous one those that do not come back."""
    worker = Worker(mode="async" if not gone.returns else "sync").init("w")
    assert isinstance(the_error(worker.hears(SCHEDULER, gone)), PeerLostError)
