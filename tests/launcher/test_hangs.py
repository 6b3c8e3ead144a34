"""Hangs that are planted in a real job: each is named with key, step, rank and the place in the program."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from mpilaunch.seeing import control

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.thorough]

SCRIPTS = Path(__file__).parent / "scripts"
LEASE = 10
JOB = ("--clients", 2, "--workers", 4, "--servers", 1, "--lease", LEASE, "--set", "step_timeout=300")
DEADLINE = 60.0


class Hanging:
    """The job, and how it is asked about."""

    def __init__(self, job):
        self.job = job
        [self.directory] = (job.folder / "tmp").glob(f"{control.PRIVATE_PREFIX}*")
        self.inspections = 0

    def rows(self):
        return {row["name"]: row for row in control.ask(self.directory, {"do": "top"})["rows"]}

    def pid(self, name):
        return self.rows()[name]["pid"]

    def wait_until(self, name, holds):
        """Ask until a process's row is as it has to be; processes tell about themselves once a second."""
        end = time.monotonic() + DEADLINE
        while not holds(self.rows()[name]):
            assert time.monotonic() < end, self.rows()
            threading.Event().wait(0.1)

    def told(self, name, text):
        """Wait until a process has told that it waits for something, for more than a moment."""
        self.wait_until(
            name, lambda row: any(wait["seconds"] >= 1 and text in wait["text"] for wait in row["waits"])
        )

    def inspect(self):
        self.inspections += 1
        return " ".join(control.ask(self.directory, {"do": "inspect"})["verdict"])

    def inspected_by_itself(self):
        """Wait for what a deadline that comes near has written; return what it says."""
        self.inspections += 1
        self.job.wait_for("stacks of all processes:", self.inspections)
        at = [number for number, line in enumerate(self.job.lines) if "| inspection: " in line][-1]
        return " ".join(self.job.lines[at:])


@pytest.fixture
def hanging(launch):
    job = launch(*JOB, SCRIPTS / "hanging.py", program=(str(SCRIPTS / "with_hangs.py"),))
    job.wait_for("hangs: from_outside")
    return Hanging(job)


def test_every_hang_is_named(hanging):
    """Eight in one job, one after the other; it goes on after each but the last."""
    hanging.wait_until("client1.0", lambda row: row["pid"])
    who_does_not_answer(hanging, hanging.pid("client1.0"), hanging.pid("server0"))
    os.kill(hanging.pid("client0.0"), signal.SIGUSR2)
    who_is_elsewhere(hanging, hanging.pid("client1.0"), hanging.pid("client1.1"))
    assert len(list((hanging.job.folder / "mpilaunch-logs").glob("*/inspection-*.txt"))) == 8
    hanging.job.signal(signal.SIGTERM)
    hanging.job.wait()


def who_does_not_answer(hanging, rank2, server):
    """Three processes that can tell nothing: the lease that runs out has them looked for."""
    os.kill(rank2, signal.SIGSTOP)
    told = hanging.inspected_by_itself()
    os.kill(rank2, signal.SIGCONT)
    assert re.search(rf"client1\.0 on \S+ \(pid {rank2}\) holds up the job: round \d+ of key 'flag'", told)
    assert "it is stopped (SIGSTOP" in told

    hanging.wait_until("client1.0", lambda row: row["state"] == "runs")
    os.kill(server, signal.SIGSTOP)
    told = hanging.inspected_by_itself()
    os.kill(server, signal.SIGCONT)
    assert re.search(rf"server0 on \S+ \(pid {server}\) holds up the job: pushpull \d+ of key 'flag'", told)
    assert "client0.0, client1.0 waits for it" in told

    hanging.wait_until("server0", lambda row: row["state"] == "runs")
    os.kill(server, signal.SIGUSR2)
    told = hanging.inspected_by_itself()
    assert re.search(r"server0 .* has been stuck for \d+ s at \S+sitecustomize\.py:\d+ in be_stuck", told)
    hanging.wait_until("server0", lambda row: row["state"] == "runs")


def who_is_elsewhere(hanging, rank2, rank3):
    """Native code that holds the interpreter, and four ways to be somewhere else while all tell."""
    job = hanging.job
    job.wait_for("hangs: in_native_code")
    told = hanging.inspected_by_itself()
    (job.folder / "release").write_bytes(b"!")
    assert re.search(
        r"client1\.0 .* native code holds the interpreter.*hanging\.py:\d+ in in_native_c", told
    )

    job.wait_for("hangs: in_sleep")
    hanging.told("server0", "round 3 of key 'w': client1.0, client1.1")
    told = hanging.inspect()
    assert re.search(r"client1\.0 .* round 3 of key 'w'.* is alive.* \S*hanging\.py:\d+ in in_sleep", told)
    assert "client1.1 holds up" not in told
    os.kill(rank2, signal.SIGUSR2)

    job.wait_for("hangs: in_another_order")
    hanging.told("server0", "key 'b'")
    hanging.told("client1.0", "key 'w'")
    told = hanging.inspect()
    assert re.search(r"round 1 of key 'b': client1\.0, client1\.1 has not pushed", told)
    assert re.search(r"client1\.0 waits .* key 'w'.*hanging\.py:\d+ in in_another_order", told)
    os.kill(rank2, signal.SIGUSR2)
    os.kill(rank3, signal.SIGUSR2)

    job.wait_for("hangs: in_another_barrier")
    hanging.told("scheduler", "barrier")
    told = hanging.inspect()
    assert re.search(r"client1\.0 .*barrier \d+: client0\.0, client0\.1, client1\.1 is there", told)
    assert re.search(r"is alive.* \S*hanging\.py:\d+ in in_another_barrier", told)
    os.kill(rank2, signal.SIGUSR2)

    job.wait_for("hangs: in_mpi")
    hanging.told("client1.0", "pushpull")
    hanging.told("server0", "key 'w'")
    told = hanging.inspect()
    assert re.search(r"client1\.1 .* round \d+ of key 'w'.* is alive.*hanging\.py:\d+ in in_mpi", told)
