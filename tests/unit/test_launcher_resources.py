"""What the launcher does when the host has no room, no files or no processes left."""

import errno
import gc
import io
import json
import os
import select
import subprocess
import sys
import tempfile

import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import ConfigurationError
from mpilaunch import cli, descriptors
from mpilaunch.events import Limits
from mpilaunch.hosts.local import LocalHost
from mpilaunch.jobspec import JobSpec, Target
from mpilaunch.plan import Plan, Process
from mpilaunch.printer import LogFiles, Printer
from mpilaunch.rank.record import ExitRecord, RankName
from mpilaunch.rank.reporter import Reporter
from mpilaunch.seeing.observer import Observer
from mpilaunch.supervise import Supervisor

FULL = OSError(errno.ENOSPC, "No space left on device", "/tmp/x")


def raises(error):
    def fail(*_arguments, **_options):
        raise error

    return fail


# --- files that a process may have open ---


@pytest.mark.parametrize(
    ("clients", "workers", "servers", "restarts", "count"),
    [(1, 1, 0, 0, 52), (2, 4, 1, 0, 68), (2, 64, 4, 0, 378), (1, 400, 0, 0, 2035), (2, 100, 1, 50, 3096)],
)
def test_how_many_files_a_job_needs(clients, workers, servers, restarts, count):
    """With many workers the launcher's pipes decide, and with restarts the logs."""
    node = NodeConfig(num_clients=clients, num_workers=workers, num_servers=servers)
    assert descriptors.needed(JobSpec(Target.SCRIPT, ("x",), node, max_restarts=restarts)) == count


def test_a_job_that_is_resumed_has_the_files_of_the_former_one_open():
    """In each of its servers."""
    node = NodeConfig(num_workers=1, num_servers=9, snapshot_dir="s", resume=True)
    assert descriptors.needed(JobSpec(Target.SCRIPT, ("x",), node)) == 48 + 9 * 65 + 4 * 10


def test_connections_to_the_metrics_are_among_the_files():
    """Who asks for numbers takes none from the job."""
    node = NodeConfig(num_workers=400)
    alone, watched = (JobSpec(Target.SCRIPT, ("x",), node, metrics=text) for text in ("", "0"))
    assert descriptors.needed(watched) == descriptors.needed(alone) + descriptors.METRICS + 2


def test_a_launcher_without_descriptors_says_so(tmp_path, monkeypatch, capsys):
    """In one line, with the code for what has run out; other errors of the system are defects."""
    (tmp_path / "train.py").touch()
    command = ["--workers", "1", str(tmp_path / "train.py")]
    monkeypatch.setattr(cli, "run_job", raises(OSError(errno.EMFILE, "Too many open files")))
    assert cli.main(command) == 71
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("mpilaunch: Too many open files: raise the limit (ulimit -n)")
    monkeypatch.setattr(cli, "run_job", raises(FULL))
    with pytest.raises(OSError, match="No space left"):
        cli.main(command)


def limited(soft, hard, count):
    """Ask for ``count`` files in a process with these limits; return the new ones, or what is said."""
    program = f"""
import resource
from mpilaunch import descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    descriptors.allow({count})
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
except descriptors.ConfigurationError as error:
    print(error)
"""
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()


def test_a_limit_is_raised_as_far_as_it_may_be():
    """A message says what to do where that is not enough; nothing has been started then."""
    assert limited(30, 60, 25) == "30 60"
    assert limited(30, 60, 60) == "60 60"
    assert "the limit is 60: raise it (ulimit -n 61)" in limited(30, 60, 61)


# --- no room ---


def test_a_private_folder_that_cannot_be_made(monkeypatch):
    """The disk of TMPDIR is full: one message."""
    monkeypatch.setattr("mpilaunch.hosts.local.tempfile.mkdtemp", raises(FULL))
    with pytest.raises(ConfigurationError, match=r"No space left on device \(/tmp/x\); .* TMPDIR"):
        cli._make_local()


@pytest.mark.parametrize("name", ["events", "status"])
def test_a_private_folder_without_room_for_a_pipe(tmp_path, monkeypatch, capfd, name):
    """There are no inodes: one message, with the path, before anything is started."""
    make = os.mkfifo

    def fail(path, mode):
        if path.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")  # Python's own has no path
        make(path, mode)

    monkeypatch.setattr(os, "mkfifo", fail)
    (tmp_path / "train.py").touch()
    assert cli.main(["--workers", "1", "--log-dir", str(tmp_path), str(tmp_path / "train.py")]) == 78
    (said,) = capfd.readouterr().err.splitlines()
    assert f"cannot be made or used: No space left on device ({tempfile.gettempdir()}" in said
    assert said.endswith(f"/records/{name}); choose another place with TMPDIR")


def test_what_imports_have_made_is_looked_at_by_no_collection(tmp_path, monkeypatch):
    """The one at the end took a seventh of what mpilaunch itself does in a job."""
    kept = []
    monkeypatch.setattr(gc, "freeze", lambda: kept.append("what there is"))
    monkeypatch.setattr(cli, "find_mpi", raises(ConfigurationError("no MPI")))
    (tmp_path / "train.py").touch()
    assert cli.main(["--workers", "1", str(tmp_path / "train.py")]) == 78
    assert kept == ["what there is"]


def test_a_rank_that_can_leave_no_record_sends_it(tmp_path, monkeypatch):
    """In one write that does not mix with others', however long the error's text is."""
    os.mkfifo(tmp_path / "events")
    events = os.open(tmp_path / "events", os.O_RDWR | os.O_NONBLOCK)
    monkeypatch.setattr("mpilaunch.rank.reporter.private_files.create", raises(FULL))
    text = '"\\\U0001f600' * 5_000
    record = ExitRecord(0, 1, "host", 7, 76, "MismatchError", text, ["a" * 1_000] * 40, 1.5, 2.5)
    Reporter(tmp_path, RankName(0, 1)).record_end(record)
    line = os.read(events, 1 << 20)
    os.close(events)
    assert len(line) <= select.PIPE_BUF
    sent = ExitRecord.read(json.loads(line)["record"].encode())
    assert sent == record.brief()
    assert (sent.code, sent.error, sent.text) == (76, "MismatchError", text[:100])
    assert [path.name for path in tmp_path.iterdir()] == ["events"]


# --- jobs of which something cannot be started ---


def supervise(tmp_path, *clients):
    """Run a job of programs that are no MPI; return its verdict and what was said."""
    processes = tuple(Process(f"client{index}", argv, ()) for index, argv in enumerate(clients))
    out = io.StringIO()
    with LocalHost() as host:
        printer = Printer(out, out, LogFiles(tmp_path))
        plan = Plan(None, (), processes, 1, wrapped=True)
        observer = Observer(JobSpec(Target.EXECUTABLE, ("true",)), "job", host.directory, printer)
        limits = Limits(grace=60.0)
        verdict = Supervisor(plan, {"": host}, printer, dict(os.environ), limits, observer=observer).run()
        return verdict, printer.tails


def test_a_process_that_cannot_be_started_ends_the_job_in_order(tmp_path):
    """The others are told to save, as after any other failure."""
    verdict, tails = supervise(tmp_path, ("sleep", "100"), ("/nowhere/mpiexec",))
    assert (verdict.code, verdict.cause.who) == (71, "client1")
    assert "cannot be started: [Errno 2] No such file or directory" in tails["client1"][0]
    assert verdict.unsaved == ()
