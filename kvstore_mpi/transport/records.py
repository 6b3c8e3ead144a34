"""Encrypted records in a stream of bytes, for one connection: how they are sealed, and opened again.

Each side begins with 32 random bytes. From both and the job's secret come two keys, one for each direction
(HKDF, RFC 5869), which no other connection has. What follows is records of AES-256-GCM::

    length of the rest (u32, little-endian; authenticated) + ciphertext + tag (16 bytes)

The nonce of a record is its number, so that a key sees no nonce twice, and a record that is lost, repeated,
moved or changed does not open. Pure, but for the library. This file must not know of sockets or messages.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kvstore_mpi.errors import FrameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.interfaces import Buffer

GREETING_BYTES = 32
RECORD_BYTES = 256 << 10
"""Plaintext of a record: enough that the cost for each is lost in that for each byte."""

FIRST_BYTES = 1 << 10
"""Plaintext of the first record of a direction: who has not shown yet that it knows the job's secret must
not make the other side keep more."""

_TAG_BYTES = 16
_KEY_BYTES = 32
_LENGTH = struct.Struct("<I")
_NONCE = struct.Struct("<Q4x")


def derive(secret: bytes, connector: bytes, acceptor: bytes) -> tuple[bytes, bytes]:
    """Return the keys of who has connected and of who has accepted, in this order.

    Args:
        secret: Of the job.
        connector: What the one has begun with.
        acceptor: What the other has begun with.
    """
    hkdf = HKDF(SHA256(), 2 * _KEY_BYTES, salt=connector + acceptor, info=b"kvstore_mpi TCP records")
    keys = hkdf.derive(secret)
    return keys[:_KEY_BYTES], keys[_KEY_BYTES:]


class Sealer:
    """Makes the records of one direction."""

    def __init__(self, key: bytes) -> None:
        """Begin with the first."""
        self._cipher = AESGCM(key)
        self._number = 0

    def seal(self, parts: Sequence[Buffer]) -> tuple[list[memoryview], int]:
        """Seal the first bytes of some buffers.

        Returns:
            The record in pieces, and how many bytes of the buffers are in it.
        """
        plain = _first(parts, RECORD_BYTES if self._number else FIRST_BYTES)
        size = memoryview(plain).nbytes
        length = _LENGTH.pack(size + _TAG_BYTES)
        sealed = self._cipher.encrypt(_NONCE.pack(self._number), plain, length)
        self._number += 1
        return [memoryview(length), memoryview(sealed)], size


class Opener:
    """Takes the bytes of one direction and opens the records among them."""

    def __init__(self) -> None:
        """Nothing has come, and there is no key yet."""
        self._cipher: AESGCM | None = None
        self._number = 0
        self._bytes = bytearray(GREETING_BYTES + _LENGTH.size + FIRST_BYTES + _TAG_BYTES)
        self._begin, self._end = 0, 0  # of what has come and was not opened yet

    def room(self) -> memoryview:
        """Return where the next bytes of the stream belong; ``filled`` notes how many have come."""
        if self._begin:
            rest = self._bytes[self._begin : self._end]
            self._begin, self._end = 0, len(rest)
            self._bytes[: len(rest)] = rest
        return memoryview(self._bytes)[self._end :]

    def filled(self, num_bytes: int) -> None:
        """Note that bytes have been read into ``room``."""
        self._end += num_bytes

    @property
    def _filled(self) -> int:
        return self._end - self._begin

    def greeting(self) -> bytes | None:
        """Return what the other side has begun with, once it has come; ask until then only."""
        if self._filled < GREETING_BYTES:
            return None
        self._begin += GREETING_BYTES
        return bytes(self._bytes[self._begin - GREETING_BYTES : self._begin])

    def use(self, key: bytes) -> None:
        """Open what follows with this key."""
        self._cipher = AESGCM(key)

    @property
    def holds_record(self) -> bool:
        """A whole record is there."""
        return self._filled >= _LENGTH.size and self._filled >= _LENGTH.size + self._length()

    def record(self) -> bytes | None:
        """Return the content of the next record, if it is whole.

        Raises:
            FrameError: It is none that this job's other side of this connection has sealed just now.
        """
        if self._filled < _LENGTH.size:
            return None
        length = self._length()
        most = RECORD_BYTES if self._number else FIRST_BYTES
        if not _TAG_BYTES < length <= most + _TAG_BYTES:
            raise FrameError(f"an encrypted record of {length:,} bytes")
        if self._filled < _LENGTH.size + length or self._cipher is None:
            return None
        begin = self._begin + _LENGTH.size
        sealed = memoryview(self._bytes)[begin : begin + length]
        try:
            plain = self._cipher.decrypt(_NONCE.pack(self._number), sealed, _LENGTH.pack(length))
        except InvalidTag:
            raise FrameError("an encrypted record was changed on its way, or is of another job") from None
        finally:
            sealed.release()
        self._begin = begin + length
        if not self._number:  # it knows the secret
            self._bytes.extend(bytes(_LENGTH.size + RECORD_BYTES + _TAG_BYTES))
        self._number += 1
        return plain

    def _length(self) -> int:
        return int(_LENGTH.unpack_from(self._bytes, self._begin)[0])


def _first(parts: Sequence[Buffer], most: int) -> Buffer:
    """Return the first bytes of some buffers, without a copy if they are of one."""
    taken: list[memoryview] = []
    for part in parts:
        view = memoryview(part).cast("B")[:most]
        if view.nbytes:
            taken.append(view)
            most -= view.nbytes
        if not most:
            break
    return taken[0] if len(taken) == 1 else b"".join(taken)
