"""Hosts with an sshd each, made once for all tests, and jobs on them."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.virtual_hosts import LOGIN, VirtualHosts, missing

MPILAUNCH = str(Path(sys.executable).with_name("mpilaunch"))
TRAINING = str(Path(__file__).with_name("training.py"))
DEADLINE_S = 120


@pytest.fixture(name="cluster")
def _cluster(tmp_path):
    """Two hosts and a login node, which take a second to make."""
    why = missing()
    if why:
        pytest.skip(why)
    with VirtualHosts(2, tmp_path) as hosts:
        yield hosts


@pytest.fixture(name="four")
def _four(tmp_path):
    """Four hosts."""
    why = missing()
    if why:
        pytest.skip(why)
    with VirtualHosts(4, tmp_path) as hosts:
        yield hosts


def launch(hosts, logs, *arguments):
    """Return the command that runs mpilaunch on the login node."""
    own = ["--ssh", hosts.ssh, "--log-dir", str(logs), "--env", "OMP_NUM_THREADS=1"]
    return hosts.command(LOGIN, [MPILAUNCH, *own, *map(str, arguments)])


@pytest.fixture(name="run")
def _run(tmp_path):
    """Run jobs from the login node to their end; nothing of them is left anywhere."""

    def run_job(cluster, *arguments):
        done = subprocess.run(
            launch(cluster, tmp_path, *arguments),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        cluster.check_nothing_left()
        return done.returncode, done.stdout + done.stderr

    return run_job


class RunningJob:
    """A job that trains."""

    def __init__(self, hosts, logs, *arguments):
        """Start it."""
        self._hosts = hosts
        command = launch(hosts, logs, *arguments, TRAINING)
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines = queue.SimpleQueue()
        self.said = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, word, count=1):
        """Read until a word has been said so often; return the lines with it."""
        found = []
        while len(found) < count:
            line = self._lines.get(timeout=DEADLINE_S)
            assert line is not None, self.said
            self.said += line
            if word in line:
                found.append(line)
        return found

    def pids(self, workers):
        """Wait until all workers train; return their process numbers on their hosts, by rank."""
        words = [line.split() for line in self.until("TRAINS", workers)]
        return {int(word[-2]): int(word[-1]) for word in words}

    @property
    def runs(self):
        """It has not ended."""
        return self._process.poll() is None

    def signal(self, name):
        """Send the launcher a signal."""
        self._hosts.run(LOGIN, ["pkill", f"-{name}", "-f", "bin/mpilaunch"])

    def end(self):
        """Wait for the end; return the exit code and seconds."""
        began = time.monotonic()
        with contextlib.suppress(queue.Empty):
            while (line := self._lines.get(timeout=DEADLINE_S)) is not None:
                self.said += line
        return self._process.wait(DEADLINE_S), time.monotonic() - began

    def close(self):
        """End what a failed test has left."""
        if self.runs:
            self.signal("KILL")
            self._process.wait(DEADLINE_S)


@pytest.fixture(name="start")
def _start(tmp_path):
    """Start jobs that train until they are ended."""
    jobs = []

    def start(hosts, *arguments):
        jobs.append(RunningJob(hosts, tmp_path / "logs", *arguments))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()
