"""Whole jobs whose terminal is closed or output cannot be written, or that may open few files; memory."""

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore_mpi.config import NodeConfig
from mpilaunch.descriptors import needed
from mpilaunch.jobspec import JobSpec, Target

pytestmark = pytest.mark.mpi

DRIVE = str(Path(__file__).parent / "scripts" / "drive.py")
IN_TERMINAL = str(Path(__file__).parent / "scripts" / "in_terminal.py")

TALK = """
try:
    print("waiting")
    for number in range(1_000_000):
        print(number)
        time.sleep(0.05)
finally:
    print("saved")
"""


def logs_of(job):
    return {path.name: path.read_text() for path in job.folder.glob("mpilaunch-logs/*/*.log")}


def test_a_terminal_that_is_closed_lets_the_ranks_save(launch, script):
    """As SIGHUP does; the lines that nobody sees any more are in the logs."""
    job = launch("--workers", 2, "--grace", 60, script(TALK), program=(IN_TERMINAL,))
    assert job.wait() == 0, job.text
    assert job.lines == ["code 75"]
    logs = logs_of(job)
    assert all(logs[f"client0.{rank}.log"].endswith("saved\n") for rank in range(2))
    assert "ended by SIGHUP" in logs["mpilaunch.log"]


@pytest.mark.parametrize(("no_color", "shown"), [("", True), ("1", False)])
def test_a_terminal_shows_colours_unless_its_user_minds(tmp_path, no_color, shown):
    """As he says in his environment."""
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    reading, writing = pty.openpty()
    command = [sys.executable, "-m", "mpilaunch", "--workers", "1", "ends.py"]
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": no_color}
    job = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=writing, stderr=writing)
    os.close(writing)
    said = b""
    with open(reading, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # noqa: PTH123
        while data := terminal.read(1 << 16):  # its end is an error
            said += data
    assert job.wait() == 3
    assert b"failed first: exit code 3" in said
    assert (b"\x1b[" in said) == shown


@pytest.mark.parametrize("stream", [1, 2])
def test_output_to_a_full_disk_does_not_end_the_job(launch, script, stream):
    """One warning, and all lines are in the logs."""
    head = f"import os; os.dup2(os.open('/dev/full', os.O_WRONLY), {stream})"
    body = "print('hello', flush=True)\nprint('oh', file=sys.stderr)\n" * 3
    main = "; import sys; from mpilaunch.cli import main; sys.exit(main())"
    job = launch("--workers", 2, script(body), program=("-c", head + main))
    assert job.wait() == 0, job.text
    logs = logs_of(job)
    assert logs["mpilaunch.log"].count("cannot be written: No space left on device") == 1
    assert len(logs["client0.0.log"].split()) == 6


@pytest.mark.parametrize("code", [0, 3])
def test_what_a_script_takes_is_said_once_and_starts_no_job(launch, tmp_path, code):
    """A script that prints its help ends before there is a store: as a job, all ranks would have failed."""
    (tmp_path / "train.py").write_text(f"import sys; print('usage', sys.argv[1:]); sys.exit({code})")
    job = launch("--workers", 2, tmp_path / "train.py", "--help", program=("-m", "mpilaunch"))
    assert job.wait() == code, job.text
    assert (job.lines, logs_of(job)) == (["usage ['--help']"], {})


LIMITED = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {1})); "


@pytest.mark.parametrize("size", [(1, 2, 0), (2, 4, 1)])
def test_as_many_files_as_are_asked_for_are_enough(launch, script, size):
    """The limit that the host gives a shell is raised to that; with one less the job does not begin."""
    clients, workers, servers = size
    shape = ("--clients", clients, "--workers", workers, "--servers", servers)
    node = NodeConfig(num_clients=clients, num_workers=workers, num_servers=servers)
    count = needed(JobSpec(Target.SCRIPT, ("x",), node))
    drive = f"sys.argv[0] = {DRIVE!r}; runpy.run_path({DRIVE!r}, run_name='__main__')"
    job = launch(*shape, script("print('hello')\n"), program=("-c", LIMITED.format(20, count) + drive))
    assert job.wait() == 0, job.text
    main = "from mpilaunch.cli import main; sys.exit(main())"
    job = launch(*shape, script(""), program=("-c", LIMITED.format(20, count - 1) + main))
    assert job.wait() == 78
    (said,) = job.lines
    assert f"the limit is {count - 1}: raise it (ulimit -n {count})" in said


def test_ranks_keep_memory_that_they_will_need_again(launch, script):
    """What is freed at the end of the heap stays with the process: 40 MB in two pieces."""
    body = """
import numpy as np
from pathlib import Path
def use():
    pieces = [np.ones(20 << 20, np.uint8) for _ in range(2)]
    return megabytes()
def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
print("given back:", use() - megabytes())
"""
    job = launch("--workers", 1, "--grace", 20, script(body))
    assert job.wait() == 0, job.text
    assert job.with_text("given back: 0") or job.with_text("given back: 1"), job.text
