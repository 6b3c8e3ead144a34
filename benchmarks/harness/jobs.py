"""Starts the processes of one measured job, waits for them within a deadline, and leaves none behind.

``stock_plan`` and ``mpilaunch_plan`` decide what to start and are pure; ``run`` and ``Job`` start it. This
file must not know what the workers measure.
"""

from __future__ import annotations

import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from .cases import NUM_WORKERS, Variant
from .procfs import JOB_MARK, busy_seconds, marked_pids

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HOST = "127.0.0.1"
FOREIGN_VARIABLES = ("DMLC_", "KVMPI_")
THREADS = {"OMP_NUM_THREADS": "1"}
"""Of all processes of all jobs, ours and peers. With a thread for each core in each of them they would
crowd out each other; ``mpilaunch`` alone prevents that for its own."""

LAST_LINES = 15
GRACE_S = 5.0


class JobError(RuntimeError):
    """A job failed, ran past its deadline or left processes behind; the message says which."""


@dataclass(frozen=True)
class Program:
    """One process to start.

    Attributes:
        name: Names it and its log file.
        argv: The command.
        environment: Added to the environment of the benchmark.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """What a job cost and how alone it was.

    Attributes:
        wall_s: Seconds from the first start to the last end.
        cpu_s: CPU seconds of its processes.
        foreign_cores: Cores that processes of others kept busy meanwhile.
    """

    wall_s: float
    cpu_s: float
    foreign_cores: float


class Meter:
    """Measures how much CPU time others take from when it is made until it is read."""

    def __init__(self) -> None:
        """Start to measure."""
        self._wall, self._own, self._busy = time.monotonic(), _own_seconds(), busy_seconds()

    def read(self) -> Usage:
        """Return the usage so far; children count once they have been waited for."""
        wall, own = time.monotonic() - self._wall, _own_seconds() - self._own
        return Usage(wall, own, max(0.0, busy_seconds() - self._busy - own) / wall)


def _own_seconds() -> float:
    """Return the CPU time of this process and of all children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def allow_descriptors(count: int) -> None:
    """Let this process, and those that it starts, have that many files open.

    Raises:
        JobError: The system does not allow it.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < count:
        raise JobError(f"{count} open files are needed; ulimit -Hn says {most}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def free_port() -> int:
    """Return a TCP port of the loopback interface that the system chose."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def stock_plan(
    worker: Sequence[str], port: int, environment: Mapping[str, str] | None = None
) -> list[Program]:
    """Return the processes of MXNet's own parameter server: importing mxnet runs the first two."""
    common = {
        **(environment or {}),
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": HOST,
        "DMLC_NUM_WORKER": str(NUM_WORKERS),
        "DMLC_NUM_SERVER": "1",
    }
    serve = (sys.executable, "-c", "import mxnet")
    programs = [Program(role, serve, {**common, "DMLC_ROLE": role}) for role in ("scheduler", "server")]
    as_worker = {**common, "DMLC_ROLE": "worker"}
    return programs + [Program(f"worker{index}", tuple(worker), as_worker) for index in range(NUM_WORKERS)]


def mpilaunch_plan(variant: Variant, worker: Sequence[str], log_dir: Path) -> list[Program]:
    """Return the one process that starts all others; ``worker`` begins with the interpreter."""
    options = {
        "--clients": variant.num_clients,
        "--workers": NUM_WORKERS,
        "--servers": 1,
        "--transport": variant.transport,
        "--leaders": variant.leaders,
        "--log-dir": log_dir,
    }
    words = [str(word) for option in options.items() for word in option]
    words += ["--encrypt"] if variant.encrypt else []
    launcher = Path(variant.python).parent / "mpilaunch"
    return [Program("mpilaunch", (str(launcher), *words, *worker[1:]))]


def plan(variant: Variant, worker: Sequence[str], log_dir: Path) -> list[Program]:
    """Return what to start for a variant."""
    if variant.is_stock:
        return stock_plan(worker, free_port(), variant.environment)
    return mpilaunch_plan(variant, worker, log_dir)


