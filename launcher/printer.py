"""Whole lines with the name of who said them, on the terminal and in one log file per process.

Must not know what the lines mean, nor where they come from.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from kvstore_mpi import private_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpilaunch.outlet import Stream

TAIL_LINES = 20
"""How many last lines of each process are kept in memory, for the last block."""

LINE_BYTES = 64 * 1024
"""A line longer than this is cut, so that output without line ends does not fill the memory."""

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_OWN_COLOUR = 31
_OWN_NAME = "mpilaunch"


class LineBuffer:
    """Puts the pieces that a pipe delivers together to whole lines."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LINE_BYTES:
            lines.append(self._rest[:LINE_BYTES])
            self._rest = self._rest[LINE_BYTES:]
        return lines

    def flush(self) -> list[bytes]:
        """Return what was said last without a line end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class Lines:
    """One pipe with lines, and whose lines they are."""

    def __init__(self, descriptor: int, name: str, *, is_error: bool, quiet: bool) -> None:
        """``quiet`` lines are logged and not shown."""
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.name = name
        self.is_error = is_error
        self.quiet = quiet
        self.buffer = LineBuffer()


def readable(line: bytes) -> str:
    """Return a line as a terminal would leave it: what a progress bar has overwritten is gone."""
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


def wants_colours(environment: Mapping[str, str]) -> bool:
    """Return whether the user's terminal shows colours, and he wants them (https://no-color.org)."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "") not in ("", "dumb")


class LogFiles:
    """One file for each process, made when it says its first line."""

    def __init__(self, folder: Path) -> None:
        """Keep the files in a folder, which is made with the first of them."""
        self.folder = folder
        self._files: dict[str, BinaryIO] = {}

    def write(self, name: str, line: bytes) -> None:
        """Append a line to a process's file.

        Raises:
            OSError: It cannot be made or written.
        """
        if name not in self._files:
            descriptor = private_files.create(self.folder / f"{name}.log")
            self._files[name] = os.fdopen(descriptor, "wb", buffering=0)
        self._files[name].write(line + b"\n")

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()


def make_log_folder(parent: Path, job: str, now: time.struct_time) -> Path:
    """Make the folder for the logs of one run: ``parent/<time>-<job>``; git does not see it.

    Raises:
        OSError: It cannot be made, or ``parent`` belongs to another user.
    """
    folder = parent / f"{time.strftime('%Y%m%d-%H%M%S', now)}-{job[:8]}"
    is_new = not parent.exists()
    private_files.make_folder(parent)
    if is_new:
        with os.fdopen(private_files.create(parent / ".gitignore"), "wb") as file:
            file.write(b"*\n")
    folder.mkdir(mode=0o700)
    return folder


class Printer:
    """Shows lines as they come and remembers the last ones."""

    def __init__(self, out: Stream, err: Stream, logs: LogFiles, *, colours: bool = True) -> None:
        """Show lines on ``out`` and ``err``; with ``colours`` in colour where that is a terminal."""
        self._out = out
        self._err = err
        self._logs = logs
        self._terminals = {id(stream) for stream in (out, err) if stream.isatty()}
        self._coloured = self._terminals if colours else set()
        self._colour_of: dict[str, int] = {_OWN_NAME: _OWN_COLOUR}
        self._lost = 0
        self._logs_have_failed = False
        self._failed: list[Stream] = []
        self._tails: dict[str, deque[str]] = {}

    @property
    def tails(self) -> Mapping[str, deque[str]]:
        """The last lines of each process."""
        return self._tails

    @property
    def log_folder(self) -> Path:
        """Where the log files are."""
        return self._logs.folder

    def line(self, name: str, line: bytes, *, is_error: bool = False, quiet: bool = False) -> None:
        """Log and remember a line that a process has said, and show it unless ``quiet``."""
        self._log(name, line)
        text = readable(line)
        self._tails.setdefault(name, deque(maxlen=TAIL_LINES)).append(text)
        if not quiet:
            self._show(name, text, self._err if is_error else self._out)

    def say(self, text: str) -> None:
        """Show lines of mpilaunch itself."""
        # A host's or a file's name may have bytes that are no text.
        for line in text.encode(errors="backslashreplace").decode().splitlines():
            self._log(_OWN_NAME, line.encode())
            self._show(_OWN_NAME, line, self._err)

    def _log(self, name: str, line: bytes) -> None:
        """Log a line; a disk that is full must not end a job that trains well, and costs one warning."""
        try:
            self._logs.write(name, line)
        except OSError as error:
            if not self._logs_have_failed:
                self._logs_have_failed = True
                text = f"the logs in {self.log_folder} cannot be written: {error.strerror}; the job goes on"
                self._show(_OWN_NAME, text, self._err)

    def _show(self, name: str, text: str, stream: Stream) -> None:
        prefix = f"{name}|"
        if id(stream) in self._coloured:
            colour = self._colour_of.setdefault(name, _COLOURS[len(self._colour_of) % len(_COLOURS)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        try:
            stream.write(f"{prefix} {text}\n")
            stream.flush()
        except OSError as error:
            self._lose(stream, error)

    def _check(self, stream: Stream) -> None:
        try:
            stream.flush()
        except OSError as error:
            self._lose(stream, error)

    def _lose(self, stream: Stream, error: OSError) -> None:
        """Write nothing more to a stream that has failed."""
        # Its thread may have begun the next write before this one's error was seen.
        if stream in self._failed:
            return
        self._failed.append(stream)
        with Path(os.devnull).open("wb") as nowhere:  # what the stream still holds must not fail at exit
            os.dup2(nowhere.fileno(), stream.fileno())
        if error.errno == errno.EPIPE:
            self._lost = signal.SIGPIPE
        elif error.errno == errno.EIO and id(stream) in self._terminals:
            self._lost = signal.SIGHUP
        else:
            what = "standard output" if stream is self._out else "standard error"
            self.say(
                f"{what} cannot be written: {error.strerror}; the job goes on, and what is said is in "
                f"{self.log_folder}"
            )

    def lost_reader(self) -> int:
        """Return once, when whoever was reading our output has gone, the signal that stands for that.

        0 as long as somebody reads. Otherwise SIGPIPE, or SIGHUP of a terminal that was closed: the signal
        itself does not come to those whose shell had gone before.
        """
        self._check(self._out)
        self._check(self._err)
        lost, self._lost = self._lost, 0
        return lost
