"""Frames on the wire: what is made can be read, and nothing else can."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.errors import FrameError, UsageError
from kvstore_mpi.wire import codec
from kvstore_mpi.wire.codec import BadFrameError, Kind, WrongVersionError
from kvstore_mpi.wire.message import WIRE_VERSION, Message
from kvstore_mpi.wire.messages import BarrierArrive, Failure, Ok, SetOptimizer

KEY = bytes(range(32))
NUMBERS = st.integers(0, 2**64 - 1)


def frames_of(payloads=(), body=b"body", **fields):
    first = codec.seal(
        KEY,
        Kind.DATA,
        body,
        payloads=len(payloads),
        payload_bytes=codec.measure(payloads),
        **fields,
    )
    return [memoryview(first), *map(memoryview, payloads)]


def reason_of(frames):
    with pytest.raises(BadFrameError) as caught:
        codec.read_header(frames)
    return caught.value.reason


@given(NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=100), st.lists(st.binary(max_size=20), max_size=5))
def test_what_is_sealed_can_be_read(session, counter, ack, body, payloads):
    """All fields and the body come back, and the signature is right under this key only."""
    frames = frames_of(payloads, body, session=session, counter=counter, ack=ack)
    header = codec.read_header(frames)
    assert (header.session, header.counter, header.ack, header.kind) == (session, counter, ack, Kind.DATA)
    assert (header.payloads, header.payload_bytes) == (len(payloads), sum(map(len, payloads)))
    assert bytes(codec.body_of(frames[0])) == body
    assert codec.is_signed(KEY, frames[0])
    assert not codec.is_signed(bytes(32), frames[0])


def test_the_layout_is_the_documented_one():
    """A program in another language finds every field at its offset."""
    first = codec.seal(KEY, 4, b"b", session=5, counter=6, ack=7, payloads=8, payload_bytes=9)
    assert first[:4] == b"KVMP"
    assert (first[4], first[5]) == (WIRE_VERSION, 4)
    offsets = ((6, 2), (8, 4), (12, 8), (20, 8), (28, 8), (36, 8))
    fields = [int.from_bytes(first[at : at + size], "little") for at, size in offsets]
    assert fields == [8, 1, 5, 6, 7, 9]
    assert (first[44:45], len(first)) == (b"b", 44 + 1 + 16)


@given(st.data())
def test_one_changed_bit_is_noticed(data):
    """Whatever bit of frame 0 a stranger changes, the frame is malformed or its signature wrong."""
    frames = frames_of([b"payload"], session=1, counter=2, ack=3)
    bit = data.draw(st.integers(0, 8 * len(frames[0]) - 1))
    changed = bytearray(frames[0])
    changed[bit // 8] ^= 1 << bit % 8
    frames[0] = memoryview(bytes(changed))
    try:
        codec.read_header(frames)
    except FrameError:
        return
    assert not codec.is_signed(KEY, frames[0])


def test_frames_cut_anywhere_are_bad():
    """A first frame that lost its end, at any byte, is malformed."""
    whole = frames_of(body=b"some body")[0]
    for size in range(len(whole)):
        assert reason_of([whole[:size]]) in {"short", "length"}


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_raise_nothing_but_frame_errors(parts):
    """Bytes from anywhere are refused in one way only."""
    with pytest.raises(FrameError):
        codec.read_header([memoryview(part) for part in parts])


def test_each_fault_has_its_word():
    """Reasons are few and fixed, because they are counted by."""
    first, payload = frames_of([b"payload"])
    assert reason_of([]) == "short"
    assert reason_of([memoryview(b"X" * 60)]) == "magic"
    assert reason_of([memoryview(bytes(first) + b"x"), payload]) == "length"
    assert reason_of([first]) == "payloads"
    assert reason_of([first, payload, payload]) == "payloads"
    assert reason_of([first, payload, memoryview(b"")]) == "payloads"
    assert reason_of([first, payload[:-1]]) == "payloads"
    assert reason_of([memoryview(codec.seal(KEY, 77))]) == "kind"


def test_a_body_over_the_limit_is_refused_before_it_is_signed_for():
    """The length is checked against the limit, whatever arrived."""
    assert reason_of(frames_of(body=bytes(codec.MAX_BODY + 1))) == "length"


def test_a_body_of_the_largest_size_can_be_sent_and_read():
    """What one side may send the other takes, and a byte more is refused before it leaves."""
    small = len(codec.encode_message(Failure("E", "x" * 70_000)))
    text = "x" * (70_000 + codec.MAX_BODY - small)
    body = codec.encode_message(Failure("E", text))
    assert codec.read_header(frames_of(body=body)).body_bytes == codec.MAX_BODY
    with pytest.raises(UsageError, match="too large to send"):
        codec.encode_message(Failure("E", text + "x"))


def test_another_version_says_what_to_do():
    """Both versions and the remedy are named."""
    first = bytearray(codec.seal(KEY, Kind.HELLO))
    first[4] = WIRE_VERSION + 1
    with pytest.raises(WrongVersionError) as caught:
        codec.read_header([memoryview(first)])
    assert f"speaks wire version {WIRE_VERSION + 1}, this side {WIRE_VERSION}" in str(caught.value)
    assert "install the same version of kvstore_mpi everywhere" in str(caught.value)
    assert (caught.value.reason, caught.value.kind) == ("version", Kind.HELLO)


@pytest.mark.parametrize(
    "message",
    [
        Ok(1),
        BarrierArrive(3),
        Failure("UsageError", "text", key="k"),
        SetOptimizer(1, 2, {"lr": 0.1}),
    ],
)
def test_messages_come_back(message):
    """A body decodes to the message that it was."""
    assert codec.decode_message(memoryview(codec.encode_message(message))) == message


@given(st.binary(max_size=60))
def test_bodies_of_any_bytes_raise_nothing_but_frame_errors(body):
    """Decoding either gives a message or counts as bad; nothing else is raised."""
    with contextlib.suppress(BadFrameError):
        assert isinstance(codec.decode_message(memoryview(body)), Message)


@pytest.mark.parametrize(
    "body", [b"\x91\xa2\xff\xfe", b"\x94\xacSetOptimizer\x00\x00\x81\xa1a" + b"\x91" * 5_000]
)
def test_bodies_that_break_decoders_are_bad_frames(body):
    """Broken text and endless nesting are bad frames, not exceptions of the decoder."""
    with pytest.raises(BadFrameError, match="cannot be decoded"):
        codec.decode_message(memoryview(body))


@given(NUMBERS)
def test_values_of_control_frames_come_back(value):
    """A control frame carries one number."""
    assert codec.decode_value(memoryview(codec.encode_value(value))) == value


def test_a_control_frame_carries_nothing_else():
    """Any other length is a bad frame."""
    with pytest.raises(BadFrameError):
        codec.decode_value(memoryview(bytes(9)))


def test_too_large_a_message_is_the_callers_error(monkeypatch):
    """Each limit is refused where the message is made, with what to change."""
    with pytest.raises(UsageError, match="too large to send"):
        codec.encode_message(SetOptimizer(1, 1, {"x": "y" * codec.MAX_BODY}))
    with pytest.raises(UsageError, match="over a limit"):
        codec.measure([b""] * (codec.MAX_PAYLOADS + 1))
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 10)
    assert codec.measure([bytes(10), bytes(10)]) == 20
    with pytest.raises(UsageError, match="over a limit"):
        codec.measure([bytes(11)])
    monkeypatch.setattr(codec, "MAX_MESSAGE_BYTES", 19)
    with pytest.raises(UsageError, match="choose slices of another size"):
        codec.measure([bytes(10), bytes(10)])


def test_payloads_are_measured_in_bytes():
    """An array counts with the bytes of its elements."""
    assert codec.measure([memoryview(bytes(64)).cast("d"), b"", bytearray(3)]) == 67
