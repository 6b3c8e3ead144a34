"""Workers that never become part of the job: they are named in time, and the job does not end well."""

import dataclasses

import pytest
from support.launcher_history import SHAPE, TERM, History

from mpilaunch.events import Exited, Interrupted, Send, Start, Tell

UNWRAPPED = dataclasses.replace(SHAPE, wrapped=False)


def test_a_program_whose_ranks_never_join_has_failed():
    """It has trained apart, and 0 would say that all is well."""
    history = History(UNWRAPPED)
    history.joins(1, 0)
    history.joins(1, 1)
    assert history(Exited("client1", 0)) == []
    assert history(Exited("client0", 0))[0] == Send("scheduler", TERM)
    assert history.verdict.code == 78
    assert history.verdict.cause.who == "client0"
    assert "client0.0, client0.1 ended without ever having joined the job" in history.verdict.cause.text


def test_executables_that_are_not_ours_have_only_an_exit_code():
    """No record is expected of them."""
    history = History(dataclasses.replace(SHAPE, wrapped=False))
    history.joins(0, 0)
    history.joins(0, 1)
    assert history.lost(0, 0) == []
    assert history.lost(0, 1) == []
    assert history(Exited("client0", 0)) == []
    assert history(Exited("client1", 3, rank_codes=(0, 3))) == [
        Send("scheduler", TERM),
        Send("server0", TERM),
    ]
    assert (history.verdict.code, history.verdict.cause.who) == (3, "client1.1")


def test_one_rank_that_has_not_joined_is_one_too_many():
    """Only that one is named."""
    history = History(UNWRAPPED)
    history.joins(0, 0)
    history(Exited("client0", 0))
    assert history.verdict.code == 78
    assert history.verdict.cause.text.startswith("client0.1 ended without")


def test_a_program_that_is_told_to_end_need_not_have_joined():
    """It had no time to."""
    history = History(UNWRAPPED)
    history(Interrupted(TERM))
    history(Exited("client0", 0))
    history(Exited("client1", 0))
    assert history.verdict.failures == ()


def test_another_failure_is_not_covered():
    """A code of the program's own counts more than that it has not joined."""
    history = History(UNWRAPPED)
    history(Exited("client0", 3))
    assert history.verdict.code == 3


def test_workers_without_a_store_are_named_once_in_time():
    """Those that have opened one are not, and nothing else happens."""
    history = History(join_warning=60.0)
    started = history.now
    for client, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        history.meets(client, rank)
    for client, rank in ((0, 0), (0, 1), (1, 0)):
        history.joins(client, rank)
    (told,) = history.wait()
    assert history.now == started + 60
    assert isinstance(told, Tell)
    assert told.text.startswith("after 60 s (--join-warning) client1.1 has not joined the job: no store")
    assert history.policy.deadline is None


def test_a_start_that_is_held_names_mpiexec():
    """Ranks that have not met in MPI are not to blame."""
    history = History(join_warning=60.0)
    history.meets(1, 0)
    history.meets(1, 1)
    held, unjoined = history.wait()
    assert held.text.startswith(
        "after 60 s (--join-warning) client0.0, client0.1 has not come out of MPI_Init"
    )
    assert "the mpiexec of client0 does not answer" in held.text
    assert "client1.0, client1.1 has not joined the job" in unjoined.text


def test_nobody_is_named_when_all_have_joined():
    """There is nothing to wait for then."""
    history = History(join_warning=60.0)
    for client in range(2):
        for rank in range(2):
            history.joins(client, rank)
    assert history.policy.deadline is None


@pytest.mark.parametrize(
    "ends", [lambda history: history.client_ends(1), lambda history: history(Interrupted(TERM))]
)
def test_who_has_ended_or_is_to_end_is_not_waited_for(ends):
    """A warning then would only confuse."""
    history = History(join_warning=20.0)
    history.joins(0, 0)
    history.joins(0, 1)
    ends(history)
    assert history.policy.deadline is None or history.policy.deadline > history.now + 20


def test_a_client_that_is_started_again_joins_anew():
    """What its earlier ranks have said does not count for it."""
    history = History(max_restarts=1, join_warning=60.0)
    for client in range(2):
        for rank in range(2):
            history.joins(client, rank)
    history.lost(0, 1)
    history(Exited("client0", 9, rank_codes=(137, 137)), after=5.0)
    assert history.actions[-1] == Start("client0", 1)
    assert history.policy.deadline == history.now + 60
    history.joins(0, 0)
    assert history.policy.deadline == history.now + 60
    history.joins(0, 0, incarnation=1)
    history.joins(0, 1, incarnation=1)
    assert history.policy.deadline is None
