"""The files in which a server's shard survives it: written as a whole or not at all, checked when read.

Magic, length of the header, header (msgpack), the arrays one after the other as raw bytes, CRC-32 of
everything before. Nothing in it is code. A base has the path itself, and links after it have their number
behind that. This file must not know what a server does with its content.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np

from kvstore_mpi import private_files
from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.records import ITEMSIZES
from kvstore_mpi.server.snapshot_chain import fold
from kvstore_mpi.server.snapshot_check import problem_of
from kvstore_mpi.server.snapshot_records import Header, Snapshot

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence
    from pathlib import Path

    from kvstore_mpi.server.snapshot_records import KeyRecord

Array = np.ndarray[Any, Any]

MAGIC = b"KVMPIsn2"
"""The last character is the version of the format. In files of version 1 tables that take a key's place
have names that a user may give to keys today."""

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
# A part at a time: a file as large as a shard need not be in memory to be checked.
_READ_BYTES = 1 << 20


def write(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot beside its place, make sure that it is on the disk, and only then move it there.

    Args:
        path: Of the base.
        snapshot: A base, whose place is that, or a link.

    Raises:
        OSError: It cannot be written; an earlier one is as it was.
    """
    link = snapshot.header.link
    # The new base first. Until it is in its place the old one counts, and its links with it.
    _write(_link_path(path, link) if link else path, snapshot)
    if not link:
        remove_links(path)


def remove_links(path: Path) -> None:
    """Remove the links of the base that was at a path before.

    Those that cannot be removed stay: they are known by the name of their chain, and count for nothing.
    """
    for number in _numbers_of_links(path):
        with contextlib.suppress(OSError):
            _link_path(path, number).unlink()


def _link_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _numbers_of_links(path: Path) -> list[int]:
    """Return the numbers of the links that are beside a base, ascending."""
    names = [each.name[len(path.name) + 1 :] for each in path.parent.glob(f"{path.name}.*")]
    # As they are written: neither "0" nor "01" is the name of a link.
    return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)) != "0")


def _write(path: Path, snapshot: Snapshot) -> None:
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


class SavedFile:
    """A file of a snapshot, open: it can be read also when another has taken its place.

    Attributes:
        header: What it says of itself.
        stream: Its content.
    """

    def __init__(self, stream: BinaryIO, header: Header, start: int) -> None:
        """Own the file; ``start``: where its arrays begin."""
        self.header = header
        self.stream = stream
        # Once: a job that is resumed reads key after key, and going over all arrays for each of them would
        # cost as much as the square of their number.
        self._starts: list[int] = []  # of keys, and behind them of those that are left
        for key in (*header.keys, *header.left):
            self._starts.append(start)
            start += sum(record.size * ITEMSIZES[record.dtype] for record in key.arrays)

    def load(self, wanted: Container[int] | None = None) -> Snapshot:
        """Read all that is in it, or what there is of some keys.

        Raises:
            ConfigurationError: Somebody has cut the file off since it was opened.
        """
        keys, arrays = [], []
        for position, key in enumerate(self.header.keys):
            if wanted is None or key.key_id in wanted:
                keys.append(key)
                arrays += self._arrays(position, key)
        return Snapshot(msgspec.structs.replace(self.header, keys=keys, left=[]), arrays)

    def load_left(self, number: int) -> list[Array]:
        """Read the arrays of the ``number``-th part in ``header.left``.

        Raises:
            ConfigurationError: As of ``load``.
        """
        return self._arrays(len(self.header.keys) + number, self.header.left[number])

    def _arrays(self, position: int, key: KeyRecord) -> list[Array]:
        place, arrays = self._starts[position], []
        for record in key.arrays:
            array: Array = np.empty(record.size, record.dtype)
            self._read(_bytes(array), place)
            place += array.nbytes
            arrays.append(array)
        return arrays

    def _read(self, content: memoryview, place: int) -> None:
        while content:
            # At a place, and not at that of the stream: a server takes up keys while its writer reads those
            # that are left.
            num_bytes = os.preadv(self.stream.fileno(), [content], place)
            if not num_bytes:
                raise ConfigurationError("it has become shorter since it was opened")
            content, place = content[num_bytes:], place + num_bytes


class SavedChain:
    """The files of a base and its links.

    Attributes:
        path: Of the base.
        header: Of the newest of them.
        left: Parts of keys that the base has of the job before its own.
    """

    def __init__(self, path: Path, files: Sequence[SavedFile]) -> None:
        """Own the files."""
        self.path = path
        # That of the newest: rules, counts and which keys there are hold as they were last.
        self.header = files[-1].header
        self.left = files[0].header.left
        self._files = files

    def close(self) -> None:
        """Nothing is read any more."""
        for each in self._files:
            each.stream.close()

    def load(self, wanted: Container[int] | None = None) -> Snapshot:
        """Return what they come to, or of some keys.

        Raises:
            ConfigurationError: They do not go together.
        """
        try:
            folded = fold([each.load(wanted) for each in self._files])
        except ConfigurationError as error:
            raise _unfit(self.path, f"{error}", _START_ANEW) from error
        # Once more: each of them may be right, and what they come to not.
        problem = problem_of(folded.header, sum(array.nbytes for array in folded.arrays))
        if problem:
            raise _unfit(self.path, problem, _START_ANEW)
        return folded

    def load_left(self, number: int) -> list[Array]:
        """Return the arrays of the ``number``-th part of ``left``.

        Raises:
            ConfigurationError: Somebody has cut the file off since it was opened.
        """
        try:
            return self._files[0].load_left(number)
        except ConfigurationError as error:
            raise _unfit(self.path, f"{error}", _START_ANEW) from error


