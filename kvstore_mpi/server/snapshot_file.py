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

from kvstore_mpi.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]

MAGIC = b"KVMPIsn1"
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")


class ArrayRecord(msgspec.Struct, frozen=True):
    """One array: which of the key's arrays (see ``store.Place``), its elements' type and number."""

    index: int
    lo: int
    dtype: str
    size: int


class UnitRecord(msgspec.Struct, frozen=True):
    """What has been counted for the slices that are updated together, from element ``lo`` on."""

    lo: int
    pushed: list[int]
    applied: list[int]
    updates: int


class KeyRecord(msgspec.Struct, frozen=True):
    """One key, as rank 0 created it on this server."""

    store: int
    mode: str
    key: int | str
    key_id: int
    shape: tuple[int, ...]
    dtype: str
    shard: tuple[int, int]
    units: list[UnitRecord]
    arrays: list[ArrayRecord]


class Header(msgspec.Struct, frozen=True):
    """What a snapshot is of.

    Attributes:
        job: Name of the job that wrote it.
        layout: What must be equal where it is read: server, servers, clients, slice elements.
        incarnations: How often each client had been restarted.
        specs: The update rule of each store, with its newest numbers.
        keys: The keys; their arrays follow in this order.
    """

    job: str
    layout: tuple[int, int, int, int]
    incarnations: dict[int, int]
    specs: dict[int, dict[str, Any]]
    keys: list[KeyRecord]


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
    draft = path.with_suffix(".draft")
    header = msgspec.msgpack.encode(snapshot.header)
    parts: Sequence[Any] = [MAGIC, _LENGTH.pack(len(header)), header, *map(_bytes, snapshot.arrays)]
    checksum = 0
    with draft.open("wb") as file:
        for part in parts:
            checksum = zlib.crc32(part, checksum)
            file.write(part)
        file.write(_CHECKSUM.pack(checksum))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the new name, too
    finally:
        os.close(descriptor)


def read(path: Path) -> Snapshot | None:
    """Read a snapshot; ``None`` if there is none.

    Raises:
        ConfigurationError: The file is none, or not whole.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"the snapshot {path} cannot be read: {error.strerror}") from error
    start = len(MAGIC) + _LENGTH.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start + _CHECKSUM.size:
        raise ConfigurationError(f"{path} is not a snapshot of a server of kvstore_mpi")
    if zlib.crc32(memoryview(data)[: -_CHECKSUM.size]) != _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0]:
        raise ConfigurationError(
            f"the snapshot {path} is damaged or cut off ({len(data)} bytes): its checksum is wrong; remove "
            "it to start anew, or put an intact copy in its place"
        )
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    try:
        header = msgspec.msgpack.decode(data[start : start + length], type=Header)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"the snapshot {path} is of another version: {error}") from error
    return Snapshot(header, _arrays(header, memoryview(data)[start + length :]))


def _arrays(header: Header, data: memoryview) -> list[Array]:
    arrays = []
    offset = 0
    for record in (array for key in header.keys for array in key.arrays):
        arrays.append(np.frombuffer(data, np.dtype(record.dtype), record.size, offset))
        offset += arrays[-1].nbytes
    return arrays


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
