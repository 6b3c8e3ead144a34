"""Clients and servers that are started again, and those that were silent for too long."""

from __future__ import annotations

import pytest
from support.scheduler_job import (
    TIMEOUT,
    Job,
    again,
    asynchronous_job,
    declare,
    sent,
    server,
    the_failure,
    worker,
)

from kvstore_mpi.errors import LeaseExpiredError
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Stop


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


def test_news_of_a_death_say_of_which_run():
    """The next may have connected to a server before they come there."""
    job = asynchronous_job(clients=2, workers=4)
    told = [sent(job.state.restarting("client1", 0, "SIGKILL", 5.0), m.PeerGone)]
    for rank in (2, 3):
        job.says(worker(rank), again())
    told.append(sent(job.says(worker(2), m.Leave()), m.PeerGone))
    told.append(sent(job.state.lost(worker(3), "has died", 6.0), m.PeerGone))
    assert [gone[server(0)].incarnation for gone in told] == [0, 1, 1]


def test_a_run_that_is_over_cannot_join():
    """For example one that was silent for too long, wakes up, and tries."""
    job = asynchronous_job()
    job.says(worker(1), again(2))
    peer, failure = the_failure(job.says(worker(1), again(1)))
    assert (peer, failure.error) == (worker(1), LeaseExpiredError.__name__)


def test_a_restarted_client_has_not_finished():
    """Though a rank of its former run had: all come to its barriers."""
    job = asynchronous_job(clients=2, workers=4)
    job.says(worker(3), m.Finished())
    job.state.restarting("client1", 0, "SIGKILL", 5.0)
    for rank in (2, 3):
        job.says(worker(rank), again())
    told = [sent(job.says(worker(rank), m.BarrierArrive(1))) for rank in (2, 3, 0, 1)]
    assert told[:3] == [{}, {}, {}]
    assert told[3] == {worker(rank): m.BarrierRelease(1) for rank in range(4)}


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


def test_a_worker_that_was_given_up_and_comes_back_is_waited_for():
    """It was silent for too long, and the launcher has started it again: the job is not over without it."""
    job = Job(2, 2, 1)
    job.state.silent(worker(1), 5.0, 1.0)
    job.says(worker(1), again(1))
    assert not any(isinstance(each, Stop) for each in job.says(worker(0), m.Leave()))
    assert job.says(worker(1), m.Leave())[-1] == Stop()


def test_a_worker_that_was_given_up_may_still_be_on_its_way_when_the_others_finish():
    """The launcher has said that it is started again; it goes on alone, however long its start takes."""
    job = asynchronous_job()
    job.state.silent(worker(1), 5.0, 1.0)
    assert job.state.restarting("client1", 0, "SIGKILL", 2.0) == []
    assert not any(isinstance(each, Stop) for each in job.says(worker(0), m.Leave()))
    job.says(worker(1), again(1))
    assert job.says(worker(1), m.Leave())[-1] == Stop()
