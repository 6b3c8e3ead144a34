"""Membership, barriers and departures, message by message."""

from __future__ import annotations

import logging
import re

import pytest
from support.scheduler_job import (
    HELLO,
    TIMEOUT,
    Job,
    sent,
    server,
    the_failure,
    worker,
)

from kvstore_mpi.errors import DeadlineError, MismatchError, PeerLostError
from kvstore_mpi.records import SCHEDULER
from kvstore_mpi.scheduler.status import Awaited
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Stop

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
    assert re.search("client2.* has not joined yet, .* --start-with 2$", gone[server(0)].reason)
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


def test_of_many_that_have_not_joined_the_first_are_named():
    """Each of thousands of processes may get the text."""
    job = Job(100, 100, 1, join=False)
    for node in (worker(0), server(0)):
        job.says(node, HELLO)
    *_, stop = job.state.tick(TIMEOUT + 1)
    assert "client1.0, client2.0, " in str(stop.error)
    assert "client20.0, and 79 more. Did they start" in str(stop.error)


def test_who_may_wait_for_another_rank_of_its_client_is_not_named_as_missing():
    """Ranks of a client meet in MPI before they join; one without the rest of its client is known."""
    job = Job(3, 6, 1, join=False)
    for node in (worker(0), worker(1), worker(4), server(0)):
        job.says(node, HELLO)
    client = "client1 (at least one of its 2 ranks, for which the others wait)"
    *_, stop = job.state.tick(TIMEOUT + 1)
    assert f"missing: {client}, client2.1. Did they start" in str(stop.error)
    (wait,) = Awaited(job.state, job.topology, 0.0, join=TIMEOUT).waits(TIMEOUT, 1.0)
    assert wait.text == f"the job begins when all have joined; missing: {client}, client2.1"


def test_all_are_told_whom_they_need_once_everybody_has_joined():
    """Nobody connects to anybody before; workers need the servers and their leader, servers nobody."""
    job = Job(2, 4, 2, join=False)
    for node in (worker(0), server(0), worker(1), worker(2), server(1)):
        assert job.says(node, HELLO) == []
    assert not job.state.roster.complete
    peers = sent(job.says(worker(3), HELLO), m.Peers)
    assert set(peers) == set(job.nodes)
    told = {node: set(each.addresses) for node, each in peers.items()}
    assert told[worker(0)] == told[worker(1)] == {"server0", "server1", "worker0"}
    assert told[worker(2)] == told[worker(3)] == {"server0", "server1", "worker2"}
    assert told[server(0)] == told[server(1)] == set()


def test_what_is_told_at_the_start_grows_with_the_job_and_not_with_its_square():
    """Each of many workers is told of as many processes as each of few."""
    for clients in (10, 100):
        job = Job(clients, 2 * clients, 3, join=False)
        for node in job.nodes[:-1]:
            job.says(node, HELLO)
        peers = sent(job.says(job.nodes[-1], HELLO), m.Peers)
        assert {len(each.addresses) for node, each in peers.items() if node in job.nodes[:-3]} == {4}


def test_a_process_that_the_job_does_not_have_is_told_so():
    """A second client 1, say, cannot take part."""
    peer, failure = the_failure(Job(join=False).says(worker(2), HELLO))
    assert peer == worker(2)
    assert failure.error == MismatchError.__name__
    assert "worker2" in failure.text


def test_who_has_not_joined_in_time_is_named():
    """The job ends, and the processes that have joined are told for which one it waited."""
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


# --- barriers ---


def test_a_barrier_opens_when_all_workers_have_come():
    """Barriers are told apart by their number."""
    job = Job()
    assert job.says(worker(0), m.BarrierArrive(1)) == []
    released = sent(job.says(worker(1), m.BarrierArrive(1)))
    assert released == {worker(0): m.BarrierRelease(1), worker(1): m.BarrierRelease(1)}
    assert job.says(worker(1), m.BarrierArrive(2)) == []


