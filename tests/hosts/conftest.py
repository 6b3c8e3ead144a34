"""Hosts with an sshd each, made once for all tests, and jobs on them."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import virtual_slurm
from support.virtual_hosts import LOGIN, VirtualHosts, missing

MPILAUNCH = str(Path(sys.executable).with_name("mpilaunch"))
TRAINING = str(Path(__file__).with_name("training.py"))
ALLOCATE = ("salloc", "--quiet", "--nodes=4", "--ntasks-per-node=2")
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


@pytest.fixture(name="slurm", scope="module")
def _slurm(tmp_path_factory):
    """Four hosts of a Slurm cluster, and a login node."""
    why = virtual_slurm.missing()
    if why:
        pytest.skip(why)
    with virtual_slurm.VirtualSlurm(4, tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def launch(cluster, logs, *arguments, env=None):
    """Return the command that runs mpilaunch on the login node, under Slurm in an allocation."""
    mine = [f"{name}={value}" for name, value in (env or {}).items()]
    own = ["env", *mine, MPILAUNCH, "--log-dir", str(logs), "--env", "OMP_NUM_THREADS=1"]
    if isinstance(cluster, virtual_slurm.VirtualSlurm):
        return cluster.command([*ALLOCATE, *own, *map(str, arguments)])
    return cluster.command(LOGIN, [*own, "--ssh", cluster.ssh, *map(str, arguments)])


@pytest.fixture(name="run")
def _run(tmp_path):
    """Run jobs from the login node to their end; nothing of them is left anywhere."""

    def run_job(cluster, *arguments, env=None):
        done = subprocess.run(
            launch(cluster, tmp_path, *arguments, env=env),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        hosts_of(cluster).check_nothing_left()
        return done.returncode, done.stdout + done.stderr

    return run_job


def hosts_of(cluster):
    """Return the hosts, whatever manages them."""
    return cluster.hosts if isinstance(cluster, virtual_slurm.VirtualSlurm) else cluster


class RunningJob:
    """A job that trains."""

    def __init__(self, cluster, logs, *arguments, script=TRAINING, env=None):
        """Start it."""
        self._hosts = hosts_of(cluster)
        command = launch(cluster, logs, *arguments, script, env=env)
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
        if name == "CONT":  # what has entered the host, and waits for the launcher, has stopped with it
            self._process.send_signal(signal.SIGCONT)

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

    def start(cluster, *arguments, **how):
        jobs.append(RunningJob(cluster, tmp_path / "logs", *arguments, **how))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()
