"""Rounds that wait too long or for nobody, and clients that leave, die or come back."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace
from support.one_server import (
    GRADIENTS,
    SPEC,
    STEP,
    WARN,
    Server,
    answered,
    failures,
    leader,
    only,
    summed,
)

from kvstore_mpi.errors import DeadlineError, MismatchError, PeerLostError
from kvstore_mpi.server.records import Allocate, Fill
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send

# --- departures ---


@pytest.mark.parametrize(("orderly", "error"), [(True, MismatchError), (False, PeerLostError)])
def test_a_round_that_a_departed_client_should_complete_fails(orderly, error):
    """Unequal numbers of batches, or a death; the message names key and client."""
    server = Server()
    server.push(0, 1)
    server.push(1, 1)
    server.push(0, 2)
    gone = m.PeerGone("worker1", "client1.0 (host h, pid 1) has finished", orderly)
    failure = failures(server.state.gone(gone, 0.0))[leader(0)]
    assert failure.error == error.__name__
    for part in ("'w'", "client1.0", "1 times"):
        assert part in failure.text
    assert ("unequal numbers" in failure.text) is orderly


def test_who_only_pulls_is_told_that_the_round_has_failed():
    """Another rank of a client that has pushed waits for the same value."""
    server = Server(clients=2, workers=4)
    server.push(0, 1)
    assert server.pull(1, after=1) == []
    gone = m.PeerGone("worker2", "client1.0 has died", orderly=False)
    assert set(failures(server.state.gone(gone, 0.0))) == {leader(0), leader(1)}


@pytest.mark.parametrize(("orderly", "error"), [(True, MismatchError), (False, PeerLostError)])
def test_a_push_after_a_client_has_departed_fails_at_once(orderly, error):
    """Nobody waits for what cannot come."""
    server = Server()
    assert server.state.gone(m.PeerGone("worker1", "client1.0 is gone", orderly), 0.0) == []
    failure = failures(server.push(0, 1))[leader(0)]
    assert failure.error == error.__name__
    assert "'w'" in failure.text


@pytest.mark.parametrize("returns", [False, True])
def test_news_of_a_run_whose_successor_has_come_is_old(returns):
    """Two links carry them, of which either may be the slower one; that of this run is none."""
    server = Server()
    server.state.begins(leader(1), 2)
    gone = m.PeerGone("worker1", "client1.0 has died", orderly=False, returns=returns, incarnation=1)
    server.push(0, 1)
    assert server.state.gone(gone, 0.0) == []
    assert list(failures(server.state.gone(replace(gone, incarnation=2), 0.0))) == [leader(0)]


def test_a_round_to_which_the_departed_client_has_pushed_is_completed():
    """Whoever finishes first has pushed all its batches; the others may still be under way."""
    server = Server()
    server.push(1, 1, value=False)
    assert server.state.gone(m.PeerGone("worker1", "client1.0 has finished", True), 0.0) == []
    assert summed(server.push(0, 1)) == [(1, [["c0s1@0"], ["c1s1@0"]])]


def test_a_waiting_pull_is_told_of_the_failure_too():
    """A member of a client pulls for itself."""
    server = Server()
    server.push(0, 1, value=False)
    server.pull(0, after=1)
    gone = server.state.gone(m.PeerGone("worker1", "client1.0 is dead", False), 0.0)
    assert list(failures(gone)) == [leader(0)]


@pytest.mark.parametrize(("orderly", "error"), [(True, MismatchError), (False, PeerLostError)])
@pytest.mark.parametrize("before", [True, False])
def test_what_only_rank_0_gives_is_not_waited_for_without_it(orderly, error, before):
    """Initial values and the optimizer: the others go on in async mode, but not without these."""
    server = Server(mode="async")
    gone = m.PeerGone("worker0", "client0.0 is gone", orderly)

    def wait():
        pull = server.pull(1, after=0, key_id=1)
        return pull + server.state.await_optimizer(leader(1), m.AwaitOptimizer(7, 0))

    out = wait() + server.state.gone(gone, 0.0) if before else server.state.gone(gone, 0.0) + wait()
    told = [send.message for send in only(Send, out)]
    assert [(failure.error, failure.request) for failure in told] == [
        (error.__name__, -1),
        (error.__name__, 7),
    ]
    assert all("client0.0" in failure.text for failure in told)


def test_an_optimizer_is_not_waited_for_when_rank_0_has_finished_before_its_client():
    """Values it still has, should this server have lost them; and its client is not missed in rounds."""
    server = Server()
    server.push(1, 1)
    waits = server.pull(1, after=0, key_id=1)
    waits += server.state.await_optimizer(leader(1), m.AwaitOptimizer(7, 0))
    [told] = only(Send, waits + server.state.finished(leader(0)))
    assert (told.peer, told.message.error, told.message.request) == (leader(1), MismatchError.__name__, 7)
    assert "client0.0 has finished without having given an optimizer" in told.message.text
    assert server.pull(1, after=0, key_id=1) == []
    assert len(summed(server.push(0, 1))) == 1


def test_async_rounds_need_nobody_else():
    """Workers finish when they like."""
    server = Server(mode="async", optimizer="hyper")
    assert server.state.gone(m.PeerGone("worker1", "client1.0 is dead", False), 0.0) == []
    assert len(summed(server.push(0, 1))) == 1


def test_the_end_of_a_key_that_is_not_here_is_no_error():
    """A server that was started again may not have it, and is told once more of one that it had dropped."""
    keys = Server().state.keys
    assert [keys.retire(key_id, 0.0) for key_id in (7, 0, 0)] == [[], [0], []]


# --- time ---


def test_a_round_that_waits_long_is_reported_once_and_names_the_missing():
    """People see whom everybody waits for, before anything fails."""
    server = Server(clients=3)
    server.push(1, 1, now=100.0)
    assert server.state.rounds.tick(100.0 + WARN) == []
    (entry,) = server.state.rounds.tick(101.0 + WARN)
    assert isinstance(entry, Log)
    assert entry.level == logging.WARNING
    for part in ("'w'", "client 0, 2", "client 1 has pushed"):
        assert part in entry.text
    assert server.state.rounds.tick(102.0 + WARN) == []


def test_rounds_that_wait_for_the_same_are_one_line_a_minute():
    """A model of ten thousand keys does not fill the log because of one slow client; another is named."""
    server = Server()
    for number in range(1, 1_001):
        server.create(key_id=number, key=f"w{number}")
    for number in range(600):
        server.push(1, 1, key_id=number, now=100.0)
    server.push(0, 1, key_id=1_000, now=100.0)
    first, other = (entry.text for entry in server.state.rounds.tick(101.0 + WARN))
    assert first.startswith("key 'w' and 599 more: round 1 has waited 11 s for the push of client 0;")
    assert other.startswith("key 'w1000': round 1 has waited 11 s for the push of client 1;")
    for number in range(600, 1_000):
        server.push(1, 1, key_id=number, now=120.0)
    assert [server.state.rounds.tick(now + WARN) for now in (102.0, 121.0, 160.9)] == [[], [], []]
    (again, _) = (entry.text for entry in server.state.rounds.tick(161.0 + WARN))
    assert again.startswith("key 'w' and 999 more: round 1 has waited 71 s")
    server.push(0, 1, key_id=0, now=170.0)
    server.push(1, 2, key_id=0, now=171.0)
    (new,) = (entry.text for entry in server.state.rounds.tick(172.0 + WARN))
    assert new.startswith("key 'w': round 2 has waited 11 s")


def test_rounds_that_wait_for_each_other_name_the_key_that_is_left_out():
    """One client has frozen a layer, and both would be blamed in turn: the workers disagree."""
    server = Server()
    server.create(key_id=1, key="v")
    for client in (0, 1):
        server.push(client, 1, key_id=1, now=100.0)
    server.push(0, 1, now=100.0)
    (alone,) = (entry.text for entry in server.state.rounds.tick(101.0 + WARN))
    assert alone.endswith("client 0 has pushed")
    server.push(1, 2, key_id=1, now=101.0)
    crossed = "meanwhile client 1 has pushed round 2 of key 'v', which waits for client 0: all must push"
    (_, behind) = (entry.text for entry in server.state.rounds.tick(162.0 + WARN))
    assert "meanwhile client 0 has pushed round 1 of key 'w', which waits for client 1" in behind
    told = failures(server.state.rounds.tick(101.5 + STEP))
    assert {each.error for each in told.values()} == {MismatchError.__name__}
    assert crossed in told[leader(0)].text


def test_one_slow_client_leaves_no_key_out():
    """Others may be apart by some keys, and all of them wait for it alone."""
    server = Server(clients=3)
    server.create(key_id=1, key="v")
    for client in (0, 1):
        server.push(client, 1, now=100.0)
    server.push(0, 1, key_id=1, now=100.0)
    lines = [entry.text for entry in server.state.rounds.tick(101.0 + WARN)]
    assert len(lines) == 2
    assert not any("meanwhile" in line for line in lines)


def test_a_round_that_waits_too_long_fails_and_names_the_missing():
    """Whoever has pushed hears of it, once."""
    server = Server()
    server.push(1, 1, now=100.0)
    server.state.rounds.tick(50.0 + STEP)
    failure = failures(server.state.rounds.tick(101.0 + STEP))[leader(1)]
    assert failure.error == DeadlineError.__name__
    for part in ("'w'", "client 0", "round 1"):
        assert part in failure.text
    assert server.state.rounds.tick(102.0 + STEP) == []


def test_a_push_that_comes_after_the_round_has_failed_does_no_harm():
    """The late client learns from the others' departure; the server goes on for other keys."""
    server = Server(optimizer="hyper", whole=True)
    server.push(0, 1, slices=[(0, 5), (5, 8)], now=0.0)
    server.push(1, 1, slices=[(0, 5)], now=0.0)
    assert failures(server.state.rounds.tick(STEP + 1))
    assert len(summed(server.push(1, 1, slices=[(5, 8)], now=STEP + 2))) == 1
    server.create(key_id=1, key="v")
    server.push(0, 1, key_id=1)
    assert len(summed(server.push(1, 1, key_id=1))) == 0


