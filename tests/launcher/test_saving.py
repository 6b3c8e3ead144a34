"""Ranks that are to save, although they wait, are about to end, or save already; the work is a fake one."""

import os
import signal
import threading
import time

import pytest

from mpilaunch.seeing import control

pytestmark = pytest.mark.mpi

JOB = ("--clients", 2, "--servers", 1, "--workers", 4, "--grace", 100)
NATIVE_WAIT = """
import ctypes, threading
library = ctypes.CDLL(None)
both = ctypes.create_string_buffer(64)  # a pthread_barrier_t; a signal does not end the wait at one
library.pthread_barrier_init(both, None, 2)
worker = sys.modules["kvstore_mpi.node"].existing_worker()
def interrupt(reason):
    print("interrupted:", reason)
    library.pthread_barrier_wait(both)
worker.interrupt = interrupt
def announce(main):
    # Only a native call lets go of the interpreter in that line; a signal before it would end no wait.
    code = wait_natively.__code__
    while True:
        frame = sys._current_frames()[main]
        if frame.f_code is code and frame.f_lineno == code.co_firstlineno + 4:
            break
        time.sleep(0.001)
    print("waiting")
def wait_natively():
    wait = library.pthread_barrier_wait
    main = threading.get_ident()
    threading.Thread(target=announce, args=(main,), daemon=True).start()
    wait(both)
"""
WAIT = """
try:
    print("waiting")
    time.sleep(1000)
finally:
    print("saved")
"""


def kill_server(job):
    os.kill(job.number_after("server0| serving"), signal.SIGKILL)


def test_a_rank_is_freed_from_a_native_wait(launch, script):
    """There no handler of Python's can run; the worker fails what is waited for, and says why."""
    body = f"""{NATIVE_WAIT}
import types
adapter = types.SimpleNamespace(interrupt=lambda reason: print("gives up:", reason))
sys.modules["kvstore_mpi.adapters.mxnet.exchange.lifecycle"] = adapter
try:
    wait_natively()
finally:
    print("saved")
"""
    job = launch(*JOB, script(body))
    job.wait_for("waiting", 4)
    kill_server(job)
    assert job.wait() == 137, job.text
    assert len(job.with_text("| saved")) == 4
    for who in ("interrupted", "gives up"):
        assert len(job.with_text(f"{who}: has been told to end, because server0 has failed (SIGKILL")) == 4
    assert not job.with_text("may have lost work")


def test_a_signal_that_comes_before_a_sleep_begins_ends_the_sleep(launch, script):
    """It was not interrupted, and Python would see it afterwards; as one that another thread gets.

    That thread goes on when the main one lets go of the interpreter, which it does to sleep.
    """
    sleeps = WAIT.replace("    time.sleep", "    about_to_sleep.set()\n    time.sleep")
    body = f"""
import threading
about_to_sleep = threading.Event()
def signal_this_thread():
    about_to_sleep.wait()
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
threading.Thread(target=signal_this_thread, daemon=True).start()
{sleeps}"""
    job = launch("--workers", 2, "--grace", 20, script(body))
    assert job.wait() == 75, job.text
    assert len(job.with_text("| saved")) == 2


def test_a_script_s_own_handler_does_not_keep_a_rank_in_a_native_wait(launch, script):
    """Of a failure: what it waits for will not come."""
    body = f"""{NATIVE_WAIT}
signal.signal(signal.SIGUSR1, lambda *_: print("own handler"))
wait_natively()
from kvstore_mpi.errors import ToldToEndError
raise ToldToEndError("that is what a store raises then")
"""
    job = launch(*JOB, script(body))
    job.wait_for("waiting", 4)
    kill_server(job)
    assert job.wait() == 137, job.text
    assert len(job.with_text("| own handler")) == 4
    assert not job.with_text("Traceback")


def test_a_script_s_own_handler_may_finish_a_step_in_a_job_that_is_well(launch, script):
    """Nothing has failed: the worker goes on until the script ends."""
    body = f"""{NATIVE_WAIT}
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
print("waiting")
while not told:
    time.sleep(0.01)
print("finished")
"""
    job = launch(*JOB, script(body))
    job.wait_for("waiting", 4)
    job.signal(signal.SIGTERM)
    assert job.wait() == 0, job.text
    assert len(job.with_text("| finished")) == 4
    assert not job.with_text("interrupted:")


def test_a_rank_that_has_lost_another_leaves_those_of_its_client_time_to_save(launch, script):
    """To end it by MPI would end them."""
    body = f"""
if (client, rank) == (0, 1):
    from kvstore_mpi.errors import PeerLostError
    while not os.path.exists("go"):
        time.sleep(0.01)
    raise PeerLostError("lost client1")
{WAIT}"""
    job = launch(*JOB, script(body))
    job.wait_for("waiting", 3)
    (job.folder / "go").touch()
    assert job.wait() == 69, job.text
    assert job.with_text("PeerLostError: lost client1")
    assert len(job.with_text("| saved")) == 3, job.text


