"""Membership, agreement on keys, barriers and departures, message by message."""

from __future__ import annotations

import logging

import pytest

from kvstore_mpi.errors import DeadlineError, LeaseExpiredError, MismatchError, PeerLostError
from kvstore_mpi.records import SCHEDULER, NodeId, Role, Topology
from kvstore_mpi.scheduler.state import SchedulerState
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send, Stop

TIMEOUT = 60.0
HELLO = m.Join(["memory://0"], "host7", 4711)


def worker(rank):
    return NodeId(Role.WORKER, rank)


def server(index):
    return NodeId(Role.SERVER, index)


def declare(key="w", *, shape=(3, 4), dtype="float32", mode="sync", store=0, whole=False, quorum=False):
    return m.Declare(store, mode, key, shape, dtype, whole, quorum)


class Job:
    """A scheduler to which everybody of the topology has come, unless told otherwise."""

    def __init__(self, clients=2, workers=2, servers=1, *, join=True, start_with=0):
        self.topology = Topology(clients, workers, servers)
        self.state = SchedulerState(
            self.topology, slice_elements=5, connect_timeout=TIMEOUT, now=0.0, start_with=start_with
        )
        self.nodes = [worker(rank) for rank in range(workers)] + [server(index) for index in range(servers)]
        if join:
            for node in self.nodes:
                self.says(node, HELLO)

    def says(self, node, message, now=1.0):
        return self.state.handle(node, message, now)


def sent(instructions, kind=m.Message):
    return {i.peer: i.message for i in instructions if isinstance(i, Send) and isinstance(i.message, kind)}


def the_failure(instructions):
    (send,) = instructions
    assert isinstance(send.message, m.Failure)
    return send.peer, send.message


# --- membership ---


def test_who_is_told_to_end_is_no_error_of_the_job():
    """Whoever has told it says so to the user; the others hear why they must stop, and stay silent, too."""
    job = Job()
    told = job.says(worker(0), m.Interrupted("has been told to end"))
    assert [each.level for each in told if isinstance(each, Log)] == [logging.DEBUG]
    gone = sent(told, m.PeerGone)
    assert sorted(gone) == [server(0), worker(1)]
    assert all(each.asked for each in gone.values())
    assert not any(each.asked for each in sent(job.state.lost(worker(1), "died", 2.0), m.PeerGone).values())


def test_some_may_begin_without_the_others():
    """With client 0, a quorum of clients and all servers; who comes later is introduced then."""
    job = Job(3, 6, 1, join=False, start_with=2)
    for node in (worker(2), worker(3), worker(4), server(0), worker(0)):
        assert sent(job.says(node, HELLO), m.Peers) == {}
    told = job.says(worker(1), HELLO)
    begin = [worker(0), worker(1), worker(2), worker(3), server(0)]
    assert sorted(sent(told, m.Peers)) == sorted([*begin])
    gone = sent(told, m.PeerGone)
    assert sorted(gone) == sorted(begin)
    assert {(each.name, each.returns) for each in gone.values()} == {("worker4", True)}
    assert "client 2" in gone[server(0)].reason or "client2" in gone[server(0)].reason
    assert job.state.tick(TIMEOUT + 1) == []
    assert sorted(sent(job.says(worker(5), HELLO), m.Peers)) == [worker(4), worker(5)]


def test_nobody_begins_before_enough_clients_are_whole():
    """Client 0 and a part of client 1 are not two clients."""
    job = Job(3, 6, 1, join=False, start_with=2)
    for node in (server(0), worker(0), worker(1), worker(2), worker(4)):
        assert sent(job.says(node, HELLO)) == {}
    assert len(sent(job.says(worker(3), HELLO), m.Peers)) == 5


def test_nobody_begins_without_client_0():
    """It gives the keys their values."""
    job = Job(2, 2, 1, join=False, start_with=1)
    assert sent(job.says(server(0), HELLO)) == {}
    assert sent(job.says(worker(1), HELLO)) == {}
    told = sent(job.says(worker(0), HELLO), m.Peers)
    assert sorted(told) == sorted([worker(0), worker(1), server(0)])


def test_a_client_that_dies_before_it_has_come_is_not_waited_for():
    """The job ends when the others have finished."""
    job = Job(2, 2, 1, join=False, start_with=1)
    job.says(server(0), HELLO)
    job.says(worker(0), HELLO)
    gone = sent(job.state.lost(worker(1), "was killed", 2.0), m.PeerGone)
    assert not gone[server(0)].returns
    assert any(isinstance(each, Stop) for each in job.says(worker(0), m.Leave()))


