"""Any messages come out of a stream as they went in, however it is cut; nonsense is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.errors import FrameError
from kvstore_mpi.transport.framing import HANDSHAKE_BYTES, UNPROVEN_BYTES, Parser, StrangerError, head
from kvstore_mpi.wire.codec import MAX_FRAME_BYTES, MAX_PAYLOADS, Kind, seal

FRAMES = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


def _anybody(_first):
    return True


def in_stream(messages):
    return b"".join(head(frames)[0] + b"".join(frames) for frames in messages)


def parsed(stream, cuts, proves=_anybody):
    """Give a parser the stream in pieces, the way a socket would: into its target, or as bytes."""
    parser, out, at = Parser(proves), [], 0
    ends = [*sorted(cuts), len(stream)]
    for end in ends:
        while at < end:
            if parser.target is None:
                out += parser.feed(stream[at:end])
                at = end
            else:
                count = min(end - at, parser.target.nbytes)
                parser.target[:count] = stream[at : at + count]
                out += parser.filled(count)
                at += count
    return [[bytes(frame) for frame in frames] for frames in out]


@given(st.lists(FRAMES, max_size=6), st.data())
def test_messages_survive_any_cutting_of_the_stream(messages, data):
    """What goes in comes out, in order, whatever pieces the stream arrives in."""
    stream = in_stream(messages)
    cuts = data.draw(st.sets(st.integers(0, len(stream)), max_size=12))
    assert parsed(stream, cuts) == messages


@given(FRAMES)
def test_the_size_is_what_is_sent(frames):
    """The head says how many bytes it and the frames have together."""
    begin, size = head(frames)
    assert size == len(begin) + sum(map(len, frames))


def test_payloads_are_aligned():
    """Payloads can be read as numbers in place, whatever the length of what was before them."""
    stream = in_stream([[b"odd", bytes(64)], [b"x", bytes(128)]])
    for [_, payload] in Parser(_anybody).feed(stream):
        assert np.frombuffer(payload, np.uint8).ctypes.data % 16 == 0


@pytest.mark.parametrize("size", [5_000, 4_999])
def test_a_payload_that_has_begun_to_come_gets_the_place_that_it_is_given(size):
    """If that is as large as the payload; each is asked for with the first frame of its message."""
    place = memoryview(bytearray(size))
    asked = []

    def place_of(first, number):
        asked.append((bytes(first), number))
        return place if number == 1 else None

    message = [b"first", bytes(range(250)) * 4, bytes(range(250)) * 20, b"last"]
    stream = in_stream([message])
    parser = Parser(_anybody, place_of)
    assert parser.feed(stream[:2_000]) == []
    parser.target[:] = stream[2_000 : 2_000 + parser.target.nbytes]
    rest = stream[2_000 + parser.target.nbytes :]
    assert parser.filled(parser.target.nbytes) == []
    assert parser.target.nbytes == len(b"last") == len(rest)
    parser.target[:] = rest
    [frames] = parser.filled(4)
    assert [bytes(frame) for frame in frames] == message
    assert asked == [(b"first", 1), (b"first", 2)]
    assert (frames[2].obj is place.obj) == (size == 5_000)


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack("<I", 0),
        struct.pack("<I", MAX_PAYLOADS + 2),
        struct.pack("<II", 1, MAX_FRAME_BYTES + 1),
        struct.pack("<1001I", 1000, *[MAX_FRAME_BYTES] * 1000),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["none", "too many", "too large", "too much", "http"],
)
def test_what_is_no_message_of_ours_is_refused(stream):
    """Numbers beyond the protocol's limits end the stream before any memory is reserved."""
    with pytest.raises(FrameError, match="the protocol has"):
        Parser(_anybody).feed(stream)


PROOF = b"proof" + bytes(100)


@pytest.mark.parametrize("bit", range(8 * 4 * 2))
def test_a_size_with_a_wrong_bit_ends_the_stream(bit):
    """At the header, which says the same: the bytes that are missing would never come."""
    frames = [seal(bytes(32), Kind.DATA, payloads=1, payload_bytes=5_000), bytes(5_000)]
    stream = bytearray(in_stream([frames]))
    assert parsed(bytes(stream), ()) == [[bytes(frame) for frame in frames]]
    stream[4 + bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        parsed(bytes(stream[:80]), ())


def proving(first):
    return bytes(first) == PROOF


@given(st.lists(st.binary(max_size=HANDSHAKE_BYTES), max_size=3), st.data())
def test_large_messages_come_behind_a_proof(handshakes, data):
    """Handshakes pass as they are, and from a first frame that proves who sends everything does."""
    messages = [*([each] for each in handshakes), [PROOF, bytes(5_000)], [b"any"], [bytes(70_000), b""]]
    stream = in_stream(messages)
    cuts = data.draw(st.sets(st.integers(0, len(stream)), max_size=12))
    assert parsed(stream, cuts, proving) == messages


@pytest.mark.parametrize(
    "sizes",
    [(HANDSHAKE_BYTES + 1,), (UNPROVEN_BYTES + 1,), (60, 0), (60, MAX_FRAME_BYTES), (0,) * 4_096],
)
def test_before_a_proof_nothing_larger_than_a_handshake_passes(sizes):
    """It is refused before the place for it is made, and its frames are judged once."""
    judged = []

    def proves(first):
        judged.append(bytes(first))
        return False

    parser = Parser(proves)
    with pytest.raises(StrangerError, match="has not shown that it knows the job's secret"):
        parser.feed(struct.pack(f"<{len(sizes) + 1}I", len(sizes), *sizes) + bytes(HANDSHAKE_BYTES + 1))
    assert len(judged) <= 1
    assert sum(frame.nbytes for frame in parser._frames) <= HANDSHAKE_BYTES + 1
