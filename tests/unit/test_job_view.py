"""What the launcher makes of what processes tell: rows, rates, who is silent, and who holds up the job."""

from __future__ import annotations

import pytest

import kvstore_mpi
import mpilaunch
from kvstore_mpi.metrics.status import Status, Wait
from mpilaunch.seeing.diagnosis import NOTHING, diagnose
from mpilaunch.seeing.job_view import JobView, due
from mpilaunch.seeing.stacks import parse, place
from mpilaunch.seeing.table import TITLES, lines, plain

DUMP = f"""Thread 0x00007f01 (most recent call first):
  File "/venv/lib/python3.11/threading.py", line 331 in wait
  File "{kvstore_mpi.__path__[0]}/wire/io_loop.py", line 167 in step

Current thread 0x00007f02 (most recent call first):
  File "/venv/lib/python3.11/threading.py", line 331 in wait
  File "/home/me/train.py", line 12 in load
  File "/home/me/train.py", line 40 in <module>
  File "{mpilaunch.__path__[0]}/rank/rank_main.py", line 221 in _run
"""
STACKS = {"client1.0": parse(DUMP, {"7f01": "kvstore-io", "7f02": "MainThread"})}


def status(name, waits=(), incarnation=0, **counters):
    return Status(name, incarnation, "h", 7, counters, list(waits))


def view(*told, at=100.0):
    seen = JobView(lease=30.0)
    for each in told:
        seen.take(each, at)
    return seen


def round_of(*missing, seconds=5.0, key="w"):
    return Wait("round", f"round 3 of key '{key}'", seconds, 600.0, list(missing), key, 3)


def push_to(*servers, seconds=5.0, key="w"):
    return Wait("pushpull", f"pushpull 3 of key '{key}'", seconds, 603.0, list(servers), key, 3)


def test_rates_are_growth_per_second():
    """Between the first and the last status that is kept; a process that was restarted begins anew."""
    seen = JobView(lease=30.0)
    for second, steps in enumerate([0, 10, 30]):
        seen.take(status("client0.0", steps=steps), 50.0 + second)
    [row] = seen.rows(52.5)
    assert row.rates == {"steps": 15.0}
    assert (row.age, row.state) == (0.5, "runs")


@pytest.mark.parametrize(
    ("now", "state"), [(101.0, "waits"), (106.0, "silent 6 s")], ids=["waits", "silent"]
)
def test_the_state_of_a_process(now, state):
    """It waits for longer than a moment, or has told nothing for long."""
    assert view(status("server0", [round_of("client1.0")])).rows(now)[0].state == state


def test_a_process_that_has_told_nothing_yet_starts():
    """And is gone when it has ended; the next run of it has a name of its own."""
    seen = JobView(lease=30.0)
    seen.started("server0", "h", 0.0)
    assert seen.rows(9.0)[0].state == "starts"
    seen.ended("server0", failed=False)
    seen.take(status("server0", incarnation=1), 9.0)
    assert [(row.name, row.state, row.is_over) for row in seen.rows(9.0)] == [
        ("server0", "ended", True),
        ("server0~1", "runs", False),
    ]


def test_a_process_that_was_killed_has_failed():
    """Whether it has told something or not."""
    seen = JobView(lease=30.0)
    for name in ("server0", "server1"):
        seen.started(name, "h", 0.0)
    seen.take(status("server1"), 8.0)
    for name in ("server0", "server1"):
        seen.ended(name, failed=True)
    assert [(row.state, row.is_over) for row in seen.rows(9.0)] == [("failed", True)] * 2


def test_what_is_due_is_told_before_the_deadline():
    """Some seconds before, or half of a short one; and silence before the lease ends."""
    assert due(600.0) == 595.0
    assert due(4.0) == 2.0
    assert view(status("server0", [round_of("client1.0", seconds=594.0)])).why_due(100.0) == ""
    late = view(status("server0", [round_of("client1.0", seconds=596.0)]))
    assert late.why_due(100.0).startswith("server0 has waited 596 s of 600 s (round 3 of key 'w'")
    quiet = view(status("server0"))
    assert quiet.why_due(124.0) == ""
    assert quiet.next_due() == 125.0
    assert quiet.why_due(125.0) == "server0 has not been heard of for 25 s of 30 s"
    alone = JobView(lease=30.0, watched=["client0.0"])
    alone.take(status("client0.1"), 100.0)
    assert alone.why_due(125.0) == (
        "client0.1 has not been heard of for 25 s and without servers nobody ends it for that"
    )
    alone.take(status("client0.1"), 125.0)
    alone.take(status("client0.0"), 100.0)
    assert alone.why_due(125.0) == "client0.0 has not been heard of for 25 s of 30 s"


# --- who holds up the job ---


def test_who_is_waited_for_and_waits_for_nobody_holds_up_the_job():
    """With the key, the step, who waits, and where the program is."""
    rows = view(
        status("client0.0", [push_to("server0")]),
        status("server0", [round_of("client1.0")]),
        status("client1.0"),
    ).rows(100.0)
    [told] = diagnose(rows, STACKS)
    assert told == (
        "client1.0 on h (pid 7) holds up the job: round 3 of key 'w'; server0 waits for it since 5 s. It "
        "is alive; its program is at /home/me/train.py:12 in load "
        "(in wait at /venv/lib/python3.11/threading.py:331)"
    )


def test_a_silent_process_is_blamed_whatever_it_told_last():
    """It writes stacks, so that it runs, and native code holds the interpreter."""
    seen = view(status("client1.0", [push_to("server0")]), at=80.0)
    seen.take(status("server0", [round_of("client1.0")]), 100.0)
    [told] = diagnose(seen.rows(100.0), STACKS)
    assert "native code holds the interpreter; it was called at /home/me/train.py:12 in load" in told
    [told] = diagnose(seen.rows(100.0), {})
    assert "it is stopped (SIGSTOP" in told
    assert "kill -CONT 7" in told


