"""Jobs whose output nobody reads for a while: they are supervised all the same."""

import contextlib
import os
import pty
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.mpi

SPEAK = """
import os, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
pipe = open("tells", "w", buffering=1)
print("first")
for _ in range(6000):  # more than a pipe, a terminal and the launcher hold
    print("x" * 999)
pipe.write(f"{rank} spoke {os.getpid()}\\n")
try:
    time.sleep(1000)
finally:
    pipe.write(f"{rank} saved {os.getpid()}\\n")
"""


def two_ends(kind):
    """Make a pipe or a terminal; return the end that is read, and the one that is written."""
    return pty.openpty() if kind == "terminal" else os.pipe()


def read_all(descriptor):
    """Read to the end, which at a terminal is an error."""
    text = b""
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 1 << 20):
            text += data
    os.close(descriptor)
    return text.decode()


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_death_is_noticed_while_nobody_reads(tmp_path, kind):
    """A worker is killed, the other saves, and both are gone, before anybody reads on."""
    os.mkfifo(tmp_path / "tells")
    (tmp_path / "speak.py").write_text(SPEAK)
    reading, writing = two_ends(kind)
    if kind == "terminal":
        os.write(reading, b"\x13")  # Ctrl-S
    command = [sys.executable, "-m", "mpilaunch", "--workers", "2", "--servers", "0", "--grace", "100"]
    job = subprocess.Popen(
        [*command, "speak.py"],
        cwd=tmp_path,
        stdout=writing,
        stderr=writing,
        start_new_session=True,
    )
    os.close(writing)
    with (tmp_path / "tells").open() as tells:
        pids = {rank: int(pid) for rank, _, pid in (tells.readline().split() for _ in range(2))}
        os.kill(pids["1"], signal.SIGKILL)
        assert tells.readline() == f"0 saved {pids['0']}\n"
        assert tells.readline() == ""  # nobody has it open: they are gone
    assert job.poll() is None
    if kind == "terminal":
        os.write(reading, b"\x11")
    said = read_all(reading)
    assert job.wait() == 137
    assert "lines were left out, for nobody read them" in said
    assert "client0.1 on" in said
    assert "failed first: SIGKILL" in said
    for log in tmp_path.glob("mpilaunch-logs/*/client0.?.log"):
        assert log.read_text().count("x\n") == 6000