def test_a_rank_that_saves_because_of_an_error_is_not_disturbed(launch, script):
    """The launcher's signal comes while it is in its ``finally``."""
    body = f"""
if (client, rank) == (0, 1):
    import atexit
    atexit.register(print, "exit handler")
    from kvstore_mpi.errors import PeerLostError
    try:
        raise PeerLostError("lost a server")
    finally:
        print("saving")
        while signal.getsignal(signal.SIGUSR1) != signal.SIG_IGN:  # until the signal has been handled
            time.sleep(0.01)
        print("undisturbed")
{WAIT}"""
    job = launch(*JOB, script(body))
    job.wait_for("waiting", 3)
    job.wait_for("saving")
    kill_server(job)
    assert job.wait() == 137, job.text
    assert job.with_text("client0.1| undisturbed")
    assert job.with_text("client0.1| exit handler")
    assert len(job.with_text("| saved")) == 3, job.text


def test_a_rank_that_hears_it_in_a_destructor_saves_as_well(launch, script):
    """Python ignores what is raised there, or in a callback such as those of an import."""
    body = f"""
class Destroyed:
    def __del__(self):
        print("destroying")
        while True:
            time.sleep(0.01)

if (client, rank) == (0, 1):
    try:
        Destroyed()
        time.sleep(200)
    finally:
        print("saved")
{WAIT}"""
    job = launch(*JOB, script(body))
    job.wait_for("waiting", 3)
    job.wait_for("destroying")
    kill_server(job)
    assert job.wait() == 137, job.text
    assert len(job.with_text("| saved")) == 4, job.text
    assert not job.with_text("Exception ignored")


def test_a_rank_whose_script_is_over_is_freed_from_waiting_for_the_others(launch, script):
    """It waits in its worker's ``close`` when it is told to end; nothing is lost, nobody complains."""
    body = """
import threading
from kvstore_mpi.errors import ToldToEndError
worker, told = sys.modules["kvstore_mpi.node"].existing_worker(), threading.Event()
def close():
    print("closing")
    told.wait()
worker.close, worker.interrupt = close, lambda reason: told.set()
worker.failure = lambda: ToldToEndError("has been told to end") if told.is_set() else None
"""
    job = launch(*JOB, script(body))
    job.wait_for("closing", 4)
    job.signal(signal.SIGTERM)
    assert job.wait() == 75, job.text
    assert not job.with_text("Traceback")


def test_a_rank_that_starts_when_the_job_ends_hears_of_it(launch, script):
    """Its mpiexec was told before it had a rank to pass the signal on to."""
    body = f"""
if client == 0:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it is lost
    print("deaf")
    job_ends = os.path.join(os.environ["KVMPI_RECORD_DIR"], "cause")
    while not os.path.exists(job_ends):
        time.sleep(0.01)
    from kvstore_mpi.wakeups import WakeUps
    from mpilaunch.rank import rank_main, reporter, told_to_end
    from mpilaunch.rank.record import RankName
    from pathlib import Path
    told = reporter.Reporter(Path(os.environ["KVMPI_RECORD_DIR"]), RankName(0, rank))
    try:
        told_to_end.ToldToEnd(rank_main.RankEnd(told), told).listen(WakeUps())
    finally:
        print("told anew")
{WAIT}"""
    job = launch(*JOB, script(body))
    job.wait_for("waiting", 2)
    job.wait_for("deaf", 2)
    kill_server(job)
    assert job.wait() == 137, job.text
    assert len(job.with_text("told anew")) == 2


def test_a_rank_that_is_told_while_it_imports_the_library_ends_in_order(launch, script):
    """Modules that are still being imported are known already, and have nothing in them yet."""
    body = f"""
import types
for name in ("kvstore_mpi.node", "kvstore_mpi.adapters.mxnet.exchange.lifecycle"):
    sys.modules[name] = types.ModuleType(name)
{WAIT}"""
    job = launch(*JOB, script(body, join=False))
    job.wait_for("waiting", 4)
    job.signal(signal.SIGTERM)
    assert job.wait() == 75, job.text
    assert len(job.with_text("| saved")) == 4, job.text
    assert not job.with_text("Traceback")
    assert not job.with_text("AttributeError")


def test_who_was_killed_is_shown_as_failed(launch, script):
    """A server and a rank, while another rank still saves."""
    body = """
try:
    print("is", os.getpid())
    time.sleep(1000)
finally:
    print("saving")
    sys.stdin = open("go")
"""
    job = launch("--clients", 2, "--servers", 1, "--workers", 2, "--grace", 100, script(body))
    os.mkfifo(job.folder / "go")
    pids = {line.split("|")[0]: int(line.split()[-1]) for line in job.wait_for("| is", 2)}
    kill_server(job)
    job.wait_for("| saving", 2)
    os.kill(pids["client1.0"], signal.SIGKILL)
    [folder] = (job.folder / "tmp").glob(f"{control.PRIVATE_PREFIX}*")

    def states():
        return {row["name"]: row["state"] for row in control.ask(folder, {"do": "top"})["rows"]}

    wanted = {"scheduler": "starts", "server0": "failed", "client0.0": "joins", "client1.0": "failed"}
    end = time.monotonic() + 60
    while states() != wanted:
        assert time.monotonic() < end, states()
        threading.Event().wait(0.1)
    (job.folder / "go").write_text("")
    assert job.wait() == 137, job.text
