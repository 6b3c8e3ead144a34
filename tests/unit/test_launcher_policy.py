"""Histories of events, and what the launcher does about each."""

import dataclasses
import signal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.launcher_history import ALL, GRACE, INT, KILL, SHAPE, TERM, USR1, History

from mpilaunch.events import (
    Exited,
    Interrupted,
    RankDied,
    RankOver,
    Ready,
    Send,
    Shape,
    Start,
    Tell,
    Tick,
)
from mpilaunch.outcome.root_cause import Reason
from mpilaunch.rank.record import ExitRecord, RankName
from mpilaunch.stages import KILL_SECONDS, START_SECONDS, TERMINATE_SECONDS, Stage


def test_order_of_the_start():
    """The scheduler starts first; the others once it listens."""
    history = History(running=False)
    assert history.actions == [Start("scheduler")]
    assert history(Ready()) == [Start(name) for name in ALL]


def test_pure_mpi_starts_its_client_at_once():
    """Without servers there is nothing to wait for."""
    history = History(Shape(False, (), ("client0",), 2, True))
    assert history.actions == [Start("client0")]
    history.client_ends(0)
    assert history.policy.done
    assert history.verdict.code == 0


def test_success():
    """When all clients have ended with 0 the services end by themselves."""
    history = History()
    assert history.client_ends(0) == []
    assert history.client_ends(1) == []
    assert history.policy.stage is Stage.FINISHING
    history(Exited("server0", 0))
    assert not history.policy.done
    history(Exited("scheduler", 0))
    assert history.policy.done
    assert (history.verdict.reason, history.verdict.code) == (Reason.SUCCESS, 0)


def test_services_that_do_not_end_are_ended():
    """The grace after the last client; that the service hung does not spoil the result."""
    history = History()
    history.client_ends(0)
    history.client_ends(1)
    assert history.policy.deadline == history.now + GRACE
    told, *sent = history.wait()
    assert isinstance(told, Tell)
    assert sent == [Send("scheduler", TERM), Send("server0", TERM)]
    history(Exited("scheduler", 143))
    history(Exited("server0", 143))
    assert history.verdict.code == 0


def test_a_server_may_end_before_the_last_client():
    """All workers have left, but their interpreters still end: nothing is wrong."""
    history = History()
    assert history(Exited("server0", 0)) == []
    assert history.policy.stage is Stage.RUNNING


@pytest.mark.parametrize("name", ["scheduler", "server0"])
def test_a_service_that_dies_ends_the_job(name):
    """The clients get time to save, and the service's code is the job's."""
    history = History()
    assert history(Exited(name, 137, 9)) == [Send("client0", USR1), Send("client1", USR1)]
    assert (history.verdict.code, history.verdict.cause.who) == (137, name)


def test_an_exception_gives_the_others_time_to_save():
    """The failed client ends by itself; the other is asked to save; then the services go."""
    history = History()
    assert history.rank(0, 1, 1, error="ValueError") == [Send("client1", USR1)]
    assert history(Exited("client0", 1)) == []
    assert history.rank(1, 0, 75) == []
    assert history.rank(1, 1, 75) == [
        Send("scheduler", TERM),
        Send("server0", TERM),
        Send("client1", TERM),
    ]
    for name in ("scheduler", "server0", "client1"):
        history(Exited(name, 143))
    assert history.policy.done
    assert (history.verdict.code, history.verdict.cause.who) == (1, "client0.1")
    assert [failure.who for failure in history.verdict.failures] == ["client0.1"]


def test_grace_then_term_then_kill():
    """Each step down has its time."""
    history = History()
    history.rank(0, 0, 1)
    history(Exited("client0", 1))
    started = history.now
    assert history.wait() == [Send(name, TERM) for name in ("scheduler", "server0", "client1")]
    assert history.now == started + GRACE
    assert history.verdict.unsaved == ("client1.0", "client1.1")
    assert history.wait() == [Send(name, KILL) for name in ("scheduler", "server0", "client1")]
    assert history.now == started + GRACE + TERMINATE_SECONDS
    assert history.wait() == []
    assert history.policy.done
    assert history.now == started + GRACE + TERMINATE_SECONDS + KILL_SECONDS
    assert history.verdict.code == 1


def test_a_killed_rank_is_named_with_its_signal():
    """Which rank has gone is seen at once, its code comes with its mpiexec's end."""
    history = History()
    assert history.lost(0, 1) == [Send("client1", USR1)]
    history.lost(0, 0)  # MPI kills the rest of the client
    history(Exited("client0", 9, rank_codes=(137, 137)))
    assert [(failure.who, failure.code) for failure in history.verdict.failures] == [("client0.1", 137)]
    assert history.verdict.code == 137


def test_a_killed_rank_without_codes_has_that_of_its_mpiexec():
    """Open MPI does not list the ranks' codes and returns 128 + n itself."""
    history = History()
    history.lost(0, 1)
    history(Exited("client0", 137))
    assert (history.verdict.cause.who, history.verdict.code) == ("client0.1", 137)


