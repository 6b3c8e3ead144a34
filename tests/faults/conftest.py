"""Starts whole jobs of small scripts that do one thing wrong, or to which something is done."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
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


def command(tmp_path, fault, layout, *, grace=60, script="faulty.py", options=()):
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


MOVED_INTO = 0x80
"""``IN_MOVED_TO`` of inotify: a snapshot takes its place by a renaming."""


@contextlib.contextmanager
def news_of(folder):
    """Yield a descriptor that can be read once something has been moved into a folder, which is made."""
    folder.mkdir(exist_ok=True)
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_CLOEXEC)
    try:
        assert library.inotify_add_watch(descriptor, os.fsencode(folder), MOVED_INTO) > 0
        yield descriptor
    finally:
        os.close(descriptor)


def wait_to_read(descriptor, what):
    """Wait until a descriptor can be read."""
    assert select.select([descriptor], [], [], DEADLINE_S)[0], f"{what} has not come about"


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
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

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

    @staticmethod
    def wait_for_ends(pids):
        """Wait until processes, which need not be our children, have ended."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as process:
                wait_to_read(process, f"the end of {pid}")

    @staticmethod
    def wait_for_file(path):
        """Wait until a snapshot is there."""
        with news_of(path.parent) as news:
            while not path.exists():
                wait_to_read(news, f"the file {path}")
                os.read(news, 4096)

    @staticmethod
    def wait_for_news(path):
        """Wait until a snapshot is written, anew if it is there, or a link of its chain."""

        def written():
            found = set()
            for each in path.parent.glob(f"{path.name}*"):
                with contextlib.suppress(FileNotFoundError):  # of a chain that has been begun anew
                    if each == path or each.suffix[1:].isdigit():
                        found.add((each.name, each.stat().st_mtime_ns))
            return found

        with news_of(path.parent) as news:
            before = written()
            while written() <= before:
                wait_to_read(news, f"a new file {path}")
                os.read(news, 4096)

    def family(self):
        """Return the process numbers of all its processes."""
        return [process.pid for process in psutil.Process(self.process.pid).children(recursive=True)]

    def _states(self):
        """Describe its processes, for whoever wants to know why it does not end."""
        fields = ["pid", "ppid", "status", "cmdline"]
        family = psutil.Process(self.process.pid).children(recursive=True)
        return "\n".join(str(each.as_dict(fields)) for each in family)

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
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job has not ended; of it there are\n{self._states()}\n{''.join(self.lines)}")
        self._reader.join(DEADLINE_S)  # the last lines may still be in the pipe
        assert not self._reader.is_alive(), "somebody still holds the job's output open"
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
