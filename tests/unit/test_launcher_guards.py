"""What is done when a rank dies and MPI does not hear of it, and what a rank's guard does."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from support.launcher_history import GRACE, KILL, TERM, USR1, History

from mpilaunch.events import Exited, Interrupted, RankDied, Send
from mpilaunch.rank import rank_main
from mpilaunch.rank.record import RankName
from mpilaunch.rank.told_to_end import ToldToEnd
from mpilaunch.stages import Stage

TELL_ALL = [Send("client0", USR1), Send("client1", USR1)]
END_ALL = [Send(name, TERM) for name in ("scheduler", "server0", "client0", "client1")]


@pytest.fixture
def history():
    """A job whose ranks have come out of MPI_Init."""
    history = History()
    for client in range(2):
        for rank in range(2):
            history.meets(client, rank)
    return history


def test_the_others_of_its_client_save_too(history):
    """Its mpiexec, which knows nothing, is ended when they have."""
    assert history.died(0, 1, 137) == TELL_ALL
    assert history.policy.cause == "client0.1 has failed (SIGKILL (exit code 137))"
    history.rank(1, 0, 75)
    history.rank(1, 1, 75)
    assert history.policy.stage is Stage.SAVING
    assert history.policy.deadline == history.now + GRACE
    assert history.rank(0, 0, 75) == END_ALL
    history(Exited("client0", 137, rank_codes=(143, 137)))
    assert [(each.who, each.code) for each in history.verdict.failures] == [("client0.1", 137)]
    assert (history.verdict.code, history.verdict.unsaved) == (137, ())


def test_who_does_not_save_is_named(history):
    """Whatever has happened to the rest of its client."""
    history.died(0, 1, 137)
    history.rank(1, 0, 75)
    history.rank(1, 1, 75)
    assert history.wait() == END_ALL
    assert history.verdict.unsaved == ("client0.0",)


def test_who_counts_as_dead_leaves_the_others_of_its_client_time_to_save(history):
    """The client was silent for too long; its rank waits to be ended, MPI is not told."""
    assert history.rank(0, 0, 69, error="LeaseExpiredError") == TELL_ALL
    history.rank(1, 0, 75)
    history.rank(1, 1, 75)
    assert history.policy.stage is Stage.SAVING
    assert history.wait() == END_ALL
    assert history.verdict.unsaved == ("client0.1",)


def test_ranks_may_die_while_others_save(history):
    """All that is left of the clients saves, and both deaths are told."""
    history.died(0, 1, 137)
    assert history.died(1, 0, 139) == []
    history.rank(1, 1, 75)
    assert history.rank(0, 0, 75) == END_ALL
    assert [each.who for each in history.verdict.failures] == ["client0.1", "client1.0"]


def test_in_mpi_init_nobody_has_anything_to_save():
    """A rank there waits for the dead one and hears no signal."""
    history = History()
    history.meets(1, 0)
    assert history.died(0, 1, 137) == [Send("client0", KILL), Send("client1", USR1)]
    history(Exited("client0", 137))
    assert [each.who for each in history.verdict.failures] == ["client0.1"]


@pytest.mark.parametrize("error", ["", "LeaseExpiredError"])
def test_a_client_that_is_started_again_is_ended_first(error):
    """Its ranks would wait for the dead one, and the job waits for them."""
    history = History(max_restarts=1)
    history.meets(0, 0)
    if error:
        assert history.rank(0, 1, 69, error=error) == [Send("client0", KILL)]
    else:
        assert history.died(0, 1, 137) == [Send("client0", KILL)]
    history.lost(0, 0)
    assert len(history(Exited("client0", 137))) == 3  # the scheduler and people are told, and it is started
    assert history.verdict.restarts[0].failures[0].who == "client0.1"


def test_a_rank_that_is_killed_for_its_silence_is_told_as_silent():
    """And not as one that somebody has killed, or the kernel."""
    history = History(max_restarts=1)
    history.meets(0, 0)
    history(RankDied(RankName(0, 1), 137, 7, is_silent=True))
    history.lost(0, 0)
    told = history(Exited("client0", 137))
    [failure] = history.verdict.restarts[0].failures
    assert "was stopped (SIGSTOP, Ctrl-Z) or cut off" in failure.remedy
    why = (
        "client0 after client0.1: SIGKILL (exit code 137), mpilaunch has killed it, since nothing was heard"
    )
    assert any(why in str(action) for action in told)


def test_a_rank_that_dies_of_what_it_was_told_has_not_failed(history):
    """Of the request to save before it could handle it; of our SIGKILL; or because MPI ends its client."""
    history(Interrupted(TERM))
    history.died(0, 1, 138)
    assert history.policy.cause == ""
    history.rank(0, 0, 3)
    history.died(0, 0, 137)
    history.rank(1, 0, 75)
    while history.policy.stage is Stage.SAVING:
        history.wait()
    history.died(1, 1, 143)
    assert [each.who for each in history.verdict.failures] == ["client0.0"]


GUARDED = """
import os, signal, sys
from mpilaunch.rank import guard
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
assert guard.leave_behind() == os.getppid()
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGUSR1}
exec(sys.argv[1])
"""


AS_TASK = "import os; os.environ['SLURM_TASK_PID'] = str(os.getpid())"

SAVED = """
from mpilaunch.rank import rank_main
directory = os.environ["KVMPI_RECORD_DIR"]
open(f"{directory}/0.3.exit.json", "w").close()
pause, pipe = signal.pause, os.open(f"{directory}/events", os.O_WRONLY)
signal.pause = lambda: (os.write(pipe, b"waits"), pause())
rank_main._wait_for_the_launcher()
"""


@pytest.fixture
def guard(tmp_path):
    """Start a guard whose rank runs some code; return it, and the pipe by which it tells of the death."""
    os.mkfifo(tmp_path / "events")
    pipe = os.open(tmp_path / "events", os.O_RDWR)
    guards = []

    def start(code, slurm="", **environment):
        told = {"KVMPI_RECORD_DIR": str(tmp_path), "PMI_RANK": "3", **environment}
        command = [sys.executable, "-c", slurm + GUARDED, code]
        guards.append(subprocess.Popen(command, env={**os.environ, **told}, start_new_session=True))
        return guards[-1], pipe

    yield start
    os.close(pipe)
    for each in guards:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
        each.wait()


@pytest.mark.parametrize(("ends", "code"), [("os.kill(os.getpid(), 9)", 137), ("os._exit(3)", 3)])
def test_a_guard_tells_of_a_death_and_waits_to_be_ended(guard, ends, code):
    """No signal but SIGTERM ends its wait; its exit code is the rank's."""
    process, pipe = guard(ends)
    told = json.loads(os.read(pipe, 4096))
    assert (told["event"], told["rank"], told["code"]) == ("death", 3, code)
    os.kill(process.pid, signal.SIGUSR1)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == code


