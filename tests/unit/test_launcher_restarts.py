"""What is started again, what is not, and whom the end of such a job names."""

import pytest
from support.launcher_history import TERM, USR1, History

from mpilaunch.events import (
    Exited,
    Inform,
    Interrupted,
    Send,
    Start,
    Tell,
)
from mpilaunch.outcome.report import remedy
from mpilaunch.outcome.root_cause import Reason

LOST = "host node1 is lost: Connection reset"


def restarted(actions, name, incarnation):
    """Check that scheduler and people are told, and the process is started again; return the words."""
    inform, tell, start = actions
    assert isinstance(tell, Tell)
    assert (inform.name, inform.incarnation) == (name, incarnation - 1)
    assert start == Start(name, incarnation)
    return tell.text


def test_a_client_that_fails_is_started_again():
    """Once its mpiexec has ended; the others hear nothing of it."""
    history = History(max_restarts=1)
    assert history.lost(0, 1) == []
    assert history.lost(0, 0) == []
    text = restarted(history(Exited("client0", 9, rank_codes=(137, 137))), "client0", 1)
    assert text == "restart 1 of at most 1: client0 after client0.1: SIGKILL (exit code 137)"
    history.lost(0, 0)  # late news of the old ranks
    for rank in range(2):
        history.rank(0, rank, 0, incarnation=1)
    history(Exited("client0", 0))
    history.client_ends(1)
    history(Exited("server0", 0))
    history(Exited("scheduler", 0))
    assert (history.verdict.reason, history.verdict.code) == (Reason.SUCCESS, 0)
    assert [(each.name, each.incarnation) for each in history.verdict.restarts] == [("client0", 1)]


@pytest.mark.parametrize("code", [64, 78])
def test_what_would_fail_again_is_not_started_again(code):
    """A server whose folder has another job's snapshots, or a rank that has called what there is not."""
    history = History(max_restarts=1)
    assert history(Exited("server0", code)) == [Send("client0", USR1), Send("client1", USR1)]
    assert history.verdict.restarts == ()


def test_restarts_are_for_all_processes_together():
    """The failure after the last one ends the job, under the name of that incarnation."""
    history = History(max_restarts=2)
    restarted(history(Exited("server0", 137)), "server0", 1)
    history.rank(0, 1, 3, error="ValueError")
    restarted(history(Exited("client0", 3)), "client0", 1)
    assert history.rank(0, 1, 3, error="ValueError", incarnation=1) == [Send("client1", USR1)]
    assert (history.verdict.code, history.verdict.cause.who) == (3, "client0.1~1")
    assert len(history.verdict.restarts) == 2


def test_a_restarted_client_that_mpi_does_not_end_is_ended_first():
    """It is waited for like any other."""
    history = History(max_restarts=1)
    assert history.rank(0, 1, 3) == []
    assert history.wait() == [Send("client0", TERM)]
    restarted(history(Exited("client0", 143)), "client0", 1)


def test_who_only_tells_of_others_is_not_started_again():
    """A synchronous job: one client is restarted, the other has lost it, and that ends the job."""
    history = History(max_restarts=2)
    history.lost(0, 1)
    restarted(history(Exited("client0", 9, rank_codes=(0, 137))), "client0", 1)
    told = history.rank(1, 0, 69, error="PeerLostError")
    assert told == [Send("client1", USR1), Send("client0", USR1)]  # its other rank is still saving
    history(Exited("client1", 69))
    assert (history.verdict.code, history.verdict.cause.who) == (137, "client0.1")


def test_a_server_that_only_tells_of_others_is_not_started_again():
    """It has lost somebody, and a new one would, too; the exit code says so."""
    history = History(max_restarts=1)
    assert history(Exited("server0", 69)) == [Send("client0", USR1), Send("client1", USR1)]
    assert history.verdict.restarts == ()


def test_whose_lease_has_expired_is_started_again():
    """It was stopped for too long, which nobody else has done."""
    history = History(max_restarts=1)
    history.rank(1, 0, 69, error="LeaseExpiredError")
    restarted(history(Exited("client1", 69)), "client1", 1)


def check_ends_with_its_host(history):
    """Check that a job has ended because a host is lost, and that no restart was spent on it."""
    verdict = history.verdict
    assert (verdict.code, verdict.cause.error, verdict.restarts) == (69, "HostLostError", ())
    assert "start the job again when the host is back" in remedy(verdict.cause)


def test_a_server_that_is_lost_with_its_host_is_not_started_again():
    """There is no host for it, and the job ends by the first such news."""
    history = History(max_restarts=3)
    told = history(Exited("server0", 69, host="node1", text=LOST))
    assert told == [Send("client0", USR1), Send("client1", USR1)]
    assert (history.verdict.cause.who, history.verdict.cause.text) == ("server0", LOST)
    check_ends_with_its_host(history)


def test_a_client_of_which_a_rank_is_lost_with_its_host_is_not_started_again():
    """Its other ranks have time to save, as without restarts."""
    history = History(max_restarts=3)
    for rank in range(2):
        history.meets(1, rank)
    assert history.rank(1, 1, 69, error="HostLostError") == [Send("client0", USR1), Send("client1", USR1)]
    check_ends_with_its_host(history)


def test_a_client_whose_ranks_cannot_be_started_on_a_lost_host_is_not_started_again():
    """Its mpiexec, which is here, has not reached the host, and says so in its own way."""
    history = History(max_restarts=3)
    assert history(Exited("client1", 255, text=LOST)) == [Send("client0", USR1)]
    assert history.verdict.cause.text == LOST
    check_ends_with_its_host(history)


def test_restarts_are_numbered_by_process_and_what_an_old_run_tells_is_void():
    """Another client's restart changes no number; a record may come when the next run has begun."""
    history = History(max_restarts=3)
    for client in range(2):
        history.rank(client, 0, 3)
        restarted(history(Exited(f"client{client}", 3)), f"client{client}", 1)
    assert history.rank(0, 1, 4) == []
    history.rank(0, 1, 5, incarnation=1)
    restarted(history(Exited("client0", 5)), "client0", 2)


@pytest.mark.parametrize("event", [Interrupted(TERM), Exited("scheduler", 137)])
def test_nobody_is_started_again_in_a_job_that_ends(event):
    """Signals of the user and the scheduler's death end the job, however many restarts are left."""
    history = History(max_restarts=5)
    assert Send("client0", USR1) in history(event)
    history.rank(0, 1, 3)
    assert not any(isinstance(action, (Start, Inform)) for action in history(Exited("client0", 3)))


def test_nobody_is_started_again_when_the_scheduler_has_ended():
    """All workers have left; a crash at the very end cannot be made good."""
    history = History(max_restarts=5)
    history.client_ends(0)
    history(Exited("scheduler", 0))
    for rank in range(2):
        history.rank(1, rank, 0)
    history(Exited("client1", 139))
    assert history.verdict.code == 139


def test_a_client_that_is_just_starting_may_die_of_the_request_to_save():
    """It has nothing to save yet, and has not failed."""
    history = History(max_restarts=2)
    history.lost(0, 1)
    restarted(history(Exited("client0", 9, rank_codes=(0, 137))), "client0", 1)
    told = history.rank(1, 0, 69, error="PeerLostError")
    assert Send("client0", USR1) in told
    history(Exited("client1", 69))
    history(Exited("client0", 10, rank_codes=(138, 138)))
    assert (history.verdict.code, history.verdict.cause.who) == (137, "client0.1")
