"""What goes wrong ends the whole job in time with one clear error; what comes from strangers is ignored."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import zmq

SCRIPT = Path(__file__).with_name("faulty.py")
DEADLINE_S = 60
QUICK = {
    "KVMPI_CONNECT_TIMEOUT": "8",
    "KVMPI_STEP_TIMEOUT": "15",
    "KVMPI_FINISH_TIMEOUT": "15",
    "OMP_NUM_THREADS": "1",
}

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(150)]


def command(tmp_path, fault, layout, grace=3):
    """Return the command line of a job."""
    clients, per_client, servers = layout
    return [
        str(Path(sys.executable).with_name("mpilaunch")),
        *("--clients", str(clients), "--workers", str(clients * per_client), "--servers", str(servers)),
        *("--grace", str(grace), "--log-dir", str(tmp_path), str(SCRIPT), fault),
    ]


def run(tmp_path, fault, layout):
    """Run a job to its end; return exit code, seconds and all that it said."""
    start = time.monotonic()
    done = subprocess.run(
        command(tmp_path, fault, layout),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, **QUICK},
    )
    return done.returncode, time.monotonic() - start, done.stdout + done.stderr


@pytest.mark.parametrize("layout", [(2, 1, 1), (1, 2, 0), (1, 2, 1)], ids=lambda v: "x".join(map(str, v)))
@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("shapes_differ", 76, ("'w'", "(3, 3)", "(3, 2)", "client")),
        ("dtypes_differ", 76, ("'w'", "float64", "float32", "client")),
        ("keys_differ", 76, ("'extra'", "client", "rank 0")),
        ("unequal_batches", (69, 76), ("'w'", "unequal numbers of batches")),
        ("unequal_batches_last", (69, 76), ("'w'", "unequal numbers of batches")),
    ],
)
def test_workers_that_disagree(tmp_path, fault, code, words, layout):
    """The error names the key, what differs and who; all processes end."""
    returncode, _, said = run(tmp_path, fault, layout)
    assert returncode in (code if isinstance(code, tuple) else (code,)), said[-3000:]
    for word in words:
        assert word in said, f"{word} is not in: {said[-3000:]}"


@pytest.mark.parametrize(
    ("fault", "layout", "code", "words"),
    [
        ("push_before_init", (2, 1, 1), 64, ("'w'", "init", "worker")),
        ("push_before_init", (1, 1, 0), 64, ("'w'", "init", "worker")),
        ("init_again", (2, 1, 1), 64, ("'w'", "(3,)", "(4,)", "duplicate init")),
        ("async_without_optimizer", (2, 1, 1), 64, ("'w'", "async", "set_optimizer")),
        ("async_without_optimizer", (1, 2, 0), 64, ("async", "servers")),
        ("unknown_optimizer", (2, 1, 1), 64, ("Mine", "register")),
        ("never_joins", (2, 1, 1), 78, ("joined", '"sync-mpi"', "dist_sync_mpi")),
        ("never_joins", (1, 2, 0), 78, ("joined", '"sync-mpi"', "dist_sync_mpi")),
    ],
)
def test_wrong_use(tmp_path, fault, layout, code, words):
    """The error says what was wrong and what to do."""
    returncode, _, said = run(tmp_path, fault, layout)
    assert returncode == code, said[-3000:]
    for word in words:
        assert word in said, f"{word} is not in: {said[-3000:]}"


@pytest.mark.parametrize("layout", [(2, 1, 1), (1, 2, 0)], ids=lambda v: "x".join(map(str, v)))
def test_nan_passes_through(tmp_path, layout):
    """NaN and infinity travel like other values."""
    returncode, _, said = run(tmp_path, "nan_passes", layout)
    assert returncode == 0, said[-3000:]


class Job:
    """A job under way, with its output collected by a thread."""

    def __init__(self, tmp_path, fault, layout, grace=3):
        self.process = subprocess.Popen(
            command(tmp_path, fault, layout, grace=grace),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **QUICK},
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


@pytest.mark.parametrize("victim", ["worker", "server", "scheduler"])
def test_killed_process_ends_the_job(start, victim):
    """SIGKILL of any process is named, ends the job soon, and leaves no process behind."""
    job = start("train_for_ever", (2, 1, 1))
    workers = job.workers(2)
    services = job.services()
    family = [process.pid for process in psutil.Process(job.process.pid).children(recursive=True)]
    target = (
        workers[1] if victim == "worker" else next(p for n, p in services.items() if n.startswith(victim))
    )
    begin = time.monotonic()
    os.kill(target, signal.SIGKILL)
    code, said = job.end()
    assert code == 128 + signal.SIGKILL, said[-3000:]
    assert time.monotonic() - begin < 20
    assert {"worker": "client1.0", "server": "server0", "scheduler": "scheduler"}[victim] in said
    assert "SIGKILL" in said
    assert [pid for pid in family if psutil.pid_exists(pid) and _is_alive(pid)] == []


def _is_alive(pid):
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_job_that_is_told_to_end_saves(start, number):
    """In the middle of a step, with ranks waiting for each other, all come to save, and soon."""
    job = start("save_at_the_end", (2, 2, 1), grace=30)
    job.workers(4)
    begin = time.monotonic()
    job.process.send_signal(number)
    code, said = job.end()
    assert code == 75, said[-3000:]
    assert said.count("SAVED") == 4, said[-3000:]
    assert time.monotonic() - begin < 15


def test_strangers_are_ignored(start):
    """Port scans, garbage and a foreign ZeroMQ client on every port change nothing."""
    job = start("train_a_while", (2, 1, 1))
    workers = job.workers(2)
    ports = {
        connection.laddr.port
        for pid in job.services().values()
        for connection in psutil.Process(pid).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert len(ports) == 2
    context = zmq.Context()
    for port in ports:
        _annoy(context, port)
    for pid in workers.values():
        os.kill(pid, signal.SIGUSR2)
    code, said = job.end()
    context.destroy(linger=0)
    assert code == 0, said[-3000:]
    assert said.count("DONE") == 2


def _annoy(context, port):
    random = bytes(range(256)) * 8
    for data in (b"", b"GET / HTTP/1.0\r\n\r\n", random, b"\xff" + b"\0" * 8 + b"\x01\x7f" + random):
        stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
        with stranger, contextlib.suppress(OSError):
            stranger.sendall(data)
    for kind in (zmq.DEALER, zmq.REQ, zmq.PUSH):
        foreign = context.socket(kind)
        foreign.linger = 0
        foreign.connect(f"tcp://127.0.0.1:{port}")
        with contextlib.suppress(zmq.Again):
            foreign.send_multipart([b"", b"hello", random], flags=zmq.NOBLOCK)