def test_under_slurm_a_guard_waits_for_the_launcher_alone(guard):
    """Slurm's SIGTERM to all of a job comes while the others of the client save."""
    process, pipe = guard("os.kill(os.getppid(), signal.SIGTERM); os._exit(3)", slurm=AS_TASK)
    assert json.loads(os.read(pipe, 4096))["event"] == "death"
    os.kill(process.pid, signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)


@pytest.mark.parametrize("slurm", ["", AS_TASK], ids=["MPI's", "Slurm's"])
def test_who_has_saved_waits_for_the_launcher(guard, slurm):
    """Which sends SIGTERM by mpiexec, and SIGKILL where Slurm sends SIGTERM as well."""
    process, pipe = guard(SAVED, slurm=slurm)
    assert os.read(pipe, 4096) == b"waits"
    os.killpg(process.pid, signal.SIGTERM)
    if slurm:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        return
    assert process.wait(60) == 143


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("pass", 0),
        ("open(os.environ['KVMPI_RECORD_DIR'] + '/0.3.exit.json', 'w'); os._exit(3)", 3),
        ("os.kill(os.getppid(), signal.SIGTERM); os.kill(os.getpid(), 15)", 143),
    ],
    ids=["ended well", "left a record", "ended with its guard"],
)
def test_a_guard_goes_with_a_rank_of_which_the_launcher_knows(guard, ends, code):
    """It ends with the rank's code and tells nothing."""
    process, pipe = guard(ends)
    assert process.wait() == code
    os.set_blocking(pipe, False)
    with pytest.raises(BlockingIOError):
        os.read(pipe, 1)


def test_there_is_no_guard_where_it_would_not_help():
    """An MPI that signals processes and not groups would end the guard alone."""
    program = "from mpilaunch.rank import guard; print(guard.leave_behind())"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"0\n"