@final
class Job:
    """The processes of one job; a context manager that leaves none of them behind, whatever happens."""

    def __init__(self, log_dir: Path) -> None:
        """Start nothing yet; ``log_dir`` exists and gets one ``<name>.log`` per process."""
        self.log_dir = log_dir
        self._mark = uuid.uuid4().hex
        self._meter = Meter()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Job:
        """Return the job."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what still runs."""
        _kill(self._processes.values(), self._mark)

    def start(self, program: Program) -> None:
        """Start one process, which inherits these file descriptors."""
        self._processes[program.name] = _start(program, self._mark, self.log_dir)

    def pid(self, name: str) -> int:
        """Return the process of a program that was started."""
        return self._processes[name].pid

    def wait(self, deadline_s: float) -> Usage:
        """Wait until all have ended.

        Args:
            deadline_s: Seconds from now until that is an error.

        Raises:
            JobError: See there.
        """
        _wait(self._processes, self.log_dir, deadline_s)
        _check_nothing_left(next(iter(self._processes)), self._mark)
        return self._meter.read()

    def wait_for_word(self, pipe: Path, deadline_s: float) -> None:
        """Wait until a process writes to a named pipe.

        Args:
            pipe: Exists, and was not written to before.
            deadline_s: Seconds from now until that is an error.

        Raises:
            JobError: See there; or a process failed first, or all have ended.
        """
        with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as word:
            if not _wait(self._processes, self.log_dir, deadline_s, word.fileno()):
                raise JobError(f"all have ended, and none wrote to {pipe.name}\n{_tails(self.log_dir)}")


def run(programs: Sequence[Program], log_dir: Path, deadline_s: float) -> Usage:
    """Run a job to its end.

    Args:
        programs: What to start.
        log_dir: Existing directory for one ``<name>.log`` per process.
        deadline_s: Seconds until the whole job is killed.

    Raises:
        JobError: See there. No process of the job is left, whatever happened.
    """
    with Job(log_dir) as job:
        for program in programs:
            job.start(program)
        return job.wait(deadline_s)


def _start(program: Program, mark: str, log_dir: Path) -> subprocess.Popen[bytes]:
    """Start one process as the head of a session of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_VARIABLES)}
    with (log_dir / f"{program.name}.log").open("wb") as log:
        return subprocess.Popen(
            program.argv,
            cwd=log_dir,  # "python -m" would find the package of the working directory first
            env={**clean, **THREADS, **program.environment, JOB_MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(
    processes: Mapping[str, subprocess.Popen[bytes]],
    log_dir: Path,
    deadline_s: float,
    word: int | None = None,
) -> bool:
    """Wait until every process has ended well, and raise at the first that has not.

    Returns:
        Whether it ended early, because the descriptor ``word`` can be read.
    """
    end = time.monotonic() + deadline_s
    with selectors.DefaultSelector() as selector, ExitStack() as descriptors:
        running = dict(processes)
        if word is not None:
            selector.register(word, selectors.EVENT_READ)
        for name, process in processes.items():
            descriptor = os.pidfd_open(process.pid)
            descriptors.callback(os.close, descriptor)
            selector.register(descriptor, selectors.EVENT_READ, name)
        while running:
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                names, late = ", ".join(running), "not ended" if word is None else "no word"
                raise JobError(f"{names}: {late} within {deadline_s:.0f} s\n{_tails(log_dir)}")
            if word in {key.fd for key, _ in ready}:
                return True
            for key, _ in ready:
                selector.unregister(key.fileobj)
                if code := running.pop(key.data).wait():
                    raise JobError(f"{key.data} ended with code {code}\n{_tails(log_dir)}")
    return False


def _tails(log_dir: Path) -> str:
    """Return the last lines of every process that wrote any."""
    texts = {
        path.stem: path.read_text(errors="replace").splitlines() for path in sorted(log_dir.glob("*.log"))
    }
    return "\n".join(f"{name}| {line}" for name, lines in texts.items() for line in lines[-LAST_LINES:])


def _check_nothing_left(name: str, mark: str) -> None:
    """Raise if processes with the mark outlive the grace period."""
    left = [pid for pid in marked_pids(mark) if not _ends_within(pid, GRACE_S)]
    if left:
        raise JobError(f"{name} has ended but left the processes {left} behind")


def _ends_within(pid: int, seconds: float) -> bool:
    """Wait for a process that need not be a child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def _kill(processes: Iterable[subprocess.Popen[bytes]], mark: str) -> None:
    """End what is left of a job: the started processes, and whatever else carries its mark."""
    for pid in marked_pids(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.kill()
        process.wait()
