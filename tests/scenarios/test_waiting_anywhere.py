"""Ranks of a client that wait for values wherever they like: all get them, and they are right."""

from __future__ import annotations

import random
import threading

import pytest
from support.outcomes import outcomes

from kvstore_mpi.testing.cluster import DEADLINE_S

pytestmark = pytest.mark.usefixtures("short_linger")

SIZES = [30, 700_000, 30, 300, 300_000, 30]
"""Some of more than a bucket, so that members have enough under way and keep what they are ready for."""
STEPS = 6


class Call:
    """An operation that has been called."""

    def __init__(self):
        self._ended, self._errors = threading.Event(), []

    def done(self, error):
        self._errors.append(error)
        self._ended.set()

    def wait(self):
        assert self._ended.wait(DEADLINE_S), "an operation has not ended"
        if self._errors[0] is not None:
            raise self._errors[0]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("layout", "config"),
    [((1, 3, 0), {}), ((1, 2, 1), {}), ((1, 3, 2), {"leaders": "all"}), ((2, 2, 1), {})],
)
def test_waits_within_steps_and_between_them(layout, config, seed):
    """Each rank calls the keys in the same order, with priorities of its own, and waits when it likes."""

    def run(worker):
        decide = random.Random(10 * seed + worker.rank)
        store = worker.open_store("sync")
        buffers = [worker.exchange_buffer(size, "float32") for size in SIZES]
        called = []
        for key, buffer in enumerate(buffers):
            buffer[...] = 0
            called.append(Call())
            worker.init(store, key, buffer.shape, buffer, called[key].done)
        for step in range(1, STEPS + 1):
            for key, buffer in enumerate(buffers):
                called[key].wait()
                assert buffer[0] == buffer[-1] == (step - 1) * worker.num_workers
                buffer[...] = step
                called[key] = Call()
                worker.pushpull(store, key, decide.randint(-9, 9), called[key].done)
                if decide.random() < 0.3:
                    called[decide.randrange(key + 1)].wait()
            if decide.random() < 0.3:
                [call.wait() for call in called]
        [call.wait() for call in called]
        assert all((buffer == STEPS * worker.num_workers).all() for buffer in buffers)

    ended = outcomes(layout, run, step_timeout=20.0, slice_elements=100_000, **config)
    assert ended == [None] * (layout[0] * layout[1])
