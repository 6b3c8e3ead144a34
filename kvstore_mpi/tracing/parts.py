"""The files of a trace: one part for each process and the merged trace. Only writes and reads them.

A part is JSON lines: first the header, then one event each.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from kvstore_mpi import private_files
from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.tracing.events import AnyEvent, Header, Part

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUFFIX = ".jsonl"
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
        OSError: It cannot be made, is another user's, or the old parts cannot be removed.
    """
    folder = folder_of_parts(directory)
    private_files.make_folder(directory)
    private_files.make_folder(folder)
    drafts = folder.glob(f"*{private_files.DRAFT}")
    for old in (*folder.glob(f"*{SUFFIX}"), *drafts, directory / TRACE):
        old.unlink(missing_ok=True)
    private_files.remove_drafts(directory / TRACE)


def encode(event: AnyEvent) -> bytes:
    """Return an event's line; from any thread."""
    return _encoder.encode(event)


def write_part(directory: Path, header: Header, lines: Iterable[bytes]) -> None:
    """Write a part, whole or not at all.

    Args:
        directory: Folder of the trace.
        header: Who has recorded it.
        lines: Its events, as ``encode`` has returned them.

    Raises:
        OSError: It cannot be written.
    """
    folder = folder_of_parts(directory)
    private_files.make_folder(folder)
    with private_files.replacing(folder / f"{header.name}{SUFFIX}") as file:
        file.write(_encoder.encode(header) + b"\n")
        file.writelines(line + b"\n" for line in lines)


def unpack(directory: Path, archive: BinaryIO) -> None:
    """Add the parts that processes on another host have written there.

    Args:
        directory: Folder of the trace.
        archive: Theirs, as a tar archive; it is read in one go.

    Raises:
        OSError: A part cannot be written, or the archive ends too early.
    """
    folder = folder_of_parts(directory)
    try:
        with tarfile.open(fileobj=archive, mode="r|") as members:
            for member in members:
                content = members.extractfile(member)
                if content is not None and member.name.endswith(SUFFIX):
                    # By its last name only: whatever the archive says, nothing is written elsewhere.
                    with private_files.replacing(folder / PurePath(member.name).name) as file:
                        shutil.copyfileobj(content, file)
    except tarfile.TarError as error:
        raise OSError(f"the archive of another host cannot be read: {error}") from error


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
    with private_files.replacing(path) as file:
        file.write(_encoder.encode(trace))
    return path
