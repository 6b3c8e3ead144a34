"""What waits to be written to a connection, against a queue of whole messages and a count of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.transport.outgoing import Outgoing

PARTS = st.lists(st.binary(max_size=5), min_size=1, max_size=4).filter(any)
STEPS = st.lists(st.one_of(PARTS, st.integers(0, 20)), max_size=40)


@given(STEPS, st.integers(1, 3), st.integers(0, 3))
def test_bytes_leave_in_order_and_messages_wait_until_their_last_one_has(steps, most, begun):
    """Each step queues a message, or has the kernel take some bytes."""
    outgoing, written, expected, ends = Outgoing(), b"", b"", []
    for step in steps:
        if isinstance(step, list):
            whole = b"".join(step)
            sent = min(begun, len(whole) - 1) if not outgoing else 0
            written += whole[:sent] if not outgoing else b""
            outgoing.put([memoryview(part) for part in step], sent)
            expected += whole
            ends.append(len(expected))
        elif outgoing:
            parts = outgoing.first(most)
            assert 1 <= len(parts) <= most
            ready = b"".join(parts)
            outgoing.take(parts, min(step, len(ready)))
            written += ready[:step]
        assert written == expected[: len(written)]
        assert len(outgoing) == sum(end > len(written) for end in ends)
        assert bool(outgoing) == (len(written) < len(expected))


def test_nothing_is_left_when_a_connection_is_lost():
    """Not even the count."""
    outgoing = Outgoing()
    outgoing.put([memoryview(b"abc")], 1)
    outgoing.clear()
    assert (bool(outgoing), len(outgoing)) == (False, 0)
