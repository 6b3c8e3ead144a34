"""Stores that all workers have closed, as one of them sees it: what is heard of them late."""

from __future__ import annotations

import pytest
from support.one_worker import Worker, sent, server

from kvstore_mpi.records import SCHEDULER, Mode, StoreTerms
from kvstore_mpi.wire import messages as m


def closed(*, mode="sync", **shape):
    """Return a worker that has closed its first store, and has opened the next one."""
    worker = Worker(mode=mode, clients=2, workers=2, **shape).init("w")
    worker.membership.note_optimizer(0, {"name": "sgd"})
    worker.state.keys.take_terms(0, StoreTerms())
    worker.membership.set_hyper(0, {"lr": 1.0})
    worker.state.keys.open_store(1, Mode.ASYNC)
    (gone,) = worker.membership.close_store(0)
    assert gone.spec.key == "w"
    assert (worker.state.keys.by_name, worker.state.keys.by_id) == ({}, {})
    return worker


def test_what_a_server_says_late_of_a_closed_store_is_nothing():
    """That it has mapped a buffer, or, being back, that it lacks a value."""
    worker = closed()
    assert worker.hears(server(), m.Shared(0)) == []
    assert worker.hears(server(), m.Missing([0])) == []
    assert worker.state.error is None


def test_a_server_that_comes_back_is_told_nothing_of_it():
    """Neither rules nor numbers of pushes: it would make a store of them."""
    worker = closed()
    reason = "server0 has died and is started again"
    worker.hears(SCHEDULER, m.PeerGone("server0", reason, orderly=False, returns=True))
    assert sent(worker.membership.server_back(server())) == [(server(), m.Resume([]))]


def test_a_closed_store_does_not_say_who_is_needed():
    """In the asynchronous one that is left nobody waits for another client, as all did before."""
    gone = m.PeerGone("worker1", "client1.0 has died", orderly=False)
    assert not Worker(mode="sync", clients=2, workers=2).state.keys.goes_on_without(gone)
    assert closed().state.keys.goes_on_without(gone)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_between_two_stores_who_is_needed_is_as_before(mode):
    """Whoever was lost in an asynchronous store is not missed by who goes from it to the next one."""
    worker = Worker(mode=mode, clients=2, workers=2).init("w")
    gone = [
        m.PeerGone(name, f"{name} has died", orderly=False, returns=returns)
        for returns in (False, True)
        for name in ("worker1", "server0")
    ]
    worker.membership.close_store(0)
    assert [worker.state.keys.goes_on_without(each) for each in gone] == [mode == "async"] * 2 + [True] * 2
