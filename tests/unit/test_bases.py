"""What client and server both know of a slice: that they stay equal, and when they are not sure of it."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.values.base import ClientBase, ServerBases
from kvstore_mpi.values.coding import CODINGS, RAW, Coded

SIZE, LO, HI = 12, 4, 9
PLACE = slice(LO, HI)


def draw(seed, size=SIZE):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


class Pair:
    """A client and a server that have exchanged a slice once, as it is."""

    def __init__(self, coding, *, before=False):
        self.buffer = draw(1)
        self.client = ClientBase(self.buffer, coding, before=before)
        self.server = ServerBases(draw(2), 2)
        self.coding = coding

    def exchange(self, value, coding):
        """Push the slice and be sent a value; return what the server has understood."""
        assert self.client.coding_of(LO) == coding
        understood = self.buffer[PLACE].copy()
        if coding != RAW:
            payload = self.client.encode(LO, HI)
            assert len(payload) == self.client.num_bytes(LO, HI)
            understood = self.server.decode(1, PLACE, Coded(payload, coding)).copy()
        self.server.send(1, PLACE, value, coding)
        sent = self.server.take_payload(1, LO)
        answer = value.tobytes() if sent is None else sent.payload
        self.client.take(LO, HI, answer, coding)
        return understood


@pytest.mark.parametrize("coding", list(CODINGS))
@pytest.mark.parametrize("before", [False, True])
def test_both_sides_have_the_same_base_after_every_exchange(coding, before):
    """The first travels as it is; then each refers to the answer before it."""
    pair = Pair(coding, before=before)
    assert pair.client.num_bytes(LO, HI) == 4 * (HI - LO)
    pair.exchange(draw(3, HI - LO), RAW)
    for step in range(4):
        pair.buffer[PLACE] += 0.1 * draw(10 + step, HI - LO)
        parameters = pair.buffer[PLACE].copy()
        understood = pair.exchange(draw(20 + step, HI - LO), coding)
        base = pair.server.of(1, PLACE)
        left = parameters - understood if before else np.zeros(HI - LO)
        np.testing.assert_allclose(pair.buffer[PLACE], base + left, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(pair.server.of(0, PLACE), draw(2)[PLACE])  # another client's
    np.testing.assert_array_equal(pair.buffer[:LO], draw(1)[:LO])


def test_what_came_past_the_base_is_not_referred_to():
    """A restarted server, or an answer in shared memory: the next exchange travels as it is."""
    pair = Pair(8)
    pair.exchange(draw(3, HI - LO), RAW)
    assert pair.client.coding_of(LO) == 8
    pair.client.forget(LO)
    pair.exchange(draw(4, HI - LO), RAW)
    pair.exchange(draw(5, HI - LO), 8)


def test_a_coded_answer_is_taken_once():
    """A repetition is answered with the base itself, which refers to nothing."""
    pair = Pair(8)
    pair.server.send(1, PLACE, draw(3, HI - LO), 8)
    assert pair.server.take_payload(0, LO) is None
    assert pair.server.take_payload(1, LO) is not None
    assert pair.server.take_payload(1, LO) is None
