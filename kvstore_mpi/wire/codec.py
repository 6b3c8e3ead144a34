"""What stands in the frames of a wire message, and how a stranger's frames are told from ours.

A wire message is frame 0, made here, followed by raw payload frames, which this file only measures::

    frame 0 = header (44 bytes, little-endian) + body (msgpack or a u64) + MAC (16 bytes)

    offset  size  field
         0     4  magic
         4     1  wire version      the first three keep their place in every version
         5     1  kind
         6     2  number of payload frames
         8     4  length of the body
        12     8  session
        20     8  counter           of data frames or of control frames, each strictly increasing
        28     8  ack               all data frames up to this counter have arrived
        36     8  sum of the lengths of the payload frames

The MAC is keyed BLAKE2s (RFC 7693) over header and body. It covers the shape of the payloads, not their
content: see the threat model. Nothing is allocated or decoded before it has been checked.

This file must not know of handshakes, sessions' state, time or sockets.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvstore_mpi.errors import FrameError, UsageError
from kvstore_mpi.wire.message import WIRE_VERSION, Message
from kvstore_mpi.wire.messages import AnyMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.interfaces import Buffer

MAGIC = b"KVMP"
# "<": little-endian and without padding, whatever the machine; a header is the same 44 bytes everywhere.
_HEADER = struct.Struct("<4sBBHIQQQQ")
_SHAPE = struct.Struct("<6xHI24xQ")
_U64 = struct.Struct("<Q")

HEADER_BYTES = _HEADER.size
_OURS = MAGIC + bytes([WIRE_VERSION])

MAC_BYTES = 16
"""128 bits, what AES-GCM uses as well; a forger has one try in 2**128 a frame. BLAKE2s takes 0.65 us for a
frame, HMAC-SHA256 1.7 us (``benchmarks/results/small-messages.json``); each is signed and checked once."""

MAX_BODY = 1 << 20
"""Bytes of a body. The largest is ``Create`` with all slices of a 2 GB array: 10,738 slices of 50,000
float32 elements, at most 11 bytes each, 118 KB; the rest is room for smaller slices."""

MAX_PAYLOADS = 0xFFFF
"""Payload frames of a message: what the header's field holds; the ``Create`` above has 10,738."""

MAX_FRAME_BYTES = 1 << 31
"""Bytes of one frame: of all rows of a piece that one step touches, as of the largest array, 2 GB. Only who
has proven to be of the job may send more than a handshake (``transport/framing.py``)."""

MAX_MESSAGE_BYTES = 1 << 32
"""Payload bytes of a message: twice the largest array, 2 GB, for one key on one server."""

_OVERHEAD = _HEADER.size + MAC_BYTES


