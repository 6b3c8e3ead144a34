"""A key that each worker of a client pushes for itself: a round waits for all of them."""

from __future__ import annotations

from support.one_server import WARN, Server, failures, leader, only, summed

from kvstore_mpi.records import KeySpec, Mode, name_of_table
from kvstore_mpi.server.records import Answer
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log


def server(**how):
    """A server with a key that three workers of one client push."""
    return Server(clients=1, workers=3, apart=True, **how)


def test_a_round_needs_all_workers_of_the_client():
    """They are summed in the order of workers, whoever comes first."""
    one = server()
    assert summed(one.push(2, 1)) == []
    assert summed(one.push(0, 1)) == []
    assert summed(one.push(1, 1)) == [(1, [["c0s1@0"], ["c1s1@0"], ["c2s1@0"]])]
    assert one.unit().pushed == one.unit().applied == [1, 1, 1]


def test_a_worker_reads_its_own_push():
    """Its pull waits for that, and not for a push that it has not made."""
    one = server()
    one.push(2, 1)
    assert one.pull(2, after=1) == []
    assert one.pull(1, after=0) != []
    one.push(0, 1)
    answers = [each.peer for each in only(Answer, one.push(1, 1))]
    assert answers.count(leader(2)) == 2  # to its push, and to its pull


def test_who_is_missing_is_named():
    """As a worker: of a client there is only one."""
    one = server()
    one.push(1, 1, now=0.0)
    (line,) = only(Log, one.state.rounds.tick(1.0 + WARN))
    assert "for the push of worker 0, 2; worker 1 has pushed" in line.text


def test_a_table_is_named_as_the_user_does():
    """Where it has taken the place of a dense key it has another name among the processes."""
    one = Server(clients=2, create=False)
    one.create(key=name_of_table("w"))
    one.push(0, 1, now=0.0)
    (line,) = only(Log, one.state.rounds.tick(1.0 + WARN))
    assert line.text.startswith("key 'w': round 1 has waited")
    news = one.state.gone(m.PeerGone("worker1", "client 1 has died", orderly=False, returns=False), 0.0)
    assert "has pushed key 'w' 0 times" in failures(news)[leader(0)].text


def test_a_client_that_departs_takes_all_its_workers_along():
    """A round to which some of them have pushed fails; one to which all have, is closed before."""
    one = server()
    one.push(0, 1)
    news = one.state.gone(m.PeerGone("worker1", "client 0 has died", orderly=False, returns=True), 0.0)
    assert "has pushed key 'w' 0 times" in failures(news)[leader(0)].text


def test_a_client_that_begins_anew_counts_from_the_start():
    """For each of its workers; what they had pushed in part is dropped."""
    one = server(optimizer="lr")
    for worker in range(3):
        one.push(worker, 1)
    one.push(0, 2)
    one.state.begins(leader(1), 1)
    unit = one.unit()
    assert (unit.pushed, unit.applied, unit.contributions) == ([0, 0, 0], [0, 0, 0], {})
    assert [len(summed(one.push(worker, 1))) for worker in range(3)] == [0, 0, 1]


def test_a_worker_that_resumes_counts_for_all_of_its_client():
    """As a client of several ranks does with what they push together."""
    one = server()
    key = m.Create(KeySpec(0, "w", (8,), "float32", apart=True), "sync", 0, (0, 8), [(0, 8)], seed=True)
    one.state.resume(leader(0), m.Resume([(key, 4)]))
    assert one.unit().applied == [4, 4, 4]
    assert one.unit().key.store.mode is Mode.SYNC
