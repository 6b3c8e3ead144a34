"""Jobs under way to which something is done: on this machine, or on two hosts that ssh reaches."""

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
from typing import TYPE_CHECKING

import psutil
import pytest

from mpilaunch.hosts import reaper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from support.places import Layout
    from support.virtual_hosts import VirtualHosts

FOLDER = Path(__file__).parents[1] / "faults"
DEADLINE_S = 240
"""No test waits longer for anything. What it waits for is an event; on a busy machine that comes late."""

PATIENT = {
    "KVMPI_CONNECT_TIMEOUT": "120",
    "KVMPI_STEP_TIMEOUT": "120",
    "KVMPI_FINISH_TIMEOUT": "120",
    "OMP_NUM_THREADS": "1",
}
"""Deadlines of a job, which are no part of what a test shows, and which a busy machine keeps."""


def command(
    folder: Path,
    fault: object,
    layout: Layout,
    *,
    grace: float = 60,
    script: str = "faulty.py",
    options: Sequence[object] = (),
) -> list[str]:
    """Return the command line of a job."""
    clients, per_client, servers = layout
    return [
        str(Path(sys.executable).with_name("mpilaunch")),
        *("--clients", str(clients), "--workers", str(clients * per_client), "--servers", str(servers)),
        *("--grace", str(grace), "--log-dir", str(folder), *map(str, options), str(FOLDER / script)),
        str(fault),
    ]


MOVED_INTO = 0x80
"""``IN_MOVED_TO`` of inotify: a snapshot takes its place by a renaming."""


@contextlib.contextmanager
def news_of(folder: Path) -> Iterator[int]:
    """Yield a descriptor that can be read once something has been moved into a folder, which is made."""
    folder.mkdir(exist_ok=True)
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_CLOEXEC)
    try:
        assert library.inotify_add_watch(descriptor, os.fsencode(folder), MOVED_INTO) > 0
        yield descriptor
    finally:
        os.close(descriptor)


def wait_to_read(descriptor: int, what: str) -> None:
    """Wait until a descriptor can be read."""
    assert select.select([descriptor], [], [], DEADLINE_S)[0], f"{what} has not come about"


