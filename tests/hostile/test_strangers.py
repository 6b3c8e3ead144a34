"""Another user of the host, on every port and socket of a running job, which goes on as ever."""

from __future__ import annotations

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
MEMORY_BYTES = 64 << 20
LOG_LINES = 20

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.mxnet,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


def wait_until(holds, what):
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"{what} has not come about"
        os.sched_yield()


class Job:
    """A job that trains until it is told that it is enough."""

    def __init__(self, folder):
        self.folder = folder
        mpilaunch = str(Path(sys.executable).with_name("mpilaunch"))
        shape = ("--clients", "2", "--workers", "4", "--servers", "1", "--log-dir", str(folder / "logs"))
        patience = ("--set", "step_timeout=200", "--set", "connect_timeout=120")
        script = (str(FOLDER / "training.py"), str(folder))
        self.process = subprocess.Popen(
            [mpilaunch, *shape, *patience, *script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        self.lines.extend(self.process.stdout)

    @property
    def text(self):
        return "".join(self.lines)

    def steps(self):
        """Return how many steps have been taken."""
        path = self.folder / "steps"
        return int(path.read_text()) if path.exists() else 0

    def takes_steps(self):
        """Wait until it has gone on."""
        before = self.steps()
        wait_until(lambda: self.steps() > before + 40, f"the next step after {before}")

    def processes(self):
        return psutil.Process(self.process.pid).children(recursive=True)

    def places(self):
        """Return the TCP ports and the abstract sockets on which its processes listen."""
        everybody = [psutil.Process(self.process.pid), *self.processes()]
        ports = {
            connection.laddr.port
            for process in everybody
            for connection in process.net_connections(kind="tcp4")
            if connection.status == psutil.CONN_LISTEN
        }
        table = Path("/proc/net/unix").read_text().splitlines()[1:]
        listens = {fields[6]: fields[7] for fields in map(str.split, table) if len(fields) > 7}
        inodes = {inode for process in everybody for inode in _inodes(process.pid)}
        names = {name[1:] for inode, name in listens.items() if inode in inodes and name.startswith("@")}
        return sorted(map(str, ports)), sorted(names)

    def memory(self):
        """Return the bytes that its processes hold for themselves."""
        return sum(_anonymous(process.pid) for process in self.processes())

    def end(self):
        (self.folder / "enough").touch()
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code


def _inodes(pid):
    names = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return re.findall(r"socket:\[(\d+)\]", " ".join(names))


def _anonymous(pid):
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    yield job
    if job.process.poll() is None:
        job.process.terminate()
        job.process.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("half_open", "endless_bytes"),
    [(100, 4 << 20), (1_000, 64 << 20)],
    ids=["some", "many"],
)
@pytest.mark.thorough
def test_a_job_does_not_notice_strangers(job, half_open, endless_bytes):
    """Steps go on, memory and log stay as they are, and it ends with 0, mpiexec being held."""
    wait_until(lambda: job.text.count("READY") == 4 or job.process.poll() is not None, "the start")
    job.takes_steps()
    ports, names = job.places()
    assert len(ports) >= 4, "scheduler, server and two mpiexec"
    assert any(name.startswith("kvstore_mpi-") for name in names)
    before, said = job.memory(), len(job.lines)
    amounts = {"HALF_OPEN": str(half_open), "ENDLESS_BYTES": str(endless_bytes)}
    with subprocess.Popen(
        [sys.executable, str(FOLDER / "stranger.py"), *ports, *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **amounts},
    ) as stranger:
        job.takes_steps()
        assert stranger.stdout.readline().startswith("all is done")
        job.takes_steps()
        assert job.memory() - before < MEMORY_BYTES
        code = job.end()
        stranger.stdin.close()
    assert code == 0, job.text[-3000:]
    assert job.text.count("DONE") == 4
    assert len(job.lines) - said - 4 <= LOG_LINES, job.text[-5000:]
