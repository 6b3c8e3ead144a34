"""What a rank says and writes at its end, whatever the script has made of its streams and exceptions.

A rank that fails here would leave no record, and be taken for one that has ended well or was killed.
"""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

STUCK_S = 1.0
"""After that time a file is left to itself, and those behind it are written: its reader may be gone."""

MOST_STUCK = 3
"""Such files that are waited for; the launcher ends the client of a rank that has failed after 5 s."""


def say(*lines: object) -> None:
    """Write lines to the standard error stream, if there is one that takes them."""
    with contextlib.suppress(Exception):  # it may be closed, or something of the script's own
        sys.stderr.write("".join(f"{_encodable(str(line))}\n" for line in lines))


def show(error: BaseException) -> None:
    """Show what ends the script as Python does: after what it has printed, by its hook if there is one."""
    flush()
    hook = sys.excepthook
    if hook is sys.__excepthook__:
        say(*user_traceback(error))
        return
    try:
        hook(type(error), error, _user_frames(error))
    except BaseException as failed:  # noqa: BLE001  whatever it is, the rank has yet to end
        say("Error in sys.excepthook:", *user_traceback(failed), "Original exception was:")
        say(*user_traceback(error))


def flush() -> None:
    """Have what the script has printed leave, as far as its streams are there."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def write_open_files() -> None:
    """Have what the script has written leave, also to files that it has not closed.

    Python does that when it ends, which a rank does not come to that aborts, or waits to be ended.
    """
    gc.unfreeze()  # what the script has frozen would not be listed
    # The class of the type, for a proxy's own may be anything, or cannot be had.
    rest = iter([each for each in gc.get_objects() if issubclass(type(each), io.IOBase)])
    for _ in range(MOST_STUCK):
        writer = threading.Thread(target=_write, args=(rest,), daemon=True)
        try:
            writer.start()
        except RuntimeError:  # there is none to be had
            _write(rest)
            return
        writer.join(STUCK_S)
        if not writer.is_alive():
            return


def _write(files: Iterator[io.IOBase]) -> None:
    for file in files:
        with contextlib.suppress(Exception):  # it may be closed, or its disk full
            file.flush()


def text_of(error: BaseException) -> str:
    """Return the text of an exception, of which UTF-8 has every character."""
    try:
        return _encodable(str(error))
    except Exception as failed:  # noqa: BLE001  its class is the script's
        return f"(its text cannot be had: {type(failed).__name__})"


def user_traceback(error: BaseException) -> list[str]:
    """Return the traceback without our own frames and those of runpy."""
    text = "".join(traceback.format_exception(type(error), error, _user_frames(error)))
    return _encodable(text).rstrip().splitlines()


def _user_frames(error: BaseException) -> TracebackType | None:
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _is_ours(file: str) -> bool:
    return Path(file).parent == Path(__file__).parent or "runpy" in Path(file).name