def read(path: Path) -> Snapshot | None:
    """Read a base and the links after it; return what they come to, or ``None`` if there is nothing.

    Raises:
        ConfigurationError: As of ``open_chain``, or they do not go together.
    """
    chain = open_chain(path)
    if chain is None:
        return None
    with contextlib.closing(chain):
        return chain.load()


def open_chain(path: Path) -> SavedChain | None:
    """Open a base and the links after it, and check each; ``None`` if there is nothing.

    Raises:
        ConfigurationError: A file is no snapshot, is not whole, or is not one of this user's; or one is
            missing between others.
    """
    base = _open(path, _START_ANEW)
    numbers = _numbers_of_links(path)
    if base is None:
        # Links alone are what is left of a snapshot that somebody has moved or half removed. To begin anew
        # without a word would lose a training.
        if numbers:
            remedy = "remove all that begin with its name to start anew"
            raise _missing(path, _link_path(path, numbers[0]), remedy)
        return None
    return SavedChain(path, [base, *_links(path, base.header, numbers)])


def _links(path: Path, base: Header, numbers: Sequence[int]) -> Iterator[SavedFile]:
    """Open the links of a base."""
    expected = 1
    for number in numbers:
        link_path = _link_path(path, number)
        link = _open(link_path, "remove it, and links with higher numbers, to go on from the one before it")
        # Gone since the folder was looked at, or left by an earlier base, of which it was a link.
        if link is None or link.header.chain != base.chain:
            continue
        # A file that was renamed, or is another server's: its rows would go to places that are not theirs.
        if (link.header.link, link.header.job, link.header.layout) != (number, base.job, base.layout):
            raise _unfit(link_path, "it is not the link that its name says", _START_ANEW)
        if number > expected:
            remedy = "remove the links with higher numbers to go on from the one before it"
            raise _missing(_link_path(path, expected), link_path, remedy)
        expected += 1
        yield link


_START_ANEW = "remove it to start anew"


def _missing(path: Path, later: Path, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        f"the snapshot {path} is missing, although {later} is there; put it back, or {remedy}"
    )


def _unfit(path: Path, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        f"the snapshot {path} cannot be taken up: {problem}; {remedy}, or put an intact copy in its place"
    )


def _open(path: Path, remedy: str) -> SavedFile | None:
    """Open one file and check it; ``None`` if it is not there.

    Raises:
        ConfigurationError: The file is none, is not whole, or is not one of this user's.
    """
    try:
        stream = private_files.open_to_read(path)
    # No error here: whether the server can begin without one, the caller knows.
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"the snapshot {path} cannot be read: {error.strerror}") from error
    with contextlib.ExitStack() as failing:
        failing.callback(stream.close)
        found = _check(path, stream, remedy)
        # Whole, as far as it can be told: it stays open from now on, and the caller closes it.
        failing.pop_all()
    return found


def _check(path: Path, stream: BinaryIO, remedy: str) -> SavedFile:
    # Of the open file: the path may stand for another one by now.
    size = os.fstat(stream.fileno()).st_size
    start = len(MAGIC) + _LENGTH.size
    head = stream.read(start)
    if head[: len(MAGIC) - 1] == MAGIC[:-1] and head[: len(MAGIC)] != MAGIC:
        version, read = (each[len(MAGIC) - 1 : len(MAGIC)].decode("latin-1") for each in (head, MAGIC))
        raise ConfigurationError(
            f"the snapshot {path} is of version {version!r}, and this kvstore_mpi reads {read!r} alone: go "
            f"on with the kvstore_mpi that wrote it, or {remedy}"
        )
    # Shorter than both ends, it has no checksum to be read.
    if head[: len(MAGIC)] != MAGIC or size < start + _CHECKSUM.size:
        raise ConfigurationError(
            f"{path} is not a snapshot of a server of kvstore_mpi ({size} bytes); {remedy}, or put an "
            "intact copy in its place"
        )
    # Before anything is decoded: a header that is cut off may still be valid msgpack.
    if _checksum(stream, zlib.crc32(head), size - start - _CHECKSUM.size) != stream.read(_CHECKSUM.size):
        raise ConfigurationError(
            f"the snapshot {path} is damaged or cut off ({size} bytes): its checksum is wrong; "
            f"{remedy}, or put an intact copy in its place"
        )
    # Trusted now: the checksum covers it.
    (length,) = _LENGTH.unpack_from(head, len(MAGIC))
    if length > size - start - _CHECKSUM.size:
        raise _unfit(path, f"its header would have {length:,} bytes and end behind the file", remedy)
    # Back to the header, over which the checksum has read.
    stream.seek(start)
    try:
        header = msgspec.msgpack.decode(stream.read(length), type=Header)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigurationError(f"the snapshot {path} is of another version: {error}") from error
    # Before any array is made: a size that is wrong gives every array after it another's bytes.
    problem = problem_of(header, size - start - length - _CHECKSUM.size)
    if problem:
        raise _unfit(path, problem, remedy)
    return SavedFile(stream, header, start + length)


def _checksum(stream: BinaryIO, begun: int, num_bytes: int) -> bytes:
    """Return the checksum of the next bytes as it stands in a file, given that of those before."""
    checksum = begun
    while num_bytes > 0:
        part = stream.read(min(num_bytes, _READ_BYTES))
        # Cut off since its size was asked for. What is read next is no checksum then, so that this is told
        # as damage.
        if not part:
            break
        checksum = zlib.crc32(part, checksum)
        num_bytes -= len(part)
    return _CHECKSUM.pack(checksum)


def _bytes(array: Array) -> memoryview:
    # Its own memory, not a copy: what is saved is contiguous already, and a shard is copied once.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
