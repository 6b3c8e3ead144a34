"""Any messages come out of a stream as they went in, however it is cut; nonsense is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.errors import FrameError
from kvstore_mpi.transport.framing import Parser, head
from kvstore_mpi.wire.codec import MAX_FRAME_BYTES, MAX_PAYLOADS

FRAMES = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


def in_stream(messages):
    return b"".join(head(frames)[0] + b"".join(frames) for frames in messages)


def parsed(stream, cuts):
    """Give a parser the stream in pieces, the way a socket would: into its target, or as bytes."""
    parser, out, at = Parser(), [], 0
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
    for [_, payload] in Parser().feed(stream):
        assert np.frombuffer(payload, np.uint8).ctypes.data % 16 == 0


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
        Parser().feed(stream)