def test_the_first_at_a_barrier_is_announced_with_its_pushes():
    """To the workers who have not come, once: they must not push more often before they come."""
    job = Job(workers=4)
    told = sent(job.says(worker(2), m.BarrierArrive(1, (7, 5))))
    assert {node: awaits.pushes for node, awaits in told.items()} == {
        worker(0): (7, -1),
        worker(1): (7, -1),
        worker(3): (7, 5),
    }
    assert {awaits.number for awaits in told.values()} == {1}
    assert all("client1.0" in awaits.who for awaits in told.values())
    assert job.says(worker(3), m.BarrierArrive(1, (7, 5))) == []
    assert sent(Job(workers=4).says(worker(2), m.BarrierArrive(1))) == {}


def test_the_first_of_each_client_is_announced_to_the_others_of_it():
    """With its pushes that wait for nobody else; none is as good a number as any."""
    job = Job(workers=4)
    job.says(worker(2), m.BarrierArrive(1, (0, 5)))
    [(node, awaits)] = sent(job.says(worker(0), m.BarrierArrive(1, (0, 0)))).items()
    assert (node, awaits.pushes) == (worker(1), (-1, 0))
    assert "client0.0" in awaits.who


@pytest.mark.parametrize("over", [m.Leave(), m.Finished()])
@pytest.mark.parametrize("before", [True, False])
def test_a_barrier_that_can_never_open_is_an_error(before, over):
    """Somebody has finished, with or without its client, before or after the others came to the barrier."""
    job = Job(clients=1)
    out = job.says(worker(1), over) if not before else []
    out = job.says(worker(0), m.BarrierArrive(1))
    if before:
        assert out == []
        out = job.says(worker(1), over)
    failure = sent(out, m.Failure)[worker(0)]
    assert failure.error == MismatchError.__name__
    assert "client0.1 (host host7, pid 4711) has finished" in failure.text
    assert "barrier 1" in failure.text


def test_who_has_finished_before_its_client_is_still_there():
    """Servers are not told before it leaves, and the job goes on; a barrier that it has passed is open."""
    job = Job(clients=1)
    for rank in (0, 1):
        passed = sent(job.says(worker(rank), m.BarrierArrive(1)))
    assert sorted(passed) == [worker(0), worker(1)]
    assert job.says(worker(0), m.Finished()) == []
    assert sent(job.says(worker(1), m.BarrierArrive(1))) == {worker(1): m.BarrierRelease(1)}
    assert job.says(worker(1), m.Finished()) == []
    assert sent(job.says(worker(1), m.Leave()), m.PeerGone)[server(0)].orderly
    assert job.says(worker(0), m.Leave())[-1] == Stop()


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


def test_a_worker_that_never_comes_back_is_named_when_the_others_have_finished():
    """Its process may be frozen, and then nobody else sees that it has gone."""
    job = Job()
    news = job.state.silent(worker(1), 3.0, 5.0)
    assert not any(isinstance(each, Stop) for each in news)
    [stop] = [each for each in job.says(worker(0), m.Leave()) if isinstance(each, Stop)]
    assert isinstance(stop.error, PeerLostError)
    assert "client1.0" in str(stop.error)
    assert "has not been heard of for 3 s" in str(stop.error)
    assert "the others have finished without it" in str(stop.error)


def test_the_job_is_over_when_the_last_worker_leaves():
    """Servers are told to stop; before, a departure is only news, and only for them."""
    job = Job(servers=2)
    news = sent(job.says(worker(1), m.Leave()), m.PeerGone)
    assert set(news) == {server(0), server(1)}
    assert all(gone.orderly and gone.name == "worker1" for gone in news.values())
    out = job.says(worker(0), m.Leave())
    assert sent(out) == {server(0): m.Stop(), server(1): m.Stop()}
    assert out[-1] == Stop()
    assert job.says(worker(0), m.Leave()) == []


def test_a_worker_that_was_lost_for_a_while_is_waited_for():
    """The job is over when those that return have left, too, and not before."""
    job = Job(2, 2, 1)
    job.state.restarting("client1", 0, "SIGKILL", 2.0)
    assert not any(isinstance(each, Stop) for each in job.says(worker(0), m.Leave()))
    job.says(worker(1), m.Join([], "host7", 4712, 1))
    assert job.says(worker(1), m.Leave())[-1] == Stop()


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
