"""The files of a trace: one part for each process and the merged trace. Only writes and reads them.

A part is JSON lines: first the header, then one event each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import ConfigurationError
from .events import AnyEvent, Event, Header, Mark, Part

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX, DRAFT = ".jsonl", ".draft"
TRACE = "trace.json"
_encoder = msgspec.json.Encoder()
_headers = msgspec.json.Decoder(Header)
_events = msgspec.json.Decoder(AnyEvent)


def folder_of_parts(directory: Path) -> Path:
    """Return where the parts of a trace are."""
    return directory / "parts"


def clear(directory: Path) -> None:
    """Make the folder of a trace, without what an earlier job has left there.

    Raises:
        OSError: It cannot be made, or the old parts cannot be removed.
    """
    folder = folder_of_parts(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{DRAFT}"), directory / TRACE):
        old.unlink(missing_ok=True)


def write_part(directory: Path, part: Part) -> None:
    """Write a part, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    folder = folder_of_parts(directory)
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{part.header.node}{DRAFT}"
    with draft.open("wb") as file:
        file.write(_encoder.encode(part.header) + b"\n")
        file.writelines(_encoder.encode(_trimmed(event)) + b"\n" for event in part.events)
    draft.replace(folder / f"{part.header.node}{SUFFIX}")


def _trimmed(event: Event) -> Event:
    """Leave out what entries of messages have beyond a run."""
    if not isinstance(event, Mark):
        return event
    return Mark(event.at, event.step, event.peer, [entry[:4] for entry in event.entries], event.since)


def read_parts(directory: Path) -> list[Part]:
    """Read all parts of a trace, in the order of their file names.

    Raises:
        ConfigurationError: A file is not a part, or one of another version of this package.
        OSError: One cannot be read.
    """
    return [_read_part(path) for path in sorted(folder_of_parts(directory).glob(f"*{SUFFIX}"))]


def _read_part(path: Path) -> Part:
    header, *lines = path.read_bytes().splitlines()
    try:
        return Part(_headers.decode(header), [_events.decode(line) for line in lines])
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"{path} is not a part of a trace that this version of kvstore_mpi has written: {error}"
        ) from error


def write_trace(directory: Path, trace: dict[str, Any]) -> Path:
    """Write the merged trace; return its path.

    Raises:
        OSError: It cannot be written.
    """
    path = directory / TRACE
    path.write_bytes(_encoder.encode(trace))
    return path
