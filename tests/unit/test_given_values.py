"""Pushes that bring the new value: what the worker makes of them, message by message."""

from __future__ import annotations

import pytest
from support.one_worker import Worker, completed, leader, member, node, only, sent, server, the_error

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.records import SCHEDULER
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker.collectives import Collective, Kind
from kvstore_mpi.worker.instructions import Collect
from kvstore_mpi.worker.records import Operation


def push(worker, *, given=False, key="w"):
    """Push, to be told of the value; ``given`` as the first rank of a client says."""
    operation = Operation(Kind.PUSH, 0, "push w", arrived="value w", given=given)
    return worker.state.submit(0, key, operation, 0.0)


# --- one rank ---


def test_a_push_that_brings_the_value_is_answered_with_it():
    """On the wire it is what a pushpull is; the caller is told of the value, then of the end."""
    worker = Worker().init("w")
    push(worker, given=True)
    (message,) = worker.flush()
    assert message.message.entries == [(0, 0, 6, 1, True)]
    write, *ended = worker.answer(message)
    assert write.payload == "value@0"
    assert completed(ended) == ["value w", "push w"]


def test_a_push_that_brings_none_is_confirmed():
    """Nothing is said of a value that nobody has decided to want."""
    worker = Worker().init("w")
    push(worker)
    (message,) = worker.flush()
    assert message.message.entries == [(0, 0, 6, 1, False)]
    assert completed(worker.answer(message)) == ["push w"]


GONE = m.PeerGone("server0", "server0 has died", orderly=False, returns=True)


def test_a_value_is_pulled_from_a_server_that_is_back():
    """The push is lost and not repeated; the caller is told of the value when it is there, not before."""
    worker = Worker(mode="async").init("w")
    push(worker, given=True)
    worker.flush()
    assert completed(worker.hears(SCHEDULER, GONE)) == []
    (pull,) = sent(worker.membership.server_back(server()), m.Pull)
    assert pull[1].entries == [(0, 0, 6, 1)]
    out = worker.hears(server(), m.Values([(0, 0, 6, 1)], shared=False), ["value"])
    assert completed(out) == ["value w", "push w"]


def test_a_push_to_a_server_that_is_down_ends_when_its_value_has_come():
    """One that wants no value ends at once, and is told of none."""
    for given, ended in ((True, []), (False, ["push w"])):
        worker = Worker(mode="async").init("w")
        worker.hears(SCHEDULER, GONE)
        assert completed(push(worker, given=given)) == ended


def test_a_value_that_fails_is_not_told():
    """The push ends with the error, and nothing else."""
    worker = Worker().init("w")
    push(worker, given=True)
    out = worker.hears(server(), m.Failure(MismatchError.__name__, "no"))
    assert completed(out) == []
    assert "value w" not in [getattr(each, "done", None) for each in out]


# --- clients of several ranks ---


def test_the_leader_reduces_for_the_value_and_shares_it():
    """By a collective of its own: a member's program has called push as well."""
    worker = leader().init("w")
    push(worker, given=True)
    announce, collect = worker.flush()
    assert announce.message.entries == [(Collective.REDUCE_GIVE, 0, 1, 0, 2, 1)]
    assert completed(worker.state.collected(collect, 0.0)) == []
    (message,) = worker.flush()
    assert message.message.entries == [(0, 0, 6, 1, True)]
    assert completed(worker.answer(message)) == []
    announce, share = worker.flush()
    assert announce.message == m.Announce([(Collective.SHARE, 0, 1, 0, 2, 1)])
    assert completed(worker.state.collected(share, 0.0)) == ["value w", "push w"]


def collected(worker, *codes):
    """Carry out what a leader announces of two slices; return what has ended."""
    out = []
    for code in codes:
        for collect in only(Collect, worker.announced((code, 0, 1, 0, 2))):
            out += worker.state.collected(collect, 0.0)
    return out


def test_a_member_gets_the_value_that_its_leader_has_wanted():
    """And is told."""
    worker = member().init("w")
    push(worker)
    assert completed(collected(worker, Collective.REDUCE_GIVE)) == []
    assert completed(collected(worker, Collective.SHARE)) == ["value w", "push w"]


def test_a_member_that_did_not_ask_gets_it_without_a_word():
    """Its push ends with the value in its buffer."""
    worker = member().init("w")
    worker.submit(Kind.PUSH, "w")
    assert completed(collected(worker, Collective.REDUCE_GIVE, Collective.SHARE)) == ["push w"]


def test_a_member_whose_leader_wanted_none_is_told_of_none():
    """Its push ends when it is reduced; it asks the servers for the value."""
    worker = member().init("w")
    push(worker)
    assert completed(collected(worker, Collective.REDUCE)) == ["push w"]
    worker.submit(Kind.PULL, "w")
    assert worker.state.under_way


def test_every_rank_pushes_for_the_value_that_the_leader_wants():
    """With ``leaders`` all a member wants the values of its slices, and says when they are there."""
    worker = member(leaders="all").init("w")
    push(worker)
    for collect in worker.announced((Collective.REDUCE_GIVE, 0, 1, 0, 2)):
        worker.state.collected(collect, 0.0)
    (message,) = worker.flush()
    assert message.message.entries == [(0, 4, 6, 1, True)]
    (told,) = sent(worker.answer(message), m.Arrived)
    assert told == (node(0), m.Arrived([(0, 1, 2)]))
    assert completed(collected(worker, Collective.SHARE)) == ["value w", "push w"]


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        (Collective.REDUCE_GIVE, Kind.PUSHPULL),
        (Collective.REDUCE_SHARE, Kind.PUSH),
        (Collective.REDUCE, Kind.PUSHPULL),
    ],
)
def test_push_and_pushpull_of_one_step_still_differ(theirs, mine):
    """The programs of the ranks are not the same, and that is said."""
    worker = member().init("w")
    worker.submit(mine, "w")
    error = the_error(worker.announced((theirs, 0, 1, 0, 2)))
    assert isinstance(error, MismatchError)
    assert f"called {mine.value} number 1" in str(error)
