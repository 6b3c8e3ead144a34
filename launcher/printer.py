"""Whole lines with the name of who said them, on the terminal and in one log file per process.

Must not know what the lines mean, nor where they come from.
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def readable(line: bytes) -> str:
    """Return a line as a terminal would leave it: what a progress bar has overwritten is gone."""
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


class LogFiles:
    """One file for each process, made when it says its first line."""

    def __init__(self, folder: Path) -> None:
        """Keep the files in a folder, which is made with the first of them."""
        self.folder = folder
        self._files: dict[str, BinaryIO] = {}

    def write(self, name: str, line: bytes) -> None:
        """Append a line to a process's file."""
        if name not in self._files:
            self._files[name] = (self.folder / f"{name}.log").open("ab", buffering=0)
        self._files[name].write(line + b"\n")

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()


def make_log_folder(parent: Path, job: str, now: time.struct_time) -> Path:
    """Make the folder for the logs of one run: ``parent/<time>-<job>``; git does not see it.

    Raises:
        OSError: It cannot be made.
    """
    folder = parent / f"{time.strftime('%Y%m%d-%H%M%S', now)}-{job[:8]}"
    if not parent.exists():
        parent.mkdir(parents=True)
        (parent / ".gitignore").write_text("*\n", encoding="ascii")
    folder.mkdir()
    return folder


class Printer:
    """Shows lines as they come and remembers the last ones."""

    def __init__(self, out: TextIO, err: TextIO, logs: LogFiles, colours: bool | None = None) -> None:
        """Show lines on ``out`` and ``err``; in colour where that is a terminal, unless told."""
        self._out = out
        self._err = err
        self._logs = logs
        self._coloured = {
            id(stream): stream.isatty() if colours is None else colours for stream in (out, err)
        }
        self._colour_of: dict[str, int] = {_OWN_NAME: _OWN_COLOUR}
        self._lost_reader = False
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
        self._logs.write(name, line)
        text = readable(line)
        self._tails.setdefault(name, deque(maxlen=TAIL_LINES)).append(text)
        if not quiet:
            self._show(name, text, self._err if is_error else self._out)

    def say(self, text: str) -> None:
        """Show lines of mpilaunch itself."""
        for line in text.splitlines():
            self._logs.write(_OWN_NAME, line.encode())
            self._show(_OWN_NAME, line, self._err)

    def _show(self, name: str, text: str, stream: TextIO) -> None:
        prefix = f"{name}|"
        if self._coloured[id(stream)]:
            colour = self._colour_of.setdefault(name, _COLOURS[len(self._colour_of) % len(_COLOURS)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        try:
            stream.write(f"{prefix} {text}\n")
            stream.flush()
        except BrokenPipeError:
            self._lost_reader = True
            with Path(os.devnull).open("wb") as nowhere:  # the rest must not fail again at exit
                os.dup2(nowhere.fileno(), stream.fileno())

    def lost_reader(self) -> bool:
        """Return once whether whoever was reading our output has gone."""
        lost, self._lost_reader = self._lost_reader, False
        return lost