def test_who_is_on_a_host_that_says_nothing_is_not_blamed():
    """The host's agent is, whatever else there is; no others wait in a circle then."""
    seen = view(status("client1.0", [push_to("server0")]), at=80.0)
    seen.take(status("server0", [round_of("client1.0")]), 100.0)
    [told] = diagnose(seen.rows(100.0), {}, {"client1.0": "node1"})
    assert told.startswith(
        "nothing comes from mpilaunch's agent on node1, so that nothing is known of client1.0"
    )
    seen.take(status("client1.0", [push_to("server0")]), 100.0)
    assert diagnose(seen.rows(100.0), {}, {"client1.0": "node1"}) == [told]
    first, second = diagnose(seen.rows(110.0), {}, {"client1.0": "node1"})
    assert (first, second.split()[0]) == (told, "server0")


def test_who_waits_for_a_rank_of_its_client_does_not_hold_up_the_job():
    """It has made its store, and cannot join before the other has."""
    seen = JobView(lease=30.0)
    for rank in range(2):
        seen.started(f"client1.{rank}", "h", 90.0)
    waits = Wait("join", "the job begins when all have joined", 5.0, 300.0, ["client1.0", "client1.1"])
    seen.take(status("scheduler", [waits]), 100.0)
    assert [told.split()[0] for told in diagnose(seen.rows(100.0), {})] == ["client1.0", "client1.1"]
    seen.joins("client1.0")
    assert {row.name: row.state for row in seen.rows(100.0)}["client1.0"] == "joins"
    [told] = diagnose(seen.rows(100.0), {})
    assert told.startswith("client1.1 holds up the job: the job begins when all have joined")
    seen.joins("client1.1")
    assert len(diagnose(seen.rows(100.0), {})) == 2


def test_workers_that_wait_for_each_other_are_told_apart():
    """Each has pushed a key that the other has not."""
    rows = view(
        status("client0.0", [push_to("server0", key="a")]),
        status("client1.0", [push_to("server0", key="b")]),
        status("server0", [round_of("client1.0", key="a"), round_of("client0.0", key="b")]),
    ).rows(100.0)
    first, *each = diagnose(rows, STACKS)
    assert "programs differ" in first
    assert len(each) == 4  # the server waits for both
    assert (
        "client1.0 waits 5 s in pushpull 3 of key 'b'; its program is at /home/me/train.py:12"
        in " ".join(each)
    )


def test_a_coordinator_that_is_at_its_own_barrier_is_not_blamed():
    """In pure MPI rank 0 says who is missing, and waits itself."""
    call = Wait("call", "barrier 1 of all workers", 5.0, 600.0, ["client0.0"])
    barrier = Wait("barrier", "barrier 1: client0.0 is there", 5.0, 600.0, ["client0.1"], "", 1)
    rows = view(status("client0.0", [call, barrier]), status("client0.1")).rows(100.0)
    [told] = diagnose(rows, {})
    assert told.startswith("client0.1 on h (pid 7) holds up the job: barrier 1: client0.0 is there")


def test_a_job_that_runs_is_not_accused():
    """What is under way for a moment is no hang."""
    rows = view(status("server0", [round_of("client1.0", seconds=0.1)]), status("client1.0")).rows(100.0)
    assert diagnose(rows, STACKS) == [NOTHING]


def test_threads_are_named_and_the_scripts_own_line_is_found():
    """Before a process has told names of threads, the last of a dump is the main one."""
    threads = parse(DUMP, {})
    assert [thread.name for thread in threads] == ["thread 0x7f01", "MainThread"]
    assert place(threads).startswith("/home/me/train.py:12 in load")
    assert place([]) == ""


def test_the_stack_that_a_handler_writes_counts_where_there_is_no_other():
    """Native code then holds the interpreter; otherwise the kernel may have chosen another thread."""
    own = """Stack (most recent call first):
  File "/home/me/train.py", line 13 in calls_c
"""
    assert parse(own + DUMP, {}) == parse(DUMP, {})
    [main] = parse(own, {"7f01": "kvstore-io"})
    assert main.name == "MainThread"
    assert place([main]) == "/home/me/train.py:13 in calls_c"


# --- the table ---


def test_the_table_shows_rates_shares_and_what_is_waited_for():
    """A column for each title; plain text without a terminal."""
    seen = JobView(lease=30.0)
    waits = [push_to("server0")]
    for second in range(2):
        counters = {"steps": 4.0, "bytes_sent": 2e6, "values_sent_bytes": 3e6, "pending_seconds": 0.5}
        told = {name: value * second for name, value in counters.items()}
        told |= {"memory_bytes": 5e7, "hidden_seconds": 0.2 * second}
        seen.take(status("client0.0", waits, **told), 10.0 + second)
    [line] = lines(seen.rows(11.0))
    cells = dict(zip(TITLES, line.cells))
    assert cells["step/s"] == "4.0"
    assert cells["MB/s out"] == "3.0"
    assert (cells["pending"], cells["hidden"], cells["memory MB"]) == ("50%", "40%", "50")
    assert cells["waits for, or last error"] == "pushpull 3 of key 'w' (5 s)"
    assert len(plain(seen.rows(11.0)).splitlines()) == 2
    narrow = plain(seen.rows(11.0), 60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert "step/s" in narrow
    assert "memory" not in narrow
    assert "client0.0" in narrow
    assert "pushpull 3 of key" in narrow
