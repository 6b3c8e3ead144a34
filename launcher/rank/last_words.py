"""What a rank says at its end, whatever the script has made of its streams and its exceptions.

A rank that fails here would leave no record, and be taken for one that has ended well or was killed.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


def say(*lines: object) -> None:
    """Write lines to the standard error stream, if there is one that takes them."""
    with contextlib.suppress(Exception):  # it may be closed, or something of the script's own
        sys.stderr.write("".join(f"{_encodable(str(line))}\n" for line in lines))


def flush() -> None:
    """Have what the script has printed leave, as far as its streams are there."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def text_of(error: BaseException) -> str:
    """Return the text of an exception, of which UTF-8 has every character."""
    try:
        return _encodable(str(error))
    except Exception as failed:  # noqa: BLE001  its class is the script's
        return f"(its text cannot be had: {type(failed).__name__})"


def user_traceback(error: BaseException) -> list[str]:
    """Return the traceback without our own frames and those of runpy."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    return _encodable(text).rstrip().splitlines()


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _is_ours(file: str) -> bool:
    return Path(file).parent == Path(__file__).parent or "runpy" in Path(file).name
