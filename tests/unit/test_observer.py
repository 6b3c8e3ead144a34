"""Asking the launcher of a running job: which one is found, what it answers, and what it writes."""

from __future__ import annotations

import io
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import ConfigurationError, PeerLostError, UsageError
from kvstore_mpi.metrics.stacks import STACK_SIGNAL
from kvstore_mpi.metrics.status import Status, Wait, encode
from kvstore_mpi.metrics.telling import STATUS_PIPE
from mpilaunch.hosts.local import LocalHost
from mpilaunch.jobspec import JobSpec, Target
from mpilaunch.printer import LogFiles, Printer
from mpilaunch.seeing import control, inspect_job, top
from mpilaunch.seeing.observer import Observer

WRITES = """
import sys
from kvstore_mpi.metrics.stacks import write_on_signal
from kvstore_mpi.wakeups import WakeUps
write_on_signal(sys.argv[1], "server0", WakeUps())
def hang():
    sys.stdout.write("hangs\\n")
    sys.stdout.flush()
    sys.stdin.read()
hang()
"""


class Seen:
    """An observer that is served by a thread, as the supervisor does, and one process that hangs."""

    def __init__(self, host, folder, command):
        self.host = host
        out = io.StringIO()
        self.printer = Printer(out, out, LogFiles(folder))
        self.out = out
        spec = JobSpec(Target.SCRIPT, command)
        self.observer = Observer(spec, "3f2aabcd", host.directory, self.printer)
        self.observer.listen([host])
        self.observer.starts("server0", host, "", self.ask)
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITES, f"{host.directory}/records"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline() == b"hangs\n"
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def ask(self):
        self.process.send_signal(STACK_SIGNAL)

    def serve(self):
        descriptor = self.observer.descriptor()
        while not self.over.is_set():
            select.select([descriptor], [], [], 0.05)
            self.observer.look()
            self.observer.tick(time.monotonic())
        os.close(descriptor)

    def close(self):
        self.over.set()
        self.thread.join(20)
        self.observer.close()
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def command():
    """What the ranks of the job run."""
    return ("train.py", "--fast")


@pytest.fixture
def seen(tmp_path, monkeypatch, command):
    monkeypatch.setattr(control.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "logs").mkdir()
    with LocalHost(tmp_path / f"{control.PRIVATE_PREFIX}x") as host:
        job = Seen(host, tmp_path / "logs", command)
        yield job
        job.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
def test_behind_a_link_of_another_user_no_job_is_looked_for(seen, tmp_path):
    """It leads to a directory of the own user's, and the job in it would be there twice."""
    link = tmp_path / f"{control.PRIVATE_PREFIX}y"
    link.symlink_to(seen.host.directory)
    os.chown(link, 65534, -1, follow_symlinks=False)
    assert [job.name for job in control.running_jobs()] == ["3f2aabcd"]


def test_another_user_is_not_believed(seen, monkeypatch):
    """Wherever the socket is: the kernel says who listens."""
    user = os.geteuid() + 1
    monkeypatch.setattr(control.os, "geteuid", lambda: user)
    with pytest.raises(PermissionError, match=f"user {user - 1} listens there, and not user {user}"):
        control.ask(Path(seen.host.directory), {"do": "name"})


def test_a_job_can_be_asked_about(seen):
    """By its name's beginning, its launcher's number, or as the only one; what it has told is shown."""
    with Path(seen.host.directory, "records", STATUS_PIPE).open("wb") as pipe:
        pipe.write(
            encode(Status("server0", 0, "node7", seen.process.pid, {"rounds": 12, "memory_bytes": 5e6}))
        )
    for name in ("", "3f2a", str(os.getpid())):
        assert control.find_job(name).name == "3f2aabcd"
    with pytest.raises(
        UsageError, match=rf"no job 'other' runs.*3f2aabcd \(train.py --fast, mpilaunch {os.getpid()}"
    ):
        control.find_job("other")
    out = io.StringIO()
    assert top.run(["3f2a"], out) == 0
    assert "job 3f2aabcd: train.py --fast" in out.getvalue()
    assert "server0  node7  runs      12" in out.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("has_rich", [True, False])