# --- restarted clients ---


def test_a_restarted_client_counts_its_pushes_from_the_start():
    """What its old run had pushed in part is dropped, what was whole stays in the value."""
    server = Server(mode="async", optimizer="lr", whole=True)
    server.push(1, 1, slices=((0, 5), (5, 8)))
    server.push(1, 2, slices=((0, 5),))
    server.push(0, 1, slices=((0, 5), (5, 8)))
    assert server.state.begins(leader(1), 1) == []
    assert server.state.begins(leader(1), 1) is None
    unit = server.unit()
    assert (unit.pushed, unit.applied, unit.updates) == ([1, 0], [1, 0], 2)
    assert summed(server.push(1, 1, slices=((0, 5), (5, 8)))) != []
    assert unit.pushed == [1, 1]


def test_a_restarted_client_is_not_answered_what_its_old_run_has_asked():
    """Pulls that wait, and the wish to know of an optimizer, were of the old run."""
    server = Server(mode="async", create=False)
    server.pull(1, 0)
    server.state.await_optimizer(leader(1), m.AwaitOptimizer(1, 0))
    server.state.begins(leader(1), 1)
    assert leader(1) not in dict(answered(server.create()))
    assert server.state.set_optimizer(0, SPEC, "lr", GRADIENTS) == []