class Kind(enum.IntEnum):
    """What a frame is for; handshake frames are signed with the job's secret, others per session."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    DATA = 4
    ACK = 5
    NACK = 6
    PROBE = 7
    ASKING = 8  # data whose sender wants room in its window: an acknowledgement at once


# Looking up an integer in a set costs a tenth of making a ``Kind`` of it, which every frame would pay.
_KINDS = frozenset(int(kind) for kind in Kind)
DATA_KINDS = frozenset((int(Kind.DATA), int(Kind.ASKING)))


class BadFrameError(FrameError):
    """A frame that is dropped; ``reason`` is one word under which it is counted."""

    def __init__(self, reason: str, text: str) -> None:
        """Remember the word beside the sentence."""
        # One of a few fixed words: reasons are keys of a counter, which text from a stranger's frame would
        # fill.
        super().__init__(text)
        self.reason = reason


class WrongVersionError(BadFrameError):
    """The other side has another version of the protocol; ``kind`` is that of its frame."""

    def __init__(self, version: int, kind: int) -> None:
        """Say what to do about it."""
        text = (
            f"the peer speaks wire version {version}, this side {WIRE_VERSION}; "
            "install the same version of kvstore_mpi everywhere"
        )
        # The kind has its place in every version, so a HELLO of another version can be answered and its
        # user told.
        super().__init__("version", text)
        self.kind = kind


class Header(NamedTuple):
    """The fixed fields of frame 0; lengths are in bytes."""

    magic: bytes
    version: int
    kind: int
    payloads: int
    body_bytes: int
    session: int
    counter: int
    ack: int
    payload_bytes: int


# Made once, and typed: whatever does not fit a message of ``AnyMessage`` field by field is refused by the
# decoder itself, so no role ever sees a string where it expects a number. Nothing is unpickled.
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode_message(message: Message) -> bytes:
    """Encode the body of a data frame.

    Raises:
        UsageError: The message is larger than ``MAX_BODY``.
    """
    body = _encoder.encode(message)
    # Refused here and not by the receiver, who would drop the frame, have it repeated, and drop it again;
    # here the caller is told, and the stream goes on.
    if len(body) > MAX_BODY:
        raise UsageError(
            f"a {type(message).__name__} of {len(body):,} bytes is too large to send (limit {MAX_BODY:,}); "
            "use larger slices, or fewer options in the optimizer"
        )
    return body


def decode_message(body: Buffer) -> AnyMessage:
    """Decode the body of a data frame whose MAC is right.

    Raises:
        BadFrameError: The body is not a message of this version.
    """
    # Only after the signature: a decoder makes lists as long as the bytes say, and is the part most likely
    # to have a hole. What is caught is all that it raised in tests with random bytes and endless nesting.
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrameError("body", f"the body of a frame cannot be decoded: {error}") from error


def encode_value(value: int) -> bytes:
    """Encode the body of a control frame: one number, of which the kind says what it means."""
    return _U64.pack(value)


def decode_value(body: Buffer) -> int:
    """Decode the body of a control frame whose MAC is right.

    Raises:
        BadFrameError: The body is not one number.
    """
    # Looked at first: ``unpack`` raises an error that callers, who drop bad frames, do not expect.
    if len(body) != _U64.size:
        raise BadFrameError("body", f"a control frame has {len(body)} bytes of body, not {_U64.size}")
    return int(_U64.unpack(body)[0])


def measure(payloads: Sequence[Buffer]) -> int:
    """Return the sum of the lengths of payloads in bytes.

    Raises:
        UsageError: One payload, their number or their sum is over a limit.
    """
    # Before the message is queued: once it has a counter it has to be sent, or the stream would end there.
    sizes = [memoryview(payload).nbytes for payload in payloads]
    total = sum(sizes)
    if len(sizes) > MAX_PAYLOADS or total > MAX_MESSAGE_BYTES or max(sizes, default=0) > MAX_FRAME_BYTES:
        raise UsageError(
            f"a message of {len(sizes):,} payloads, the largest {max(sizes):,} and all {total:,} bytes, "
            f"is over a limit ({MAX_PAYLOADS:,}, {MAX_FRAME_BYTES:,}, {MAX_MESSAGE_BYTES:,}); "
            "choose slices of another size"
        )
    return total


def seal(
    key: bytes,
    kind: int,
    body: bytes = b"",
    *,
    session: int = 0,
    counter: int = 0,
    ack: int = 0,
    payloads: int = 0,
    payload_bytes: int = 0,
) -> bytes:
    """Make frame 0, signed with a key."""
    signed = (
        _HEADER.pack(MAGIC, WIRE_VERSION, kind, payloads, len(body), session, counter, ack, payload_bytes)
        + body
    )
    return signed + _mac(key, signed)


def read_header(frames: Sequence[memoryview]) -> Header:
    """Read the header of a wire message and check all that needs no key.

    Args:
        frames: The whole message; frames after the first are only measured.

    Raises:
        WrongVersionError: The frames are ours, but of another version.
        BadFrameError: The frames are not a message of ours.
    """
    header = read_first(frames[0] if frames else memoryview(b""))
    # Of payloads the number and the length alone are signed: nothing else would notice that one is missing.
    if header.payloads != len(frames) - 1 or header.payload_bytes != _payload_bytes(frames):
        raise BadFrameError(
            "payloads", f"the payloads are not the {header.payloads} that the header declares"
        )
    return header


def read_first(first: memoryview) -> Header:
    """Read the header from frame 0 alone; the payloads may not have come yet.

    Raises:
        WrongVersionError: The frame is ours, but of another version.
        BadFrameError: The frame is not one of ours.
    """
    # In this order, because each check relies on those before it: magic and version keep their places in
    # every version, so that a newer program is told apart from a stranger and its user can be told what to
    # install; the other fields mean something only if the version is ours.
    size = first.nbytes
    if size < _OVERHEAD:
        raise BadFrameError("short", f"the first frame has {size} bytes, ours at least {_OVERHEAD}")
    header = Header._make(_HEADER.unpack_from(first))
    if header.magic != MAGIC:
        raise BadFrameError("magic", "the first frame does not begin as ours do")
    if header.version != WIRE_VERSION:
        raise WrongVersionError(header.version, header.kind)
    # The transport knows the lengths as well. Signed, they also say that no frame of the message was cut,
    # and that the payloads, which are not signed, are as many and as long as their sender meant.
    if header.body_bytes != size - _OVERHEAD or header.body_bytes > MAX_BODY:
        raise BadFrameError("length", f"the first frame has {size} bytes, its body {header.body_bytes}")
    if header.kind not in _KINDS:
        raise BadFrameError("kind", f"frames of kind {header.kind} are unknown")
    return header


def declares_others(data: bytes, at: int, sizes: Sequence[int]) -> bool:
    """Tell whether a message says of itself that it has other frames than a stream says before it.

    Args:
        data: With the header of frame 0 in it, or all of a shorter frame.
        at: Where frame 0 begins.
        sizes: Of the frames in bytes, as the stream has them.

    Returns:
        No, for what is no message of this version: nothing is known of it.
    """
    if data[at : at + len(_OURS)] != _OURS:
        return False
    if sizes[0] < _OVERHEAD:
        return True
    payloads, body_bytes, payload_bytes = _SHAPE.unpack_from(data, at)
    declared = (payloads, body_bytes + _OVERHEAD, payload_bytes)
    return declared != (len(sizes) - 1, sizes[0], sum(sizes) - sizes[0])


def is_signed(key: bytes, first: memoryview) -> bool:
    """Tell whether frame 0, of a message that ``read_header`` accepted, was signed with this key."""
    # In constant time: ``==`` stops at the first difference, and by how long that takes a stranger could
    # find a signature byte by byte.
    return hmac.compare_digest(_mac(key, first[:-MAC_BYTES]), first[-MAC_BYTES:])


def _mac(key: bytes, signed: Buffer) -> bytes:
    # Not over the payloads: that would read every byte of a gradient once more on both sides. What this
    # leaves open, and to whom, is in docs/security.md.
    return hashlib.blake2s(signed, key=key, digest_size=MAC_BYTES).digest()


def body_of(first: memoryview) -> memoryview:
    """Return the body of frame 0, without a copy."""
    return first[_HEADER.size : -MAC_BYTES]


def _payload_bytes(frames: Sequence[memoryview]) -> int:
    # ``nbytes`` and not ``len``, which counts elements where a view has some of more than a byte.
    return sum([frame.nbytes for frame in frames]) - frames[0].nbytes