class Job:
    """A job under way, with its output collected by a thread."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start it."""
        self._began = time.time()
        self.process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **PATIENT, **(environment or {})},
        )
        self.lines: list[str] = []
        self._has_ended = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _wait_until(self, found: Callable[[], bool]) -> None:
        """Wait until it has said something, or can say nothing more."""
        with self._news:
            assert self._news.wait_for(lambda: found() or self._has_ended, DEADLINE_S), "".join(self.lines)
            assert found(), f"the job has ended: {''.join(self.lines)}"

    def workers(self, count: int) -> dict[int, int]:
        """Wait until the workers train; return the process numbers of those that still run, by rank."""
        pattern = re.compile(r"READY (\d+) (\d+)")

        def found() -> dict[str, str]:
            return dict(pattern.findall("".join(self.lines)))

        self._wait_until(lambda: len(found()) == count)
        pids = {int(rank): self.pid_of(int(rank), int(pid)) for rank, pid in found().items()}
        return {rank: pid for rank, pid in pids.items() if pid is not None}

    def wait_for(self, text: str, count: int = 1) -> list[str]:
        """Wait until ``count`` lines have a text; return them."""

        def found() -> list[str]:
            return [line for line in list(self.lines) if text in line]

        self._wait_until(lambda: len(found()) >= count)
        return found()

    @staticmethod
    def wait_for_ends(pids: Iterable[int]) -> None:
        """Wait until processes, which need not be our children, have ended."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as process:
                wait_to_read(process.fileno(), f"the end of {pid}")

    @staticmethod
    def wait_for_file(path: Path) -> None:
        """Wait until a snapshot is there."""
        with news_of(path.parent) as news:
            while not path.exists():
                wait_to_read(news, f"the file {path}")
                os.read(news, 4096)

    @staticmethod
    def wait_for_news(path: Path) -> None:
        """Wait until a snapshot is written, anew if it is there, or a link of its chain."""

        def written() -> set[tuple[str, int]]:
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

    def pid_of(self, rank: int, told: int) -> int | None:
        """Return the process number that we know a rank by, which knows itself by the one it has told."""
        del rank
        return told if psutil.pid_exists(told) else None

    def processes(self) -> list[psutil.Process]:
        """Return all its processes, without the launcher."""
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def family(self) -> list[int]:
        """Return the process numbers of all its processes."""
        return [process.pid for process in self.processes()]

    def check_gone(self, family: Iterable[int]) -> None:
        """Check that none of its processes is left, when it has ended."""
        assert [pid for pid in family if self.is_alive(pid)] == []

    def signal(self, number: int) -> None:
        """Send the launcher a signal."""
        self.process.send_signal(number)

    def kill_all(self) -> None:
        """Kill launcher and processes at once, those too that would remove its files; then do that here."""
        family = self.processes()
        directories = {process.cmdline()[-1] for process in family if reaper.__file__ in process.cmdline()}
        for process in (psutil.Process(self.process.pid), *family):
            # What is left of the job ends as soon as that is noticed.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.wait_for_ends(process.pid for process in family)
        self._remove(directories)

    def _remove(self, directories: Iterable[str]) -> None:
        for directory in directories:
            reaper.remove(Path(directory), self._began)

    def _states(self) -> str:
        """Describe its processes, for whoever wants to know why it does not end."""
        fields = ["pid", "ppid", "status", "cmdline"]
        return "\n".join(str(each.as_dict(fields)) for each in self.processes())

    @staticmethod
    def is_alive(pid: int) -> bool:
        """Tell whether a process runs."""
        with contextlib.suppress(psutil.Error):
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        return False

    def services(self) -> dict[str, int]:
        """Return the process numbers of scheduler and servers."""
        pids = {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                if process.cmdline()[1:] and "kvstore_mpi" in process.cmdline()[-1]:
                    role = environment.get("KVMPI_ROLE", "")
                    pids[role + environment.get("KVMPI_INDEX", "")] = process.pid
        return pids

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and all that was said."""
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job has not ended; of it there are\n{self._states()}\n{''.join(self.lines)}")
        self._reader.join(DEADLINE_S)  # the last lines may still be in the pipe
        assert not self._reader.is_alive(), "somebody still holds the job's output open"
        return code, "".join(self.lines)


class SpreadJob(Job):
    """A job on hosts of their own, none of which is the launcher's."""

    def __init__(
        self,
        hosts: VirtualHosts,
        per_client: int,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; a client has ``per_client`` ranks."""
        self._hosts, self._per_client = hosts, per_client
        super().__init__(argv, environment)

    def pid_of(self, rank: int, told: int) -> int | None:
        """Return the process number of a rank outside of its host; nothing if it has ended."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error, OSError):
                mine = process.environ()
                place = divmod(rank, self._per_client)
                if told == _number_on_host(process.pid) and place == _place(mine):
                    return int(process.pid)
        return None

    def processes(self) -> list[psutil.Process]:
        """Return all its processes, on all hosts."""
        return [*super().processes(), *self._hosts.job_processes()]

    def check_gone(self, family: Iterable[int]) -> None:
        """Check that nothing of it is left on any host."""
        del family  # daemons among it stay
        self._hosts.check_nothing_left()

    def _remove(self, directories: Iterable[str]) -> None:
        self._hosts.remove_files()

    def signal(self, number: int) -> None:
        """Send the launcher a signal; it is a child of what has entered its host."""
        (launcher,) = psutil.Process(self.process.pid).children()
        launcher.send_signal(number)


def _number_on_host(pid: int) -> int:
    """Return the process number that a process has in its own namespace."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.findall(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)[0])


def _place(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the client of a rank, and its number there, or nothing for another process."""
    names = ("KVMPI_CLIENT", "PMI_RANK")
    return tuple(int(environment[name]) for name in names if name in environment)