def test_a_restarted_rank_0_takes_the_value_instead_of_giving_one():
    """The first initial value counts; the second is answered by what has become of it."""
    server = Server(mode="async", optimizer="lr")
    server.push(1, 1)
    server.state.begins(leader(0), 1)
    out = server.create()
    assert only(Fill, out) == []
    assert answered(out) == [(leader(0), [(0, 0, 5, 0), (0, 5, 8, 0)])]


def test_a_key_that_was_created_in_part_is_created_again():
    """Rank 0 died under way: nobody has seen the value, and the next one is whole."""
    server = Server(mode="async", create=False)
    server.pull(1, 0)
    assert answered(server.create(slices=((0, 5),))) == []
    server.state.begins(leader(0), 1)
    out = server.create()
    assert len(only(Fill, out)) == 2
    assert only(Allocate, out) == []
    assert [peer for peer, _ in answered(out)] == [leader(1)]


def test_what_only_rank_0_gives_is_waited_for_when_it_returns():
    """Initial values and optimizers come from its next run."""
    server = Server(mode="async", create=False)
    server.pull(1, 0)
    assert server.state.gone(m.PeerGone("worker0", "is dead", orderly=False, returns=True), 1.0) == []
    server.state.begins(leader(0), 1)
    assert [peer for peer, _ in answered(server.create())] == [leader(1)]
