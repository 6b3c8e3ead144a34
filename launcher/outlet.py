"""Output that a reader who has stopped reading does not hold up: a thread writes it.

A terminal is stopped with Ctrl-S, ``less`` reads a page. Whoever writes to them waits; the launcher must
not, for it would see no death, no signal and no ``--timeout`` meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

HELD_BYTES = 4 * 1024 * 1024
"""How much may wait for its reader; what does not fit is left out and counted."""

_CHUNK_BYTES = 64 * 1024

_OWN = re.compile(r"(\x1b\[\d+m)?mpilaunch\|")
"""How lines of the launcher's own begin, in colour or not."""


class Stream(Protocol):
    """What the printer needs of a place where it shows lines."""

    def write(self, text: str, /) -> int:
        """Show a text."""
        ...

    def flush(self) -> None:
        """Raise what could not be written."""
        ...

    def isatty(self) -> bool:
        """Return whether a person reads it."""
        ...

    def fileno(self) -> int:
        """Return its descriptor."""
        ...


class Outlet:
    """A stream whose writer never waits."""

    def __init__(self, descriptor: int, elsewhere: str, failed: Callable[[], None]) -> None:
        """Write to a descriptor.

        Args:
            descriptor: Where to write.
            elsewhere: Where the lines that are left out can be read, for the reader.
            failed: Called by the thread when something cannot be written; ``flush`` then raises the error.
        """
        self._descriptor = descriptor
        self._elsewhere = elsewhere
        self._failed = failed
        self._changed = threading.Condition()
        self._held = bytearray()
        self._writing = 0
        self._left_out = 0
        self._error: OSError | None = None
        # A daemon: its write may never end.
        threading.Thread(target=self._run, name=f"output {descriptor}", daemon=True).start()

    def write(self, text: str) -> int:
        """Have lines written, or leave those of processes out if too much waits to be read.

        Raises:
            OSError: What came before could not be written.
        """
        self.flush()
        data = text.encode(errors="replace")
        with self._changed:
            is_full = self._writing + len(self._held) + len(data) > HELD_BYTES
            # Never the launcher's own, which are few: they say why a job has ended.
            if is_full and not _OWN.match(text):
                self._left_out += text.count("\n")
            else:
                self._mention()
                self._held += data
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Raise the error of a write that has failed, once; do not wait for the others.

        Raises:
            OSError: See above.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def isatty(self) -> bool:
        """Return whether a person reads it."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._descriptor

    def drain(self) -> None:
        """Wait until the reader has taken everything, or is gone."""
        with self._changed:
            self._mention()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._held and not self._writing)

    def _mention(self) -> None:
        if self._left_out:
            text = f"mpilaunch| {self._left_out} lines were left out, for nobody read them; they are in "
            self._held += f"{text}{self._elsewhere}\n".encode()
            self._left_out = 0

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = 0
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._held)
                data = bytes(self._held[:_CHUNK_BYTES])
                del self._held[:_CHUNK_BYTES]
                self._writing = len(data)
            try:
                self._write(data)
            except OSError as error:
                self._error = error
                self._failed()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        room = select.poll()  # select() refuses the descriptors of a process that has over a thousand
        room.register(self._descriptor, select.POLLOUT)
        while rest:
            # Somebody who shares the terminal may not want to wait, and then writing fails instead.
            room.poll()
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._descriptor, rest) :]


class Outlets:
    """Standard output and errors; leaving the ``with`` block waits until their readers have everything."""

    def __init__(self, out: int, err: int, elsewhere: str) -> None:
        """Write to two descriptors, which keep the order of what is written if they are one file."""
        self.failed, self._told = os.pipe()
        os.set_blocking(self._told, False)
        self.out = Outlet(out, elsewhere, self._tell)
        self.err = self.out if os.path.sameopenfile(out, err) else Outlet(err, elsewhere, self._tell)

    def _tell(self) -> None:
        """Make ``failed`` readable: something could not be written."""
        # Whoever has watched it closes it with the job, and the last lines come after that: an error here
        # would end the thread, and ``drain`` wait for it for ever.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._told, b"!")

    def __enter__(self) -> Self:
        """Return the outlets."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the readers, unless somebody presses Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            self.out.drain()
            self.err.drain()