def test_a_rank_that_ends_without_a_word_has_failed():
    """os._exit(0) takes its client with it, so it cannot count as success."""
    history = History()
    history.lost(0, 1)
    history(Exited("client0", 0, rank_codes=(0, 0)))
    assert (history.verdict.cause.who, history.verdict.code) == ("client0.1", 1)


def test_mpiexec_that_fails_without_its_ranks():
    """For example because it cannot start them."""
    history = History()
    history(Exited("client1", 255, 9))
    assert (history.verdict.cause.who, history.verdict.cause.pid, history.verdict.code) == (
        "client1",
        9,
        255,
    )


def test_a_crash_after_the_record_is_blamed_on_the_rank_that_crashed():
    """All records say 0, but one rank died in MPI_Finalize and the rest was cleaned up."""
    history = History()
    history.rank(0, 0, 0)
    history.rank(0, 1, 0)
    history(Exited("client0", 11, rank_codes=(137, 139)))
    assert (history.verdict.cause.who, history.verdict.code) == ("client0.1", 139)


def test_who_lost_a_peer_is_not_the_cause():
    """A worker that reports a lost peer is faster than the report of why the peer went."""
    history = History()
    history.rank(1, 0, 69, error="PeerLostError")
    history.rank(0, 1, 1, after=2.0, error="ValueError")
    assert (history.verdict.cause.who, history.verdict.code) == ("client0.1", 1)
    assert [failure.who for failure in history.verdict.failures] == ["client1.0", "client0.1"]


def test_a_lost_peer_alone_is_the_cause():
    """If nobody else has failed within the grace, the network has."""
    history = History()
    history.rank(1, 0, 69)
    history.rank(0, 1, 1, after=GRACE + 1)
    assert (history.verdict.cause.who, history.verdict.code) == ("client1.0", 69)


@pytest.mark.parametrize("signum", [INT, TERM, signal.SIGHUP])
def test_a_signal_lets_the_ranks_save(signum):
    """All ranks have saved in time: 75, which says run me again."""
    history = History()
    assert history(Interrupted(signum)) == [Send("client0", USR1), Send("client1", USR1)]
    for client in range(2):
        for rank in range(2):
            history.rank(client, rank, 75)
    assert history.policy.stage is Stage.TERMINATING
    assert (history.verdict.code, history.verdict.unsaved) == (75, ())
    assert history.verdict.failures == ()


def test_the_others_are_told_what_has_failed():
    """A rank that has vanished is known before its exit code."""
    history = History()
    assert history.policy.cause is None
    history(Exited("server0", 137))
    assert history.policy.cause == "server0 has failed (SIGKILL (exit code 137))"
    history = History()
    history.lost(1, 0)
    assert history.policy.cause == "client1 has lost a rank"


def test_a_signal_is_no_failure():
    """A script with a handler of its own may finish its step."""
    history = History()
    history(Interrupted(TERM))
    assert history.policy.cause == ""


def test_a_signal_when_the_ranks_finish_anyway():
    """Nothing is lost, nothing is to be run again."""
    history = History()
    history(Interrupted(TERM))
    history.client_ends(0)
    history.client_ends(1)
    history(Exited("scheduler", 0))
    history(Exited("server0", 0))
    assert (history.verdict.code, history.verdict.reason) == (0, Reason.SIGNAL)


def test_a_signal_and_a_rank_that_does_not_save():
    """128 + n, and the rank is named."""
    history = History()
    history(Interrupted(TERM))
    for client, rank in ((0, 0), (0, 1), (1, 0)):
        history.rank(client, rank, 75)
    history.wait()
    history.rank(1, 1, 75)  # too late: it was ended
    assert (history.verdict.code, history.verdict.unsaved) == (143, ("client1.1",))


def test_a_second_interrupt_kills_at_once():
    """Whoever presses Ctrl-C twice does not want to wait."""
    history = History()
    history(Interrupted(INT))
    assert history(Interrupted(INT)) == [Send(name, KILL) for name in ("scheduler", *ALL)]
    assert history.verdict.code == 130


def test_a_second_sigterm_changes_nothing():
    """Batch systems repeat it; the ranks are still saving."""
    history = History()
    history(Interrupted(TERM))
    assert history(Interrupted(TERM)) == []


def test_a_signal_before_the_clients_run():
    """There is nobody to wait for."""
    history = History(running=False)
    assert history(Interrupted(TERM)) == [Send("scheduler", TERM)]
    history(Exited("scheduler", 143))
    assert (history.policy.done, history.verdict.code) == (True, 143)


def test_a_job_that_takes_too_long():
    """It ends like after a signal, with a code of its own."""
    history = History(timeout=60.0)
    assert history.policy.deadline == 160.0
    assert history.wait() == [Send("client0", USR1), Send("client1", USR1)]
    assert (history.verdict.code, history.verdict.reason) == (69, Reason.TIMEOUT)