def test_on_a_terminal_it_is_drawn_until_the_job_ends(seen, monkeypatch, has_rich):
    """By rich where that is installed, and as plain lines otherwise."""
    if has_rich:
        pytest.importorskip("rich", reason="the extra top installs it")
    asked = []

    def ask(job, question):
        asked.append(question)
        if len(asked) == 3:
            raise PeerLostError("it has ended")
        return control.ask_job(job, question)

    monkeypatch.setattr(top, "ask_job", ask)
    monkeypatch.setattr(top, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(top.importlib.util, "find_spec", lambda name: object() if has_rich else None)
    out = Terminal()
    assert top.run([], out) == 0
    assert len(asked) == 3
    assert "job 3f2aabcd: train.py --fast" in out.getvalue()
    assert "server0" in out.getvalue()
    assert out.getvalue().endswith("job 3f2aabcd is not shown any more\n")


def test_a_picture_can_be_drawn(seen, tmp_path):
    """An SVG with the table, for documents."""
    pytest.importorskip("rich", reason="the extra top installs it")
    assert top.run(["--svg", str(tmp_path / "top.svg")], io.StringIO()) == 0
    assert "server0" in (tmp_path / "top.svg").read_text(encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"--svg .* cannot be written: Is a directory"):
        top.run(["--svg", str(tmp_path)], io.StringIO())


@pytest.mark.parametrize("command", [("a.py", "[/b]", "[red]", "1\n2\x1b[0m\udcff")])
def test_arguments_are_shown_as_they_are(seen, tmp_path):
    """They are no mark-up, and a heading is one line."""
    out = io.StringIO()
    assert top.run(["--once"], out) == 0
    heading, titles, _ = out.getvalue().splitlines()
    assert heading.startswith(r"job 3f2aabcd: a.py [/b] [red] 1\n2\x1b[0m\udcff, for ")
    assert titles.startswith("process")
    pytest.importorskip("rich", reason="the extra top installs it")
    assert top.run(["--svg", str(tmp_path / "top.svg")], io.StringIO()) == 0
    drawn = (tmp_path / "top.svg").read_text(encoding="utf-8").replace("&#160;", " ")
    assert r"a.py [/b] [red] 1\n2\x1b[0m\udcff, for " in drawn


def test_an_inspection_has_the_stacks_and_is_written_to_the_log_folder(seen):
    """Of a process that tells nothing, too; on the terminal is only who holds up the job."""
    out = io.StringIO()
    assert inspect_job.run(["3f2a"], out) == 0
    assert "MainThread:\n    <string>:" in out.getvalue()
    assert " in hang" in out.getvalue()
    [file] = (seen.printer.log_folder).glob("inspection-1.txt")
    assert "in hang" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert "inspection: somebody asked (mpilaunch inspect)" in seen.out.getvalue()
    assert "in hang" not in seen.out.getvalue()


@pytest.mark.parametrize(
    ("servers", "name", "ends"),
    [(1, "client0.2", True), (0, "client0.2", False), (0, "client0.0", True), (0, "client0.1", True)],
)
def test_a_lease_is_only_spoken_of_where_somebody_watches(tmp_path, servers, name, ends):
    """In pure MPI of two parts nobody ends a process that falls silent, but for the first ones of both."""
    (tmp_path / "job").mkdir()
    out = io.StringIO()
    node = NodeConfig(num_workers=2, num_servers=servers, model_parallel=2)
    spec = JobSpec(Target.SCRIPT, ("train.py",), node)
    observer = Observer(spec, "3f2aabcd", str(tmp_path / "job"), Printer(out, out, LogFiles(tmp_path)))
    observer.view.take(Status(name, 0, "h", 7, {}), 100.0)
    told = observer.view.why_due(130.0)
    assert told.endswith("30 s of 30 s" if ends else "without servers nobody ends it for that")
    observer.close()


def test_what_is_due_is_looked_for_once(tmp_path):
    """Before --timeout, and before a wait's own limit; again only after that has passed."""
    (tmp_path / "job").mkdir()
    out = io.StringIO()
    printer = Printer(out, out, LogFiles(tmp_path))
    spec = JobSpec(Target.SCRIPT, ("train.py",), timeout=100.0)
    observer = Observer(spec, "3f2aabcd", str(tmp_path / "job"), printer)
    began = time.monotonic()
    assert began + 90 < observer.deadline <= began + 95
    observer.tick(began + 94)
    assert observer.deadline <= began + 95
    observer.tick(began + 96)
    observer.tick(began + 99)
    [said] = [line for line in out.getvalue().splitlines() if "inspection:" in line]
    assert "ends soon (--timeout)" in said
    waits = [Wait("round", "round 3 of key 'w'", 597.0, 600.0, ["client0.0"], "w", 3)]
    for seconds in (100, 103, 106):
        observer.view.take(Status("server0", 0, "h", 7, {}, waits), began + seconds)
        observer.tick(began + seconds)
    assert out.getvalue().count("server0 has waited 597 s of 600 s (round 3 of key 'w')") == 1
    observer.view.take(Status("server0", 0, "h", 7), began + 109)
    observer.tick(began + 109)
    observer.view.take(Status("server0", 0, "h", 7, {}, waits), began + 110)
    for seconds in (110, 113):
        observer.tick(began + seconds)
    assert out.getvalue().count("server0 has waited 597 s of 600 s (round 3 of key 'w')") == 2
    observer.close()


def test_who_has_stood_still_calls_nobody_silent(tmp_path):
    """The launcher was stopped; who is silent from then on is looked for."""
    (tmp_path / "job").mkdir()
    out = io.StringIO()
    spec = JobSpec(Target.SCRIPT, ("train.py",))
    observer = Observer(spec, "3f2aabcd", str(tmp_path / "job"), Printer(out, out, LogFiles(tmp_path)))
    observer.view.take(Status("server0", 0, "h", 7), time.monotonic())
    late = observer.deadline + 1000
    observer.tick(late)
    assert late < observer.deadline
    [row] = observer.view.rows(late)
    assert (row.age, row.state) == (0, "runs")
    observer.tick(observer.deadline)
    observer.tick(observer.deadline)
    assert out.getvalue().count("inspection: server0 has not been heard of") == 1
    observer.close()


@pytest.mark.parametrize(
    ("silence", "told"),
    [
        (
            28.0,
            "nothing comes from mpilaunch's agent on node1, so that nothing is known of client1.0: it is",
        ),
        (2.0, "client1.0 on h (pid 7) holds up the job."),
        (0.5, "client1.0 on h (pid 7) holds up the job."),
    ],
)
def test_a_host_that_says_nothing_is_named_instead_of_its_processes(tmp_path, silence, told):
    """It is asked for a word first; one that is slow to answer was heard after its process."""
    out, asked = io.StringIO(), []
    with LocalHost(tmp_path / "job") as host:
        host.silence = lambda: asked.append("a word") or silence
        spec = JobSpec(Target.SCRIPT, ("train.py",))
        observer = Observer(spec, "3f2aabcd", host.directory, Printer(out, out, LogFiles(tmp_path)))
        observer.starts("client1.0", host, "node1", lambda: None)
        heard = time.monotonic()
        observer.view.take(Status("client1.0", 0, "h", 7), heard)
        observer.tick(heard + 25.5)
        assert asked == ["a word"]
        observer.tick(heard + 28)
        observer.close()
    assert told in out.getvalue()
    assert ("agent" in out.getvalue()) is (silence > 25)


def test_several_jobs_must_be_told_apart_and_one_that_has_gone_is_named(tmp_path):
    """The error lists them."""
    jobs = [control.Job(name, "x.py", 1, tmp_path) for name in ("ab1", "ab2")]
    with pytest.raises(UsageError, match=r"no job 'ab' runs"):
        control.find_job("ab", lambda: jobs)
    with pytest.raises(UsageError, match=r"say which job is meant.*ab1 \(x.py, mpilaunch 1\); ab2"):
        control.find_job("", lambda: jobs)
    with pytest.raises(UsageError, match="no job runs on this host; running jobs of yours: none"):
        control.find_job("", list)
    with pytest.raises(PeerLostError, match="the launcher of job ab1 does not answer any more"):
        control.ask_job(jobs[0], {"do": "top"}, 1.0)


def test_what_is_no_question_is_not_answered(seen):
    """The connection ends, and the next one is served."""
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(f"{seen.host.directory}/{control.CONTROL}")
        stranger.settimeout(20)
        stranger.sendall(b"\xffnonsense\n")
        assert stranger.recv(10) == b""
    assert control.ask(Path(seen.host.directory), {"do": "name"})["job"] == "3f2aabcd"
