"""Multipart messages in a stream of bytes: how they are cut, and put together again.

A message is the number of its frames, their sizes (all u32, little-endian) and the frames one after the
other. Pure: bytes go in, messages come out. This file must not know of sockets, or what is in a frame; of a
header it has the sizes alone compared.

Until a first frame has proven that its sender is of the job, a stream brings messages of the size of a
handshake only: a stranger must not make this process hold more than that.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kvstore_mpi.errors import FrameError
from kvstore_mpi.wire.codec import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PAYLOADS,
    declares_others,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Buffer

PlaceOf: TypeAlias = "Callable[[memoryview, int], memoryview | None]"
"""Of the first frame of a message and the number of a payload: where that is to be written, or ``None`` for
memory of its own."""

CHUNK_BYTES = 64 << 10
"""Bytes read at a time, while no frame is under way. A frame that has come in part gets its place at once
and the rest is read there, so that a large payload is not copied once more."""

HANDSHAKE_BYTES = 1 << 10
"""Bytes of the largest message of who has proven nothing: a HELLO or a WELCOME has about 120."""

UNPROVEN_BYTES = 16 << 10
"""Bytes that are kept until a first frame can be judged: the sizes of its message, and the frame. A larger
message of ours on a new connection waits for a smaller one: it is lost, and comes again behind a PROBE."""

_U32 = struct.Struct("<I")
_SINGLE = struct.Struct("<II")


def head(frames: Sequence[Buffer]) -> tuple[bytes, int]:
    """Return what goes before the frames of a message, and the bytes of both together."""
    if len(frames) == 1:
        size = memoryview(frames[0]).nbytes
        return _SINGLE.pack(1, size), _SINGLE.size + size
    sizes = [memoryview(frame).nbytes for frame in frames]
    made = struct.pack(f"<{len(sizes) + 1}I", len(sizes), *sizes)
    return made, len(made) + sum(sizes)


def without(parts: Sequence[Buffer], num_bytes: int) -> list[memoryview]:
    """Return what follows the first bytes of some buffers."""
    rest = []
    for part in parts:
        view = memoryview(part).cast("B")
        if num_bytes < view.nbytes:
            rest.append(view[num_bytes:])
        num_bytes = max(0, num_bytes - view.nbytes)
    return rest


def nowhere(_first: memoryview, _number: int) -> None:
    """Of a stream whose payloads get memory of their own."""


class StrangerError(FrameError):
    """More than a handshake has come from who has not shown that it is of the job."""

    def __init__(self, what: str) -> None:
        """Say what came."""
        super().__init__(f"{what} from a process that has not shown that it knows the job's secret")


class Parser:
    """Puts the messages of one stream together.

    Attributes:
        target: Where the next bytes of the stream belong, if a large frame is under way; hand them to
            ``filled``. ``None`` when the next bytes are for ``feed``.
        proven: The sender has shown that it is of the job.
    """

    def __init__(self, proves: Callable[[memoryview], bool], place: PlaceOf = nowhere) -> None:
        """Start between two messages.

        Args:
            proves: Judges first frames until one shows who sends.
            place: Asked for the place of each frame of which the end is still to come.
        """
        self.target: memoryview | None = None
        self.proven = False
        self._proves = proves
        self._place = place
        self._rest = b""
        self._sizes: tuple[int, ...] = ()
        self._frames: list[memoryview] = []

    def feed(self, data: bytes) -> list[list[memoryview]]:
        """Take the next bytes of the stream; return the messages that they complete.

        Frames are memory that is not used again: the first of a message as it came, later ones in memory
        of their own, aligned for any number, or where ``place`` has said.

        Raises:
            FrameError: These are not messages, or larger ones than the protocol has.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        messages: list[list[memoryview]] = []
        at = 0
        while self.target is None and (at < len(data) or self._sizes):
            if not self._sizes:
                begin = self._read_sizes(data, at)
                if not begin:
                    self._rest = data[at:]
                    break
                at = begin
            at = self._read_frames(data, at, messages)
        return messages

    def filled(self, num_bytes: int) -> list[list[memoryview]]:
        """Note that the first bytes of ``target`` are there; return the message that this completes."""
        assert self.target is not None
        self.target = self.target[num_bytes:]
        if self.target.nbytes:
            return []
        self.target = None
        messages: list[list[memoryview]] = []
        self._read_frames(b"", 0, messages)
        return messages

    def _read_sizes(self, data: bytes, at: int) -> int:
        """Read the sizes of a message; return where its frames begin, or 0 if more bytes are needed."""
        if len(data) - at < _U32.size:
            return 0
        count: int = _U32.unpack_from(data, at)[0]
        if not 1 <= count <= MAX_PAYLOADS + 1:
            raise FrameError(f"a message of {count:,} frames; the protocol has 1 to {MAX_PAYLOADS + 1:,}")
        end = at + _U32.size * (count + 1)
        if not self.proven and end - at > UNPROVEN_BYTES:
            raise StrangerError(f"{count:,} frames")
        if len(data) < end:
            return 0
        sizes = struct.unpack_from(f"<{count}I", data, at + _U32.size)
        if max(sizes) > MAX_FRAME_BYTES or sum(sizes) > MAX_MESSAGE_BYTES:
            raise FrameError(
                f"a message of {sum(sizes):,} bytes, its largest frame {max(sizes):,}; the protocol has at "
                f"most {MAX_MESSAGE_BYTES:,} and {MAX_FRAME_BYTES:,}"
            )
        if not self.proven and sizes[0] > UNPROVEN_BYTES:
            raise StrangerError(f"a first frame of {sizes[0]:,} bytes")
        if len(data) < end + min(sizes[0], HEADER_BYTES):
            return 0
        # A size with a wrong bit in it would have this side wait for bytes that nobody sends.
        if declares_others(data, end, sizes):
            raise FrameError(
                f"a message of {len(sizes):,} frames and {sum(sizes):,} bytes, whose header says otherwise"
            )
        self._sizes = sizes
        return end

    def _read_frames(self, data: bytes, at: int, messages: list[list[memoryview]]) -> int:
        """Read frames, as far as they have come; return where the rest of the bytes begins."""
        view = memoryview(data)
        for size in self._sizes[len(self._frames) :]:
            if not self.proven and len(self._frames) == 1:
                self._judge()
            end = at + size
            if end > len(data):
                self._await_rest(view[at:], size)
                return len(data)
            self._frames.append(view[at:end] if not self._frames else _own(view[at:end]))
            at = end
        if not self.proven and len(self._frames) == 1:
            self._judge()
        messages.append(self._frames)
        self._sizes, self._frames = (), []
        return at

    def _judge(self) -> None:
        """The first frame is there: go on if it proves who sends, or is all of a handshake's message."""
        self.proven = self._proves(self._frames[0])
        if not self.proven and (len(self._sizes) > 1 or sum(self._sizes) > HANDSHAKE_BYTES):
            raise StrangerError(f"{len(self._sizes):,} frames of {sum(self._sizes):,} bytes")

    def _await_rest(self, begun: memoryview, size: int) -> None:
        """The end of a frame is still to come: give the frame its place."""
        place = self._place(self._frames[0], len(self._frames) - 1) if self._frames else None
        frame = np.empty(size, np.uint8).data if place is None or place.nbytes != size else place
        frame[: begun.nbytes] = begun
        self._frames.append(frame)
        self.target = frame[begun.nbytes :]


def _own(view: memoryview) -> memoryview:
    return memoryview(bytearray(view))