def test_barriers_do_not_wait_for_a_client_that_is_late():
    """It is waited for once it has come to one."""
    job = Job(2, 2, 1, join=False, start_with=1)
    job.says(server(0), HELLO)
    job.says(worker(0), HELLO)
    assert sent(job.says(worker(0), m.BarrierArrive(1))) == {worker(0): m.BarrierRelease(1)}
    job.says(worker(1), HELLO)
    assert sent(job.says(worker(1), m.BarrierArrive(1))) == {worker(1): m.BarrierRelease(1)}
    assert sent(job.says(worker(1), m.BarrierArrive(2))) == {}
    assert len(sent(job.says(worker(0), m.BarrierArrive(2)))) == 2


def test_all_addresses_are_told_to_all_once_everybody_has_joined():
    """Nobody connects to anybody before."""
    job = Job(join=False)
    assert job.says(worker(0), HELLO) == []
    assert job.says(server(0), HELLO) == []
    assert not job.state.complete
    peers = sent(job.says(worker(1), HELLO), m.Peers)
    assert set(peers) == set(job.nodes)
    assert peers[worker(0)].addresses == {
        "worker0": ["memory://0"],
        "worker1": ["memory://0"],
        "server0": ["memory://0"],
    }


def test_a_process_that_the_job_does_not_have_is_told_so():
    """A second client 1, say, cannot take part."""
    peer, failure = the_failure(Job(join=False).says(worker(2), HELLO))
    assert peer == worker(2)
    assert failure.error == MismatchError.__name__
    assert "worker2" in failure.text


def test_who_has_not_joined_in_time_is_named():
    """The job ends, and those who have joined are told for whom it waited."""
    job = Job(join=False)
    job.says(worker(0), HELLO)
    assert job.state.tick(TIMEOUT) == []
    told, stop = job.state.tick(TIMEOUT + 1)
    assert told.peer == worker(0)
    assert isinstance(stop, Stop)
    assert isinstance(stop.error, DeadlineError)
    assert "client1.0" in str(stop.error)
    assert "server0" in str(stop.error)
    assert "client0.0" not in str(stop.error)


def test_only_messages_for_a_scheduler_are_accepted():
    """In pure MPI the rest goes to rank 0's worker."""
    state = Job().state
    assert state.accepts(HELLO)
    assert state.accepts(m.Leave())
    assert not state.accepts(m.Announce([]))


# --- keys ---


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


