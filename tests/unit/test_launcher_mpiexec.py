"""What the launcher does about an mpiexec that stays when its ranks have ended or failed."""

from __future__ import annotations

import math

from support.launcher_history import GRACE, KILL, TERM, History

from mpilaunch.events import Exited, Send, Start
from mpilaunch.outcome.root_cause import Reason
from mpilaunch.stages import CLIENT_END_SECONDS, RANK_END_SECONDS, TERMINATE_SECONDS


def test_a_client_that_mpi_does_not_end_is_ended():
    """A failed rank whose exit handlers, or whose mpiexec, wait for the others; it may have had to save."""
    history = History()
    history.rank(0, 1, 3)
    assert history.policy.deadline == history.now + GRACE
    assert Send("client0", TERM) in history.wait()


def test_an_mpiexec_that_does_not_hear_is_killed():
    """It may be held: a client that is to be started again must not wait for it for ever."""
    history = History(max_restarts=1)
    history.lost(0, 1)
    assert history.wait() == [Send("client0", TERM)]
    assert history.policy.deadline == history.now + TERMINATE_SECONDS
    assert history.wait() == [Send("client0", KILL)]
    assert history(Exited("client0", 137))[-1] == Start("client0", 1)


def test_an_mpiexec_that_stays_after_its_ranks_is_killed_and_their_records_count():
    """Somebody holds it; all else goes on as if it had ended."""
    history = History()
    history.rank(0, 0, 0)
    assert history.policy.deadline == math.inf
    history.rank(0, 1, 0)
    history.gone(0, 0)
    history.gone(0, 1)
    assert history.policy.deadline == history.now + CLIENT_END_SECONDS
    told, sent = history.wait()
    assert sent == Send("client0", KILL)
    assert told.text.startswith(
        "all ranks of client0 have ended well, but the mpiexec of client0 does not answer"
    )
    assert history(Exited("client0", 137)) == []
    history.client_ends(1)
    for name in ("server0", "scheduler"):
        history(Exited(name, 0))
    assert (history.verdict.reason, history.verdict.code) == (Reason.SUCCESS, 0)


def test_processes_of_ranks_that_take_their_time_to_end_are_waited_for():
    """On a loaded host they need seconds after their records; the mpiexec has its own time after that."""
    history = History()
    history.rank(0, 0, 0)
    history.rank(0, 1, 0)
    over = history.now
    assert history.policy.deadline == over + RANK_END_SECONDS
    history.gone(0, 0, after=RANK_END_SECONDS - 2)
    assert history.policy.deadline == over + RANK_END_SECONDS
    history.gone(0, 1, after=1.0)
    assert history.policy.deadline == history.now + CLIENT_END_SECONDS
    assert history(Exited("client0", 0)) == []
    assert history.policy.deadline == math.inf


def test_ranks_whose_ends_nobody_sees_or_that_do_not_end_do_not_keep_a_job_for_ever():
    """They may be on other hosts, or wait in MPI_Finalize for an mpiexec that is held."""
    history = History()
    history.rank(0, 0, 0)
    history.rank(0, 1, 0)
    history.gone(0, 0)
    assert history.wait()[-1] == Send("client0", KILL)


def test_the_ends_of_an_earlier_run_of_a_client_count_for_nothing():
    """Its processes may end after the next ones have begun."""
    history = History(max_restarts=1)
    history.lost(0, 1)
    history.wait()
    history.wait()
    history(Exited("client0", 137))
    history.rank(0, 0, 0, incarnation=1)
    history.rank(0, 1, 0, incarnation=1)
    over = history.now
    history.gone(0, 0)
    history.gone(0, 1)
    assert history.policy.deadline == over + RANK_END_SECONDS
