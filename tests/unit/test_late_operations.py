"""What the leader of a client says of operations that wait for its ranks: once a minute, with a cause."""

from __future__ import annotations

import logging

import pytest
from support.one_worker import STEP, Worker, leader, member, node, only

from kvstore_mpi.errors import DeadlineError, MismatchError
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.instructions import Complete

WARN = 10.0
KEYS = ("w", "v", "u")
LEFT_OUT = "meanwhile rank 1 has called key 'v' once more, to which this rank has not come: all must push"


def waiting(worker, keys=("w",), now=100.0):
    """Have a worker wait in pushes that nobody else makes."""
    for number, key in enumerate(KEYS):
        worker.init(key, number)
    worker.members_are_ready = False
    for key in keys:
        worker.submit(Kind.PUSHPULL, key, now=now)
        worker.flush()
    return worker


def lines(worker, now):
    return [log.text for log in only(Log, worker.state.tick(now))]


def error_at(worker, now):
    """Return what operations fail with."""
    (error,) = {str(each.error): each.error for each in only(Complete, worker.state.tick(now))}.values()
    return error


@pytest.mark.parametrize("servers", [0, 1])
def test_a_rank_that_is_late_is_named_once_a_minute(servers):
    """With one line for all keys that wait for it."""
    worker = waiting(leader(servers=servers), ["w", "u"])
    assert lines(worker, 100.0 + WARN) == []
    (line,) = lines(worker, 101.0 + WARN)
    assert line == (
        "client0.0 (rank 0): pushpull number 1 of key 'w' and 1 more has waited 11 s for rank 1, which did "
        "not call it"
    )
    assert lines(worker, 102.0 + WARN) == lines(worker, 160.9 + WARN) == []
    (line,) = lines(worker, 161.0 + WARN)
    assert "has waited 71 s" in line


def test_the_log_warns():
    (log,) = waiting(leader()).state.tick(101.0 + WARN)
    assert log.level == logging.WARNING


@pytest.mark.parametrize("worker", [Worker(), member()], ids=["alone", "member"])
def test_only_a_leader_knows_who_is_late(worker):
    """A member waits for what is announced, and a server says itself for whom it waits."""
    waiting(worker)
    assert lines(worker, 101.0 + WARN) == []


def test_what_all_have_called_waits_for_no_rank():
    worker = waiting(leader())
    worker.hears(node(1), m.Ready([0]))
    assert lines(worker, 101.0 + WARN) == []


def test_a_rank_that_leaves_a_key_out_is_no_lost_network():
    """It has gone on to the next step of another key: neither will ever come."""
    worker = waiting(leader(servers=0))
    worker.hears(node(1), m.Ready([1]))
    (line,) = lines(worker, 101.0 + WARN)
    assert LEFT_OUT in line
    error = error_at(worker, 101.0 + STEP)
    assert isinstance(error, MismatchError)
    assert LEFT_OUT in str(error)


def test_a_rank_that_does_nothing_is_late():
    error = error_at(waiting(leader(servers=0)), 101.0 + STEP)
    assert isinstance(error, DeadlineError)
    assert str(error).endswith("of which rank 1 did not call it")


def test_who_is_ahead_with_another_key_may_not_be_who_is_late():
    """Of three ranks the one has come to both, and the other to none."""
    worker = waiting(Worker(0, workers=3, servers=0))
    worker.hears(node(1), m.Ready([0, 1]))
    (line,) = lines(worker, 101.0 + WARN)
    assert line.endswith("for rank 2, which did not call it")


def test_a_deadline_may_be_sooner_than_a_warning():
    """Who asks for two seconds gets an error after two, and not after the ten until something is said."""
    worker = waiting(leader(servers=0, warn_after=2 * STEP))
    assert worker.state.tick(100.0 + STEP) == []
    assert isinstance(error_at(worker, 101.0 + STEP), DeadlineError)
