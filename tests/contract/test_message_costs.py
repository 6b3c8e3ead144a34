"""What messages between ranks are found to cost."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet.parts import message_costs

pytestmark = pytest.mark.mxnet

LATENCY_S, LARGE_S = 0.02, 0.06


class SlowLinks:
    """One of two ranks: what comes takes its time, in which nobody works."""

    rank = 0

    def send(self, array, _peer, _tag):
        """Send nothing."""
        return 0.0

    def receive(self, array, _peer, _tag):
        """Return when what comes is there, from when it is waited for."""
        return LATENCY_S if array.nbytes == message_costs.SMALL else LARGE_S

    def wait(self, seconds, _what):
        """Wait for it."""
        time.sleep(seconds)


def test_what_a_link_takes_is_not_what_processors_take(monkeypatch):
    """Latency and bandwidth are those of the link, whose messages keep no processor busy."""
    monkeypatch.setattr(message_costs, "MESSAGES", 6)
    monkeypatch.setattr(message_costs, "LEARNING", 1)
    # What other tests leave of the processors would count more than what is looked at.
    monkeypatch.setattr(message_costs, "_computation", lambda: lambda: None)
    link, handling = message_costs.measure_link(SlowLinks())
    assert link.latency_s >= LATENCY_S
    assert link.seconds(message_costs.LARGE) >= LARGE_S
    assert handling.seconds(message_costs.LARGE) < LATENCY_S / 2


def test_copies_are_measured():
    """A large array takes longer than a small one to leave MXNet's memory, or to get there."""
    handling = message_costs.measure_handling()
    assert 0 < handling.byte_s < 1e-7
    assert handling.message_s > 0
