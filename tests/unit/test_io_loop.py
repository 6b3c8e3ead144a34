"""The thread of the I/O loop, and how the system schedules it."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.wire.endpoint import Endpoint
from kvstore_mpi.wire.handshake import Identity
from kvstore_mpi.wire.io_loop import IoLoop

DEADLINE = 10.0

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux alone has a batch class")


class _Node:
    """Notes the scheduling class of its loop's thread."""

    busy = False
    deadline = None

    def __init__(self):
        self.policies = []
        self.passed = threading.Event()

    def on_event(self, event, now):
        pass

    def on_pass(self, now):
        self.policies.append(os.sched_getscheduler(0))
        self.passed.set()

    def on_tick(self, now):
        pass

    def on_crash(self, error):
        raise error


@pytest.fixture
def loop():
    identity = Identity(NodeId(Role.SERVER, 0), 0, bytes(32), os.urandom)
    endpoint = Endpoint(identity, heartbeat=1.0, peer_timeout=10.0, connect_timeout=10.0)
    return IoLoop(MemoryNetwork().transport(), endpoint)


def _policy_in(loop):
    node = _Node()
    loop.start(node, "test")
    assert node.passed.wait(DEADLINE)
    loop.stop()
    assert loop.join(DEADLINE)
    return node.policies[-1]


def test_a_message_does_not_preempt_who_sends_it(loop):
    """The I/O thread is in the batch class, and the thread that has started it is not."""
    before = os.sched_getscheduler(0)
    assert before == os.SCHED_OTHER
    assert _policy_in(loop) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == before


def test_a_class_that_somebody_has_chosen_stays(loop, monkeypatch):
    """A process in the real-time class is not taken out of it."""
    monkeypatch.setattr(os, "sched_getscheduler", lambda pid: os.SCHED_FIFO)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *arguments: pytest.fail("the class was changed"))
    assert _policy_in(loop) == os.SCHED_FIFO


def test_a_system_that_forbids_it_is_none_the_worse(loop, monkeypatch, caplog):
    """The loop runs, and a debug message says why it stays."""

    def refuse(*arguments):
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with caplog.at_level(logging.DEBUG, "kvstore_mpi.io"):
        assert _policy_in(loop) == os.SCHED_OTHER
    assert "not here" in caplog.text
