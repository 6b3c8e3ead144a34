"""The stacks that a process writes on a signal: taken apart, and named. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import kvstore_mpi
import mpilaunch

if TYPE_CHECKING:
    from collections.abc import Mapping

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x0*([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')

_OURS = (*(f"{path}/" for path in (*kvstore_mpi.__path__, *mpilaunch.__path__)),)
_RUNNERS = ("<frozen runpy>", "runpy.py")
MAIN = "MainThread"


class Frame(NamedTuple):
    """Where a thread is: the call of a function."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        """Return it as people read it."""
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def is_ours(self) -> bool:
        """Whether it is of this package, or of what runs a script."""
        return self.file.startswith(_OURS) or self.file.endswith(_RUNNERS)


class Thread(NamedTuple):
    """One thread and where it is, the innermost call first."""

    name: str
    frames: list[Frame]


def parse(text: str, names: Mapping[str, str]) -> list[Thread]:
    """Return the threads that a process has written by ``faulthandler``.

    The one that the signal has interrupted comes first, without a number, and then all of them. It is most
    often the main one, and comes alone where native code holds the interpreter.

    Args:
        text: What the process has written.
        names: Of the threads, by their numbers in hexadecimal.
    """
    threads: list[Thread] = []
    interrupted: list[Frame] = []
    frames = interrupted
    for line in text.splitlines():
        if found := _THREAD.match(line):
            number = found[1]
            frames = []
            threads.append(Thread(names.get(number, f"thread 0x{number}"), frames))
        elif found := _FRAME.match(line):
            frames.append(Frame(*found.groups()))
    if not threads:
        return [Thread(MAIN, interrupted)] if interrupted else []
    # The process may have told no names yet; the main thread is the oldest, and stands last.
    if not any(thread.name == MAIN for thread in threads):
        threads[-1] = threads[-1]._replace(name=MAIN)
    return threads


def main_thread(threads: list[Thread]) -> Thread | None:
    """Return the thread that runs the script."""
    return next((thread for thread in threads if thread.name == MAIN), None)


def place(threads: list[Thread]) -> str:
    """Return where the script is: its innermost own line, and what that has called."""
    thread = main_thread(threads)
    if thread is None or not thread.frames:
        return ""
    own = next((frame for frame in thread.frames if not frame.is_ours and _is_script(frame)), None)
    top = thread.frames[0]
    if own is None or own is top:
        return str(own or top)
    return f"{own} (in {top.function} at {top.file}:{top.line})"


def _is_script(frame: Frame) -> bool:
    return not any(part in frame.file for part in ("/site-packages/", "/lib/python", "<frozen "))
