"""Starts the launcher with fake services and small scripts, and makes sure that nothing is left of it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
DEADLINE = 240.0


class Launch:
    """One running launcher, the lines it has printed, and its private directory."""

    def __init__(self, folder, arguments, program):
        self.folder = folder
        self.started = time.monotonic()
        path = os.pathsep.join([str(SCRIPTS / "without_mxnet"), str(SCRIPTS)])
        self.process = subprocess.Popen(
            [sys.executable, *program, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.lines = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._said:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self._said.notify_all()

    def wait_for(self, text, count=1):
        """Wait until a text stands in ``count`` lines; return those."""
        with self._said:
            assert self._said.wait_for(lambda: len(self.with_text(text)) >= count, DEADLINE), self.text
            return self.with_text(text)

    def with_text(self, text):
        return [line for line in self.lines if text in line]

    def number_after(self, text):
        """Wait for a line with a text; return the number that ends it."""
        return int(self.wait_for(text)[0].split()[-1])

    def child(self, *programs):
        """Return the process of the launcher's own whose program has one of these names."""
        for pid, argv in self.leftovers()[0]:
            parent = re.search(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]
            name = Path(argv.split(b"\0")[0].decode()).name
            if int(parent) == self.process.pid and name.startswith(programs):
                return pid
        raise LookupError(programs)

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        """Wait for the end; return the exit code."""
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code

    @property
    def text(self):
        return "\n".join(self.lines)

    def leftovers(self):
        """Processes whose environment names this launch's folder, and files in its temporary folder."""
        processes = []
        for entry in Path("/proc").iterdir():
            try:
                environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            if str(self.folder).encode() in environment:
                processes.append((int(entry.name), (entry / "cmdline").read_bytes()))
        return processes, list((self.folder / "tmp").iterdir())

    def wait_until_clean(self):
        """After the launcher's SIGKILL: wait until the reaper has removed the private directory."""
        deadline = time.monotonic() + DEADLINE
        while self.leftovers() != ([], []) and time.monotonic() < deadline:
            os.sched_yield()
        assert self.leftovers() == ([], [])


@pytest.fixture
def launch(tmp_path):
    """Return a function that starts the launcher; whatever it started is gone at the end."""
    launches = []

    def start(*arguments, program=(str(SCRIPTS / "drive.py"),)):
        folder = tmp_path / str(len(launches))
        (folder / "tmp").mkdir(parents=True)
        launches.append(Launch(folder, arguments, program))
        return launches[-1]

    yield start
    for each in launches:
        if each.process.poll() is None:
            each.signal(signal.SIGKILL)
            each.wait()
        each.wait_until_clean()


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script that knows ``client`` and ``rank`` and has joined."""

    def write(body, *, join=True):
        path = tmp_path / "train.py"
        head = "import os, sys, time, signal, fake_worker\nfrom mpi4py import MPI\n"
        head += "client, rank = int(os.environ['KVMPI_CLIENT']), MPI.COMM_WORLD.rank\n"
        path.write_text(head + ("fake_worker.join()\n" if join else "") + body)
        return path

    return write
