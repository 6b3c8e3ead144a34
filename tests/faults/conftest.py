"""Starts whole jobs of small scripts that do one thing wrong, or to which something is done."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

FOLDER = Path(__file__).parent
DEADLINE_S = 240
"""No test waits longer for anything. What it waits for is an event; on a busy machine that comes late."""

PATIENT = {
    "KVMPI_CONNECT_TIMEOUT": "120",
    "KVMPI_STEP_TIMEOUT": "120",
    "KVMPI_FINISH_TIMEOUT": "120",
    "OMP_NUM_THREADS": "1",
}
"""Deadlines of a job, which are no part of what a test shows, and which a busy machine keeps."""


def command(tmp_path, fault, layout, *, grace=3, script="faulty.py", options=()):
    """Return the command line of a job."""
    clients, per_client, servers = layout
    return [
        str(Path(sys.executable).with_name("mpilaunch")),
        *("--clients", str(clients), "--workers", str(clients * per_client), "--servers", str(servers)),
        *("--grace", str(grace), "--log-dir", str(tmp_path), *map(str, options), str(FOLDER / script)),
        str(fault),
    ]


@pytest.fixture
def run(tmp_path):
    """Run jobs to their end; return exit code, seconds and all that was said."""

    def run_job(fault, layout, **environment):
        start = time.monotonic()
        done = subprocess.run(
            command(tmp_path, fault, layout),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            env={**os.environ, **PATIENT, **environment},
        )
        return done.returncode, time.monotonic() - start, done.stdout + done.stderr

    return run_job


LOOK_S = 0.02
"""From one look at a file or a process to the next."""


class Job:
    """A job under way, with its output collected by a thread."""

    def __init__(self, tmp_path, fault, layout, *, environment=(), **options):
        self.folder = tmp_path
        self.process = subprocess.Popen(
            command(tmp_path, fault, layout, **options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **PATIENT, **dict(environment)},
        )
        self.lines = []
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    def workers(self, count):
        """Wait until the workers train; return their process numbers by rank."""
        pattern = re.compile(r"READY (\d+) (\d+)")

        def found():
            return dict(m.groups() for line in list(self.lines) if (m := pattern.search(line)))

        with self._news:
            assert self._news.wait_for(lambda: len(found()) == count, DEADLINE_S), "".join(self.lines)
        return {int(rank): int(pid) for rank, pid in found().items()}

    def wait_for(self, text, count=1):
        """Wait until ``count`` lines have a text; return them."""

        def found():
            return [line for line in list(self.lines) if text in line]

        with self._news:
            assert self._news.wait_for(lambda: len(found()) >= count, DEADLINE_S), "".join(self.lines)
        return found()

    def wait_until(self, holds, what="what is waited for"):
        """Wait until something that tells nobody holds: looked for at each line of output, or soon."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, f"{what} has not come about"
            with self._news:
                self._news.wait(LOOK_S)

    def wait_for_file(self, path):
        """Wait until a file is there."""
        self.wait_until(path.exists, f"the file {path}")

    def wait_for_news(self, path):
        """Wait until a file is written, anew if it is there."""

        def written():
            return path.stat().st_mtime_ns if path.exists() else 0

        before = written()
        self.wait_until(lambda: written() > before, f"a new file {path}")

    def family(self):
        """Return the process numbers of all its processes."""
        return [process.pid for process in psutil.Process(self.process.pid).children(recursive=True)]

    @staticmethod
    def is_alive(pid):
        """Tell whether a process runs."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        return False

    def services(self):
        """Return the process numbers of scheduler and servers."""
        pids = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                if process.cmdline()[1:] and "kvstore_mpi" in process.cmdline()[-1]:
                    role = environment.get("KVMPI_ROLE", "")
                    pids[role + environment.get("KVMPI_INDEX", "")] = process.pid
        return pids

    def end(self):
        """Wait for the end; return the exit code and all that was said."""
        code = self.process.wait(DEADLINE_S)
        return code, "".join(self.lines)


@pytest.fixture
def start(tmp_path):
    """Start jobs; one that a failed test leaves running is killed, and its guard ends the rest."""
    jobs = []

    def start_job(*args, **kwargs):
        jobs.append(Job(tmp_path, *args, **kwargs))
        return jobs[-1]

    yield start_job
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait(DEADLINE_S)