def test_a_rank_for_which_there_is_no_process():
    """One line, and the exit code that stands for it."""
    program = """
import os
from mpilaunch.rank import guard
def refuse():
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = refuse
guard.leave_behind()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, start_new_session=True, check=False
    )
    assert done.returncode == 71
    assert done.stderr == b"no process can be started for the rank: Resource temporarily unavailable\n"


@pytest.mark.parametrize("mxnet", ["there", "absent", "broken"])
def test_memory_is_collected_again_when_mxnet_is_there(monkeypatch, mxnet):
    """Or the script would keep its cycles for ever; also without mxnet, and if it cannot be imported."""
    seen = []

    def load(name):
        seen.append((name, gc.isenabled()))
        if mxnet == "broken":
            raise ImportError(name)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None if mxnet == "absent" else object())
        patch.setattr(importlib, "import_module", load)
        patch.setattr(gc, "freeze", lambda: seen.append("kept"))  # what this process has, which is no rank
        try:
            rank_main._register_stores()
        except ImportError:
            assert mxnet == "broken"
    assert seen == [*([] if mxnet == "absent" else [("kvstore_mpi.mxnet", False)]), "kept"]
    assert gc.isenabled()


def begun(**options):
    history = History(**options)
    for client in range(2):
        for rank in range(2):
            history.meets(client, rank)
    return history


def saved(history):
    """All ranks save; return what follows."""
    for client in range(2):
        for rank in range(2):
            history.rank(client, rank, 75, after=1.0)
    return history.actions


def test_servers_save_when_all_ranks_have():
    """They end then, and the scheduler may take them for lost."""
    history = begun(snapshots=True)
    history(Interrupted(TERM))
    assert saved(history) == [Send("server0", USR1)]
    assert history.policy.stage is Stage.SNAPSHOTS
    history(Exited("scheduler", 69))
    assert history(Exited("server0", 0)) == [Send(name, TERM) for name in ("client0", "client1")]
    assert not history.policy.verdict().failures


def test_servers_may_take_the_grace_for_it():
    """Then everything is ended."""
    history = begun(snapshots=True)
    history(Interrupted(TERM))
    saved(history)
    began = history.now
    assert history.wait() == END_ALL
    assert history.now == began + GRACE


def test_servers_do_not_save_after_a_failure_or_without_snapshots():
    """What they have may be half of a round that others never saw."""
    failed = begun(snapshots=True)
    failed.died(0, 1, 137)
    failed.rank(0, 0, 75)
    for rank in range(2):
        failed.rank(1, rank, 75)
    assert failed.policy.stage is Stage.TERMINATING
    without = begun()
    without(Interrupted(TERM))
    assert saved(without) == END_ALL


@pytest.fixture
def told():
    """A rank of this process that is told to end; what it had handled before is put back."""
    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGUSR1)
    reporter = SimpleNamespace(pid=os.getpid(), cause_of_end=lambda: None)
    told = ToldToEnd(SimpleNamespace(script_is_over=False), reporter)
    told.listen(SimpleNamespace(on=lambda *_: None))
    yield told
    sys.unraisablehook = hook
    signal.signal(signal.SIGUSR1, handler)


class HearsItWhenDestroyed:
    """Python ignores what its destructor raises."""

    def __del__(self):
        signal.raise_signal(signal.SIGUSR1)


def test_a_signal_where_errors_are_ignored_unwinds_the_script_afterwards(told):
    """It was lost: the rank went on, and heard nothing any more."""
    with pytest.raises(SystemExit, match="75"):
        _destroy_and_wait()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN


def test_a_signal_that_is_back_before_its_error_is_ignored_is_not_lost(told, monkeypatch):
    """On a busy machine a timer of 10 ms is over before the hook that has started it returns."""
    start = told._signal_later
    signals = []

    def signal_later(seconds):
        signals.append(seconds)
        start(seconds)
        if len(signals) == 1:
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(told, "_signal_later", signal_later)
    with pytest.raises(SystemExit, match="75"):
        _destroy_and_wait()
    assert len(signals) > 1


def _destroy_and_wait():
    HearsItWhenDestroyed()
    time.sleep(20)


def test_other_ignored_errors_are_shown_as_before(told, monkeypatch):
    """The interpreter's own hook, or a user's, has them."""
    seen = []
    told._hook = seen.append
    error = ValueError("in a destructor")
    sys.unraisablehook(SimpleNamespace(exc_value=error))
    assert [each.exc_value for each in seen] == [error]
