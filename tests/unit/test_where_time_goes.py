"""The tables of what the threads of a job do in one round trip."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from harness import thread_summary
from harness.threads import Task, Tasks


def a_run(variant: str, *, traced: bool = False, server_s: float = 0.2) -> dict:
    """Return what one job of two round trips has written: two workers with an I/O thread, and a server."""
    tasks = [
        {"role": role, "pid": pid, "tid": tid, "comm": "python", "cpu_s": cpu, "waits": 4, "forced": 2}
        for role, pid, tid, cpu in (
            ("server", 1, 1, server_s),
            ("worker", 2, 2, 0.1),
            ("worker", 2, 12, 0.3),
            ("worker", 3, 13, 0.5),
        )
    ]
    case = {
        "round_trips": 2,
        "seconds": 0.01,
        "tasks": tasks,
        "calls": {"12": {"futex": 8}, "13": {"futex": 4}},
    }
    return {
        "variant": variant,
        "traced": traced,
        "cases": {"4KB": case},
        "threads": {"12": "io", "13": "io"},
    }


def test_threads_of_one_name_are_one_row_of_one_process():
    """What the two workers' threads did is halved; the server's stays."""
    rows = thread_summary.rows_of(a_run("2x1-tcp"), "4KB")
    io = rows["worker", "io"]
    assert (io.threads, round(io.cpu_us), io.waits, io.forced) == (1, 200_000, 2, 1)
    assert round(rows["server", "main"].cpu_us) == 100_000


def test_calls_are_those_of_one_process_and_round_trip():
    """As the rows are."""
    calls = thread_summary.calls_of(a_run("2x1-tcp", traced=True), "4KB")
    assert calls["worker", "io"] == {"futex": 3}


def test_processor_time_is_compared_repeat_by_repeat():
    """All processes of a job over stock's; jobs under strace do not count."""
    runs = [a_run("stock"), a_run("2x1-tcp", server_s=1.3), a_run("2x1-tcp", traced=True, server_s=99)]
    ours = thread_summary.job_table(runs).splitlines()[-1].split()
    assert ours[1:] == ["2x1-tcp", "5.000", "5.000", "1100.000", "1100.000", "2.00", "2.00", "-", "2.00"]
    assert "futex 3.0" in thread_summary.thread_table(runs)


def test_what_a_thread_has_done_is_the_difference():
    """A thread that was not there before has done all of it since."""
    before = Tasks({1: Task("server", 1, 1, "python", 1.0, 5, 2)})
    after = Tasks(
        {1: Task("server", 1, 1, "python", 1.5, 8, 2), 2: Task("server", 1, 2, "python", 0.25, 1, 0)}
    )
    assert [(task.cpu_s, task.waits, task.forced) for task in after.since(before)] == [
        (0.5, 3, 0),
        (0.25, 1, 0),
    ]
