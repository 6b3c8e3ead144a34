"""The file in which a server's shard survives it: written as a whole or not at all, checked when read.

Magic, length of the header, header (msgpack), the arrays one after the other as raw bytes, CRC-32 of
everything before. Nothing in it is code. This file must not know what a server does with its content.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from kvstore_mpi import private_files
from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.server.snapshot_check import problem_of
from kvstore_mpi.server.snapshot_records import Header

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]

MAGIC = b"KVMPIsn1"
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")


class Snapshot(NamedTuple):
    """A header and the arrays that it describes, in its order."""

    header: Header
    arrays: list[Array]


def path_of(folder: str, server: int) -> Path:
    """Return where a server's newest snapshot is."""
    return Path(folder) / f"server{server}.snapshot"


def write(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot beside its place, make sure that it is on the disk, and only then move it there.

    Raises:
        OSError: It cannot be written; an earlier one is as it was.
    """
    header = msgspec.msgpack.encode(snapshot.header)
    parts: Sequence[Any] = [MAGIC, _LENGTH.pack(len(header)), header, *map(_bytes, snapshot.arrays)]
    # Over all, the header as well: with a wrong bit in a count, a push would be taken for a repetition.
    checksum = 0
    # Drafts have random names: what a server that was killed has left would never be overwritten, and such
    # files, each as large as the shard, would fill the disk.
    private_files.remove_drafts(path)
    with private_files.replacing(path) as file:
        # Part by part: joined, they would be in memory once more.
        for part in parts:
            checksum = zlib.crc32(part, checksum)
            file.write(part)
        file.write(_CHECKSUM.pack(checksum))
        # Before the rename: after a power failure the name would otherwise stand for a file without
        # content.
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the new name, too
    finally:
        os.close(descriptor)


def read(path: Path) -> Snapshot | None:
    """Read a snapshot; ``None`` if there is none.

    Raises:
        ConfigurationError: The file is none, is not whole, or is not one of this user's.
    """
    try:
        data = private_files.read(path)
    # No error here: whether the server can begin without one, the caller knows.
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"the snapshot {path} cannot be read: {error.strerror}") from error
    start = len(MAGIC) + _LENGTH.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start + _CHECKSUM.size:
        raise ConfigurationError(f"{path} is not a snapshot of a server of kvstore_mpi")
    # Before anything is decoded: a header that is cut off may still be valid msgpack.
    if zlib.crc32(memoryview(data)[: -_CHECKSUM.size]) != _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0]:
        raise ConfigurationError(
            f"the snapshot {path} is damaged or cut off ({len(data)} bytes): its checksum is wrong; remove "
            "it to start anew, or put an intact copy in its place"
        )
    # Trusted now: the checksum covers it.
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    try:
        header = msgspec.msgpack.decode(data[start : start + length], type=Header)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"the snapshot {path} is of another version: {error}") from error
    # Views: slices of ``bytes`` would be copies of gigabytes.
    arrays = memoryview(data)[start + length : -_CHECKSUM.size]
    # Before any array is made: a size that is wrong gives every array after it another's bytes.
    problem = problem_of(header, arrays.nbytes)
    if problem:
        raise ConfigurationError(
            f"the snapshot {path} cannot be taken up: {problem}; remove it to start anew, or put an intact "
            "copy in its place"
        )
    return Snapshot(header, _arrays(header, arrays))


def _arrays(header: Header, data: memoryview) -> list[Array]:
    arrays = []
    offset = 0
    for record in (array for key in header.keys for array in key.arrays):
        # No copies here: a shard of gigabytes is read once, and copied to where it is used.
        arrays.append(np.frombuffer(data, np.dtype(record.dtype), record.size, offset))
        offset += arrays[-1].nbytes
    return arrays


def _bytes(array: Array) -> memoryview:
    # Its own memory, not a copy: what is saved is contiguous already, and a shard is copied once.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
