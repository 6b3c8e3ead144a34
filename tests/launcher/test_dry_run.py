"""What ``--dry-run`` prints runs when it is pasted into a shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore_mpi.config import PREFIX

pytestmark = pytest.mark.mpi

SCRIPTS = Path(__file__).parent / "scripts"
JOINS = SCRIPTS / "joins.py"


def printed(*arguments):
    """Return the script that mpilaunch prints."""
    command = [sys.executable, "-m", "mpilaunch.cli", "--dry-run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout


def run(script, private):
    """Run a script with its temporary files in a folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    path = f"{SCRIPTS / 'without_mxnet'}"
    return subprocess.run(
        ["sh", "-eu"],
        input=script,
        env={**environment, "TMPDIR": str(private), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_printed_script_runs_the_job(tmp_path):
    """As it stands, from a job file; nothing of it is left."""
    config = tmp_path / "job.toml"
    config.write_text(f"clients = 2\nservers = 1\nscript = '{JOINS}'\n[env]\nWORD = \"it's a b\"\n")
    folder = tmp_path / "a b"
    folder.mkdir()
    script = printed("--config", config)
    assert """WORD='it'"'"'s a b'""" in script
    # The scheduler, the server and both clients: they must agree.
    assert script.count("KVMPI_SLICE_ELEMENTS=1000000 ") == 4
    done = run(script, folder)
    assert (done.returncode, list(folder.iterdir())) == (0, []), done.stderr
    assert {f"joined as {rank} of 2" for rank in range(2)} <= set(done.stdout.splitlines())


def test_the_printed_script_makes_what_processes_look_for(tmp_path):
    """The folder for snapshots, and the pipe on which the scheduler would hear of restarts."""
    snapshots, private = tmp_path / "sn ap", tmp_path / "private"
    private.mkdir()
    script = printed("--servers", 1, "--max-restarts", 2, "--snapshot-dir", snapshots, JOINS)
    done = run(script, private)
    assert (done.returncode, list(private.iterdir())) == (0, []), done.stderr
    assert "Traceback" not in done.stderr
    assert "snapshot" not in done.stderr
    assert snapshots.stat().st_mode & 0o777 == 0o700


def test_nobody_needs_to_read_it_all():
    """``mpilaunch --dry-run ... | head``: no traceback, and the code of SIGPIPE."""
    command = [sys.executable, "-m", "mpilaunch.cli", "--dry-run", str(JOINS)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=100, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--dry-run", JOINS),
        ("--version",),
        ("--help",),
        ("doctor",),
        ("render", "--backend", "slurm", JOINS),
        ("plan", "--help"),
    ],
)
def test_what_cannot_be_written_is_one_line(arguments):
    """On a disk that is full, with the code of that; no traceback, nor a word of Python's at its end."""
    command = [sys.executable, "-m", "mpilaunch.cli", *map(str, arguments)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=100, check=False)
    said = "mpilaunch: what there is to say cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr.decode()) == (74, said)


def test_a_mistake_in_a_job_file_is_one_line(tmp_path):
    """With the exit code of wrong use; nothing is started."""
    config = tmp_path / "job.toml"
    config.write_text("cleints = 2\n")
    for path, words in ((config, "there is no 'cleints'"), (tmp_path / "no.toml", "cannot be read")):
        command = [sys.executable, "-m", "mpilaunch.cli", "--config", str(path), str(JOINS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, len(done.stderr.splitlines())) == (64, 1)
        assert f"{path}" in done.stderr
        assert words in done.stderr
