"""Servers that save when all is over, and cannot: the job has failed, however well its ranks have ended."""

from __future__ import annotations

import dataclasses

import pytest
from support.launcher_history import INT, KILL, SHAPE, TERM, USR1, History

from mpilaunch.events import Exited, Interrupted, Send
from mpilaunch.outcome.report import describe
from mpilaunch.outcome.root_cause import Reason
from mpilaunch.stages import Stage

TWO = dataclasses.replace(SHAPE, servers=("server0", "server1"))
BOTH = ["server0", "server1"]


@pytest.fixture
def trained():
    """A job with snapshots whose ranks have all ended well."""
    history = History(TWO, snapshots=True)
    history.client_ends(0)
    history.client_ends(1)
    assert history.policy.stage is Stage.FINISHING
    return history


def failures(history):
    """Return who has failed, and with which code."""
    return [(each.who, each.code) for each in history.verdict.failures]


def test_a_server_that_cannot_save_lets_the_others_save(trained):
    """Its code is that of the job when all have ended by themselves."""
    assert trained(Exited("server0", 73, 9)) == []
    assert trained.policy.stage is Stage.FINISHING
    assert trained(Exited("scheduler", 0)) == []
    trained(Exited("server1", 0))
    assert trained.policy.done
    assert (trained.verdict.reason, trained.verdict.code) == (Reason.FAILURE, 73)
    assert failures(trained) == [("server0", 73)]
    said = describe(trained.verdict, {"server0": ["NotSavedError: no space"]}, "logs", None)
    assert "server0 on here (pid 9) failed first: exit code 73" in said
    assert "NotSavedError: no space" in said
    assert "see that the folder of --snapshot-dir is there and has room" in said


@pytest.mark.parametrize("restarts", [0, 1])
def test_it_may_end_before_the_last_client(restarts):
    """Whose interpreters still end: nobody is told to save, and it is not started again."""
    history = History(TWO, snapshots=True, max_restarts=restarts)
    history.client_ends(0)
    assert history(Exited("server1", 73)) == []
    history.client_ends(1)
    history(Exited("server0", 0))
    history(Exited("scheduler", 0))
    assert failures(history) == [("server1", 73)]


def test_a_server_that_is_too_slow_has_lost_it_too(trained):
    """Without snapshots a server that hangs at its end is none of the user's business."""
    _, *sent = trained.wait()
    assert sent == [Send(name, TERM) for name in ("scheduler", *BOTH)]
    trained(Exited("scheduler", 143))
    trained(Exited("server0", 143))
    trained(Exited("server1", 0))
    assert failures(trained) == [("server0", 73)]
    assert trained.verdict.cause.text.endswith("its last snapshot was written: SIGTERM (exit code 143)")


@pytest.mark.parametrize(("code", "job"), [(0, 0), (73, 73)])
def test_servers_save_although_the_job_is_told_to_end_then(trained, code, job):
    """They have the grace for it from then on; a second Ctrl-C ends them."""
    assert trained(Interrupted(INT)) == [Send(name, USR1) for name in BOTH]
    trained(Exited("scheduler", 69))
    trained(Exited("server0", 0))
    trained(Exited("server1", code))
    assert (trained.policy.done, trained.verdict.code) == (True, job)


def test_who_interrupts_twice_has_lost_it(trained):
    """And is told so."""
    trained(Interrupted(INT))
    assert trained(Interrupted(INT)) == [Send(name, KILL) for name in ("scheduler", *BOTH)]
    trained(Exited("server0", 137))
    trained(Exited("server1", 0))
    trained(Exited("scheduler", 137))
    assert failures(trained) == [("server0", 73)]
    assert trained.verdict.code == 73


@pytest.mark.parametrize(
    ("exits", "code", "failed"),
    [
        ((0, 0), 75, []),
        ((0, 73), 73, ["server1"]),
        ((139, 0), 73, ["server0"]),
        ((0, 143), 75, []),  # which has only begun, and has nothing
    ],
)
def test_a_job_that_is_told_to_end_has_saved_only_if_its_servers_have(exits, code, failed):
    """Or a workload manager would start it again, and it would go on from what is older."""
    history = History(TWO, snapshots=True)
    history(Interrupted(TERM))
    for client in range(2):
        for rank in range(2):
            history.rank(client, rank, 75, after=1.0)
    assert history.policy.stage is Stage.SNAPSHOTS
    for name, each in zip(BOTH, exits):
        history(Exited(name, each))
    assert (history.verdict.reason, history.verdict.code) == (Reason.SIGNAL, code)
    assert [each.who for each in history.verdict.failures] == failed


def test_a_server_that_says_that_it_could_not_save_is_heard_whenever_it_does():
    """Also when it was told to end before it was asked: it saves by itself when all workers have left."""
    history = History(TWO, snapshots=True)
    history(Interrupted(INT))
    history(Interrupted(INT))
    history(Exited("server1", 73))
    assert failures(history) == [("server1", 73)]


def test_servers_that_do_not_save_in_time_have_not_saved():
    """The job does not end with 75."""
    history = History(TWO, snapshots=True)
    history(Interrupted(TERM))
    for client in range(2):
        for rank in range(2):
            history.rank(client, rank, 75)
    history(Exited("server0", 0))
    assert Send("server1", TERM) in history.wait()
    history(Exited("server1", 143))
    assert failures(history) == [("server1", 73)]
    assert history.verdict.code == 73