def test_a_scheduler_that_says_nothing():
    """It is given up after a minute and named."""
    history = History(running=False)
    assert history.policy.deadline == 100.0 + START_SECONDS
    assert history.wait() == [Send("scheduler", TERM)]
    assert (history.verdict.code, history.verdict.cause.who) == (69, "scheduler")


@pytest.mark.parametrize(("code", "expected"), [(78, 78), (0, 70)])
def test_a_scheduler_that_ends_before_it_listens(code, expected):
    """Its code is the job's; 0 would be a lie."""
    history = History(running=False)
    history(Exited("scheduler", code))
    assert history.policy.done
    assert (history.verdict.code, history.verdict.cause.who) == (expected, "scheduler")


def test_a_rank_that_asks_to_be_run_again():
    """sys.exit(75) in a script ends the job with 75 after the others have saved."""
    history = History()
    assert history.rank(0, 0, 75) == [Send("client0", USR1), Send("client1", USR1)]
    for client, rank in ((0, 1), (1, 0), (1, 1)):
        history.rank(client, rank, 75)
    assert history.policy.stage is Stage.TERMINATING
    assert history.verdict.code == 75


def test_executables_that_die_of_our_signal_have_not_failed():
    """SIGUSR1 ends a program that has no handler for it."""
    history = History(dataclasses.replace(SHAPE, wrapped=False))
    history(Interrupted(TERM))
    history(Exited("client0", 138))
    history(Exited("client1", 75))
    assert (history.verdict.code, history.verdict.failures) == (143, ())


EVENTS = st.one_of(
    st.just(Ready()),
    st.just(Tick()),
    st.builds(Interrupted, st.sampled_from([INT, TERM])),
    st.builds(Exited, st.sampled_from(["scheduler", *ALL]), st.sampled_from([0, 1, 69, 137, 143])),
    st.builds(
        RankDied, st.builds(RankName, st.integers(0, 1), st.integers(0, 1)), st.sampled_from([3, 137])
    ),
    st.builds(
        RankOver,
        st.builds(RankName, st.integers(0, 1), st.integers(0, 1)),
        st.one_of(
            st.none(),
            st.builds(
                ExitRecord,
                st.just(0),
                st.just(0),
                st.just("here"),
                st.just(1),
                st.sampled_from([0, 1, 69, 75]),
                monotonic=st.just(0.0),
            ),
        ),
    ),
)


@settings(max_examples=300)
@example([Ready(), *2 * [RankDied(RankName(0, 0), 3)]])
@given(st.lists(EVENTS, max_size=30))
def test_every_job_ends(events):
    """Whatever happens, the deadlines lead to the end, and signals to a process only become stronger."""
    history = History(timeout=1000.0, running=False)
    sent = []
    running = {"scheduler"}
    for event in events:
        if isinstance(event, Exited):
            if event.name not in running:
                continue
            running.discard(event.name)
        sent += history(event, after=0.1)
        running |= {action.name for action in history.actions if isinstance(action, Start)}
    for _ in range(20):
        if history.policy.done:
            break
        sent += history.wait()
    assert history.policy.done
    assert (history.verdict.cause is None) or history.verdict.reason is not Reason.SUCCESS
    severity = {USR1: 1, TERM: 2, KILL: 3}
    for name in ("scheduler", *ALL):
        signals = [severity[each.signum] for each in sent if isinstance(each, Send) and each.name == name]
        assert signals == sorted(signals)


@pytest.mark.parametrize(
    ("mpiexec_code", "rank_codes", "who", "code"),
    [
        pytest.param(9, (0, 137), "client0.1", 137, id="Hydra lists with 0 whom it has ended itself"),
        pytest.param(11, (137, 139), "client0.1", 139, id="a core dump takes longer than Hydra's killing"),
        pytest.param(9, (137, 14), "client0.0", 137, id="the second gives up because the first was killed"),
    ],
)
def test_who_has_failed_by_itself_is_found_though_another_is_seen_first(
    mpiexec_code, rank_codes, who, code
):
    """Ranks that Hydra ends itself may be seen to go before the one for which it does."""
    history = History()
    history.lost(0, 0)
    history.lost(0, 1)
    history(Exited("client0", mpiexec_code, rank_codes=rank_codes))
    assert (history.verdict.cause.who, history.verdict.code) == (who, code)


def test_mpi_abort_by_the_script_is_blamed_on_the_client():
    """No rank has left a record and mpiexec tells no codes: nobody knows which rank it was."""
    history = History()
    history.lost(0, 1)
    history.lost(0, 0)
    history(Exited("client0", 42))
    assert (history.verdict.cause.who, history.verdict.code) == ("client0", 42)


def test_a_client_that_mpi_is_ending_is_not_disturbed():
    """Hydra loses the exit codes of its ranks if a signal comes while it cleans up."""
    history = History()
    history.lost(0, 1)
    history.lost(0, 0)
    history.rank(1, 0, 75)
    assert history.rank(1, 1, 75) == []
    assert history(Exited("client0", 9, rank_codes=(137, 139))) == [
        Send(name, TERM) for name in ("scheduler", "server0", "client1")
    ]
    assert history.verdict.code == 139