@pytest.mark.parametrize(
    ("change", "what"),
    [({"shape": (4, 3)}, "shape"), ({"dtype": "float64"}, "dtype"), ({"mode": "async"}, "mode")],
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
    for part in ("'w'", "client1.0", "client0.0", what, str(change[what]), str(getattr(declare(), what))):
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


@pytest.mark.parametrize("before", [True, False])
def test_a_key_that_rank_0_can_no_longer_declare_is_refused_at_once(before):
    """Rank 0 has finished without it."""
    job = Job()
    if before:
        job.says(worker(1), declare("extra"))
    out = job.says(worker(0), m.Leave())
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


# --- barriers ---


def test_a_barrier_opens_when_all_workers_have_come():
    """Barriers are told apart by their number."""
    job = Job()
    assert job.says(worker(0), m.BarrierArrive(1)) == []
    released = sent(job.says(worker(1), m.BarrierArrive(1)))
    assert released == {worker(0): m.BarrierRelease(1), worker(1): m.BarrierRelease(1)}
    assert job.says(worker(1), m.BarrierArrive(2)) == []


@pytest.mark.parametrize("before", [True, False])
def test_a_barrier_that_can_never_open_is_an_error(before):
    """Somebody has finished, before or after the others came to the barrier."""
    job = Job()
    out = job.says(worker(1), m.Leave()) if not before else []
    out = job.says(worker(0), m.BarrierArrive(1))
    if before:
        assert out == []
        out = job.says(worker(1), m.Leave())
    failure = sent(out, m.Failure)[worker(0)]
    assert failure.error == MismatchError.__name__
    assert "client1.0" in failure.text
    assert "barrier 1" in failure.text


@pytest.mark.parametrize("before", [True, False])
def test_a_barrier_does_not_wait_for_the_dead(before):
    """Whoever waits for a worker that has died is told so: no worker disagrees with another here."""
    job = Job()
    out = job.state.lost(worker(1), "is dead", 1.0) if not before else []
    arrived = job.says(worker(0), m.BarrierArrive(1))
    out = job.state.lost(worker(1), "is dead", 1.0) if before else arrived
    failure = sent(out, m.Failure)[worker(0)]
    assert failure.error == PeerLostError.__name__
    assert "client1.0" in failure.text


# --- departures ---


def test_the_job_is_over_when_the_last_worker_leaves():
    """Servers are told to stop; before, a departure is only news."""
    job = Job(servers=2)
    news = sent(job.says(worker(1), m.Leave()), m.PeerGone)
    assert set(news) == {worker(0), server(0), server(1)}
    assert all(gone.orderly and gone.name == "worker1" for gone in news.values())
    out = job.says(worker(0), m.Leave())
    assert sent(out) == {server(0): m.Stop(), server(1): m.Stop()}
    assert out[-1] == Stop()
    assert job.says(worker(0), m.Leave()) == []


def test_a_death_is_told_to_everybody_else_once():
    """With the name, host and process number by which people find its log."""
    job = Job()
    out = job.state.silent(worker(1), 5.0, 1.0)
    assert [entry.level for entry in out if isinstance(entry, Log)] == [logging.ERROR]
    news = sent(out, m.PeerGone)
    assert set(news) == {worker(0), server(0)}
    for part in ("client1.0", "host7", "4711", "5 s"):
        assert part in news[worker(0)].reason
    assert not news[worker(0)].orderly
    assert job.state.lost(worker(1), "again", 1.0) == []


def test_a_worker_that_has_left_is_not_missed():
    """Its silence is expected."""
    job = Job()
    job.says(worker(1), m.Leave())
    assert job.state.silent(worker(1), 9.0, 1.0) == []


def test_the_job_is_over_when_no_worker_is_left_alive():
    """Servers of a job whose workers have all died must not stay for ever."""
    job = Job()
    job.state.lost(worker(0), "is dead", 1.0)
    out = job.state.lost(worker(1), "is dead", 1.0)
    assert sent(out, m.Stop) == {server(0): m.Stop()}
    (stop,) = [entry for entry in out if isinstance(entry, Stop)]
    assert isinstance(stop.error, PeerLostError)
    assert "client1.0" in str(stop.error)


def test_a_rank_0_that_schedules_does_not_count_itself_as_elsewhere():
    """In pure MPI there are no servers to stop, and everybody's departure ends the job."""
    job = Job(clients=1, workers=2, servers=0)
    job.says(worker(1), m.Leave())
    assert job.says(worker(0), m.Leave()) == [Stop()]
    assert SCHEDULER not in job.nodes


# --- restarts ---


def again(life=1):
    return m.Join([f"memory://{life}"], "host8", 99, life)


def asynchronous_job(*, quorum=False, **shape):
    job = Job(**shape)
    job.says(worker(0), declare(mode="sync" if quorum else "async", quorum=quorum))
    return job


def test_a_restarted_client_is_introduced_when_all_its_ranks_are_there():
    """It meets the servers and its own leader; the other clients only learn that the old one has gone."""
    job = asynchronous_job(clients=2, workers=4)
    news = sent(job.state.restarting("client1", 0, "SIGKILL", 5.0), m.PeerGone)
    assert set(news) == {worker(0), worker(1), server(0)}
    assert all(gone.returns and not gone.orderly and gone.name == "worker2" for gone in news.values())
    assert job.state.restarting("client1", 0, "SIGKILL", 5.0) == []
    assert job.says(worker(3), again()) == []
    met = sent(job.says(worker(2), again()))
    assert set(met) == {worker(2), worker(3)}
    assert met[worker(3)].addresses["worker2"] == ["memory://1"]
    assert job.state.restarting("client1", 0, "late news", 6.0) == []


def test_a_restart_that_the_launcher_has_not_told_of_is_noticed():
    """The newcomer's own word is enough."""
    job = asynchronous_job()
    out = job.says(worker(1), again())
    assert sent(out, m.PeerGone)[worker(0)].returns
    assert worker(1) in sent(out, m.Peers)


def test_a_run_that_is_over_cannot_join():
    """For example one that was silent for too long, wakes up, and tries."""
    job = asynchronous_job()
    job.says(worker(1), again(2))
    peer, failure = the_failure(job.says(worker(1), again(1)))
    assert (peer, failure.error) == (worker(1), LeaseExpiredError.__name__)


def test_a_restarted_server_is_waited_for_and_its_address_told():
    """Workers learn its new address; a client that comes back meanwhile has to wait for it."""
    job = asynchronous_job(servers=2)
    job.state.restarting("server1", 0, "SIGKILL", 5.0)
    assert sent(job.says(worker(1), again()), m.Peers) == {}
    peers = sent(job.says(server(1), again()), m.Peers)
    assert peers[worker(0)].addresses == {"server1": ["memory://1"]}
    assert peers[worker(1)].addresses["server1"] == ["memory://1"]
    assert peers[worker(1)].addresses["server0"] == ["memory://0"]


def test_a_restarted_server_that_does_not_come_ends_the_job():
    """As at the start; a client that does not come back is the launcher's business."""
    job = asynchronous_job()
    job.state.restarting("client1", 0, "SIGKILL", 5.0)
    assert job.state.tick(100.0 + TIMEOUT) == []
    job.state.restarting("server0", 0, "SIGKILL", 200.0)
    assert job.state.tick(200.0 + TIMEOUT) == []
    stop = job.state.tick(201.0 + TIMEOUT)[-1]
    assert "server0" in str(stop.error)


def test_the_last_client_may_come_back():
    """A job whose only worker is being restarted is not over."""
    job = asynchronous_job(clients=1, workers=1)
    out = job.state.restarting("client0", 0, "SIGKILL", 5.0)
    assert not any(isinstance(each, Stop) for each in out)
    job.says(worker(0), again())
    assert job.says(worker(0), m.Leave())[-1] == Stop()


def test_a_restarted_rank_0_gets_its_keys_again():
    """Placement and numbers stay; a key that it had not declared yet is waited for."""
    job = asynchronous_job()
    job.says(worker(1), declare("b", mode="async"))
    job.state.restarting("client0", 0, "SIGKILL", 5.0)
    job.says(worker(0), again())
    assert sent(job.says(worker(0), declare(mode="async")))[worker(0)].key_id == 0
    assert set(sent(job.says(worker(0), declare("b", mode="async")), m.Placed)) == {worker(0), worker(1)}


@pytest.mark.parametrize("quorum", [False, True])
@pytest.mark.parametrize("returns", [True, False])
def test_who_needs_nobody_does_not_wait_for_the_lost_at_barriers(returns, quorum):
    """In async mode and with a quorum who waits is let through; barriers after that are without it."""
    job = asynchronous_job(clients=3, workers=3, quorum=quorum)
    job.says(worker(0), m.BarrierArrive(1))
    job.says(worker(1), m.BarrierArrive(1))
    if returns:
        out = job.state.restarting("client2", 0, "SIGKILL", 5.0)
    else:
        out = job.state.silent(worker(2), 30.0, 5.0)
    assert set(sent(out, m.BarrierRelease)) == {worker(0), worker(1)}
    job.says(worker(0), m.BarrierArrive(2))
    assert set(sent(job.says(worker(1), m.BarrierArrive(2)))) == {worker(0), worker(1)}


def test_a_newcomer_passes_barriers_that_are_passed_and_then_counts():
    """It runs its script from the start; the others wait for it once it has come as far as they."""
    job = asynchronous_job()
    for rank in range(2):
        job.says(worker(rank), m.BarrierArrive(1))
    job.says(worker(1), again())
    assert set(sent(job.says(worker(0), m.BarrierArrive(2)))) == {worker(0)}
    assert sent(job.says(worker(1), m.BarrierArrive(1))) == {worker(1): m.BarrierRelease(1)}
    assert sent(job.says(worker(1), m.BarrierArrive(2))) == {worker(1): m.BarrierRelease(2)}
    assert set(sent(job.says(worker(1), m.BarrierArrive(3)))) == set()
    assert set(sent(job.says(worker(0), m.BarrierArrive(3)))) == {worker(0), worker(1)}


def test_who_was_silent_for_too_long_learns_that_it_is_out():
    """It, and the rest of its client, which cannot go on without it."""
    job = asynchronous_job(clients=2, workers=4)
    failures = sent(job.state.silent(worker(2), 31.0, 5.0), m.Failure)
    assert {failures[worker(rank)].error for rank in (2, 3)} == {LeaseExpiredError.__name__}
