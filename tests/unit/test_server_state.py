"""Rounds on a server: who is waited for, what is updated, who is answered."""

from __future__ import annotations

import logging

import pytest

from kvstore_mpi.errors import DeadlineError, MismatchError, PeerLostError, UsageError
from kvstore_mpi.records import NodeId, Role, Slice, StoreTerms, Topology
from kvstore_mpi.server.records import Allocate, Answer, Fill, Update
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send

WARN, STEP = 10.0, 600.0
SPEC = {"name": "sgd"}
GRADIENTS, WHOLE = StoreTerms(), StoreTerms(whole=True)


def leader(client):
    """One worker in each client."""
    return NodeId(Role.WORKER, client)


class Payload(str):
    """The bytes of a run of slices; those of a slice in it say where in it they are."""

    __slots__ = ()

    def __getitem__(self, part):
        return self if part.start == 0 else Payload(f"{self}+{part.start // 4}")


class Server:
    """A server with one key of two slices, [0, 5) and [5, 8), unless told otherwise."""

    def __init__(self, clients=2, *, mode="sync", servers=1, create=True, optimizer=None, whole=False):
        topology = Topology(clients, clients, servers)
        self.state = ServerState(topology, slice_elements=5, warn_after=WARN, step_timeout=STEP)
        self.mode = mode
        if optimizer is not None:
            self.state.set_optimizer(0, SPEC, optimizer, StoreTerms(whole=whole))
        if create:
            self.create()

    def create(self, key_id=0, key="w", slices=((0, 5), (5, 8))):
        message = m.Create(0, self.mode, key, key_id, (8,), "float32", (0, 8), list(slices))
        return self.state.create(leader(0), message, [Payload(f"initial@{lo}") for lo, _ in slices])

    def push(self, client, sequence, *, slices=((0, 5),), value=True, now=0.0, key_id=0):
        entries = [(key_id, lo, hi, sequence, value) for lo, hi in slices]
        payloads = [Payload(f"c{client}s{sequence}@{lo}") for lo, _ in slices]
        return self.state.push(leader(client), m.Push(entries, shared=False), payloads, now)

    def pull(self, client, after, lo=0, hi=5, key_id=0):
        return self.state.pull(leader(client), m.Pull([(key_id, lo, hi, after)]))

    def unit(self, lo=0):
        unit = self.state.keys.unit(0, lo)
        assert unit is not None
        return unit


def only(kind, instructions):
    return [i for i in instructions if isinstance(i, kind)]


def failures(instructions):
    return {i.peer: i.message for i in only(Send, instructions) if isinstance(i.message, m.Failure)}


def answered(instructions):
    """Return who is answered what, each peer's in order."""
    entries = {}
    for answer in only(Answer, instructions):
        entries.setdefault(answer.peer, []).append(answer.entry)
    return list(entries.items())


def summed(instructions):
    """Return for each update its number and what it sums, in order."""
    return [
        (update.number, [list(c.payloads.values()) for c in update.contributions])
        for update in only(Update, instructions)
    ]


# --- keys ---


def test_a_key_is_allocated_once_and_filled_slice_by_slice():
    """A large shard takes several messages, each of which is acknowledged when it is carried out."""
    server = Server(create=False)
    first = server.create(slices=[(0, 5)])
    assert [type(i) for i in first] == [Allocate, Fill, Send]
    assert first[1] == Fill(Slice(0, 0, 5), "initial@0")
    assert first[2] == Send(leader(0), m.Applied([(0, 0, 5, 0)]))
    assert [type(i) for i in server.create(slices=[(5, 8)])] == [Fill, Send]


def test_a_pull_that_comes_before_the_key_is_answered_when_it_is_there():
    """Workers learn of a key from the scheduler, so their pull may overtake rank 0's values."""
    server = Server(create=False)
    assert server.pull(1, after=0) == []
    assert server.pull(1, after=0, lo=5, hi=8) == []
    assert answered(server.create(slices=[(0, 5)])) == []
    out = server.create(slices=[(5, 8)])
    assert answered(out) == [(leader(1), [(0, 0, 5, 0), (0, 5, 8, 0)])]


# --- sync rounds ---


def test_a_round_waits_for_every_client_and_answers_all():
    """The new value goes out with the last push, without anybody asking."""
    server = Server()
    assert server.push(1, 1) == []
    out = server.push(0, 1)
    assert summed(out) == [(1, [["c0s1@0"], ["c1s1@0"]])]
    assert sorted(answered(out)) == [(leader(0), [(0, 0, 5, 1)]), (leader(1), [(0, 0, 5, 1)])]
    assert isinstance(out[0], Update)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_contributions_are_summed_in_the_order_of_clients(order):
    """Whoever comes first: runs are bit-identical."""
    server = Server(clients=3)
    out = [i for client in order for i in server.push(client, 1)]
    assert summed(out) == [(1, [["c0s1@0"], ["c1s1@0"], ["c2s1@0"]])]


def test_slices_have_rounds_of_their_own():
    """An element-wise optimizer does not wait for the rest of the key."""
    server = Server()
    server.push(0, 1, slices=[(0, 5), (5, 8)])
    assert summed(server.push(1, 1, slices=[(5, 8)])) == [(1, [["c0s1@5"], ["c1s1@5"]])]
    assert server.unit(0).updates == 0


def test_neighbouring_slices_travel_as_one_run():
    """They are summed one by one, and answered one by one, for what is urgent may come between them."""
    server = Server()
    server.push(0, 1, slices=[(0, 5)])
    out = server.push(1, 1, slices=[(0, 8)])
    assert summed(out) == [(1, [["c0s1@0"], ["c1s1@0"]])]
    out = server.push(0, 1, slices=[(5, 8)])
    assert summed(out) == [(1, [["c0s1@5"], ["c1s1@0+5"]])]
    server.push(0, 2, slices=[(0, 8)])
    out = server.push(1, 2, slices=[(0, 8)])
    assert len(summed(out)) == 2
    both = [(0, 0, 5, 2), (0, 5, 8, 2)]
    assert answered(out) == [(leader(0), both), (leader(1), both)]


def test_who_wants_no_value_is_told_that_the_push_is_applied():
    """A push is over when it counts, not when it has arrived."""
    server = Server()
    assert server.push(0, 1, value=False) == []
    out = server.push(1, 1)
    assert answered(out) == [(leader(1), [(0, 0, 5, 1)])]
    assert only(Send, out) == [Send(leader(0), m.Applied([(0, 0, 5, 1)]))]


def test_a_repeated_push_counts_once():
    """At most once per client and sequence, whatever the network or the client repeats."""
    server = Server()
    server.push(0, 1)
    assert server.push(0, 1) == []
    out = server.push(1, 1)
    assert summed(out) == [(1, [["c0s1@0"], ["c1s1@0"]])]
    assert server.push(0, 1) == []
    assert server.push(1, 1) == []
    assert server.unit().updates == 1


def test_values_in_sync_mode_are_stable():
    """The next update needs the peer's next push, which comes after it has the value: no copy needed."""
    server = Server(clients=1)
    (answer,) = only(Answer, server.push(0, 1))
    assert answer.stable
    (answer,) = only(Answer, server.pull(0, after=1))
    assert not answer.stable


# --- pulls ---


def test_a_pull_waits_for_the_pushes_of_its_own_client():
    """A worker reads its own writes."""
    server = Server()
    server.push(0, 1, value=False)
    assert server.pull(0, after=1) == []
    assert answered(server.pull(1, after=0)) == [(leader(1), [(0, 0, 5, 0)])]
    out = server.push(1, 1, value=False)
    assert answered(out) == [(leader(0), [(0, 0, 5, 1)])]
    assert answered(server.pull(1, after=1)) == [(leader(1), [(0, 0, 5, 1)])]


# --- async ---


def test_async_pushes_are_applied_one_by_one():
    """No client waits for another; the value may change while it travels."""
    server = Server(mode="async", optimizer="hyper")
    out = server.push(1, 1)
    assert summed(out) == [(1, [["c1s1@0"]])]
    assert answered(out) == [(leader(1), [(0, 0, 5, 1)])]
    assert not only(Answer, out)[0].stable
    assert summed(server.push(1, 2)) == [(2, [["c1s2@0"]])]
    assert summed(server.push(0, 1)) == [(3, [["c0s1@0"]])]
    assert server.push(1, 2) == []


def test_async_without_an_optimizer_is_refused():
    """The message names the key and what to do."""
    failure = failures(Server(mode="async").push(0, 1))[leader(0)]
    assert failure.error == UsageError.__name__
    assert (failure.store, failure.key) == (0, "w")
    assert "'w'" in failure.text
    assert "set_optimizer" in failure.text


# --- whole tensors ---


def test_whole_tensors_are_updated_when_all_slices_are_there():
    """Slices travel one by one; all are answered after the one update."""
    server = Server(optimizer="hyper", whole=True)
    assert server.push(0, 1, slices=[(5, 8)]) == []
    assert server.push(1, 1, slices=[(0, 5), (5, 8)]) == []
    out = server.push(0, 1)
    (update,) = only(Update, out)
    assert [c.payloads for c in update.contributions] == [
        {1: "c0s1@5", 0: "c0s1@0"},
        {0: "c1s1@0", 1: "c1s1@5"},
    ]
    assert {peer: sorted(entries) for peer, entries in answered(out)} == {
        leader(0): [(0, 0, 5, 1), (0, 5, 8, 1)],
        leader(1): [(0, 0, 5, 1), (0, 5, 8, 1)],
    }


def test_a_repeated_slice_of_a_whole_tensor_counts_once():
    """While the rest of the tensor is still under way, as well as after it."""
    server = Server(clients=1, optimizer="hyper", whole=True)
    assert server.push(0, 1) == []
    assert server.push(0, 1) == []
    out = server.push(0, 1, slices=[(5, 8)])
    assert summed(out) == [(1, [["c0s1@0", "c0s1@5"]])]
    assert answered(out) == [(leader(0), [(0, 0, 5, 1), (0, 5, 8, 1)])]


# --- optimizers ---


def test_an_optimizer_may_come_before_the_first_key():
    """Module and Trainer set it before they initialise the keys."""
    server = Server(mode="async", optimizer="hyper")
    assert only(Update, server.push(0, 1))[0].hyper == "hyper"


def test_hyper_parameters_hold_for_the_pushes_that_follow():
    """In a sync round client 0, which rank 0 belongs to, decides."""
    server = Server(optimizer="old")
    server.push(1, 1)
    server.push(0, 1, slices=[(5, 8)])
    server.state.keys.set_hyper(0, "new")
    assert only(Update, server.push(0, 1))[0].hyper == "new"
    assert only(Update, server.push(1, 1, slices=[(5, 8)]))[0].hyper == "old"


def test_who_awaits_the_optimizer_is_told_when_it_is_there():
    """Async workers must not push before rank 0 has said how to update."""
    server = Server(mode="async")
    assert server.state.await_optimizer(leader(1), m.AwaitOptimizer(7, 0)) == []
    assert server.state.await_optimizer(leader(0), m.AwaitOptimizer(8, 1)) == []
    assert server.state.set_optimizer(0, SPEC, "hyper", GRADIENTS) == [Send(leader(1), m.Ok(7, SPEC))]
    assert server.state.await_optimizer(leader(1), m.AwaitOptimizer(9, 0)) == [
        Send(leader(1), m.Ok(9, SPEC))
    ]
    assert server.state.set_optimizer(1, SPEC, "hyper", GRADIENTS) == [Send(leader(0), m.Ok(8, SPEC))]


def test_a_new_optimizer_counts_updates_anew():
    """Adam's t and schedules start over with their states."""
    server = Server(clients=1, optimizer="one")
    server.push(0, 1)
    server.state.keys.check_optimizer(0, GRADIENTS)
    server.state.set_optimizer(0, SPEC, "two", GRADIENTS)
    assert summed(server.push(0, 2)) == [(1, [["c0s2@0"]])]


def test_the_optimizer_may_come_while_others_have_pushed_already():
    """Other clients are free to run ahead of rank 0; the round is updated with the new optimizer."""
    server = Server()
    server.push(1, 1)
    server.state.keys.check_optimizer(0, GRADIENTS)
    server.state.set_optimizer(0, SPEC, "hyper", GRADIENTS)
    assert only(Update, server.push(0, 1))[0].hyper == "hyper"


def test_rank_0_must_wait_for_its_own_push_before_it_sets_an_optimizer():
    """Otherwise it would be undefined what the push meets."""
    server = Server()
    server.push(0, 1)
    with pytest.raises(UsageError, match="'w'"):
        server.state.keys.check_optimizer(0, GRADIENTS)


def test_a_change_to_whole_tensors_waits_for_all_pushes():
    """The slices are grouped anew, and a push of half of them would be lost."""
    server = Server()
    server.push(1, 1)
    with pytest.raises(UsageError, match="under way"):
        server.state.keys.check_optimizer(0, WHOLE)


def test_slices_are_grouped_anew_for_a_whole_tensor_optimizer():
    """With one server the key is in one place already; sequences go on."""
    server = Server(clients=1)
    server.push(0, 1, slices=[(0, 5), (5, 8)])
    server.state.keys.check_optimizer(0, WHOLE)
    server.state.set_optimizer(0, SPEC, "hyper", WHOLE)
    assert server.unit(0) is server.unit(5)
    assert server.push(0, 1) == []
    assert server.push(0, 2) == []
    assert summed(server.push(0, 2, slices=[(5, 8)])) == [(1, [["c0s2@0", "c0s2@5"]])]


def test_whole_tensors_need_their_optimizer_before_the_keys_are_spread():
    """With several servers it is too late afterwards, and the message says so."""
    with pytest.raises(UsageError, match=r"'w'.*call set_optimizer first"):
        Server(servers=2).state.keys.check_optimizer(0, WHOLE)


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


@pytest.mark.parametrize(("orderly", "error"), [(True, MismatchError), (False, PeerLostError)])
def test_a_push_after_a_client_has_departed_fails_at_once(orderly, error):
    """Nobody waits for what cannot come."""
    server = Server()
    assert server.state.gone(m.PeerGone("worker1", "client1.0 is gone", orderly), 0.0) == []
    failure = failures(server.push(0, 1))[leader(0)]
    assert failure.error == error.__name__
    assert "'w'" in failure.text


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


def test_async_rounds_need_nobody_else():
    """Workers finish when they like."""
    server = Server(mode="async", optimizer="hyper")
    assert server.state.gone(m.PeerGone("worker1", "client1.0 is dead", False), 0.0) == []
    assert len(summed(server.push(0, 1))) == 1


# --- time ---


def test_a_round_that_waits_long_is_reported_once_and_names_the_missing():
    """People see whom everybody waits for, before anything fails."""
    server = Server(clients=3)
    server.push(1, 1, now=100.0)
    assert server.state.tick(100.0 + WARN) == []
    (entry,) = server.state.tick(101.0 + WARN)
    assert isinstance(entry, Log)
    assert entry.level == logging.WARNING
    for part in ("'w'", "client 0, 2", "client 1 has pushed"):
        assert part in entry.text
    assert server.state.tick(102.0 + WARN) == []


def test_a_round_that_waits_too_long_fails_and_names_the_missing():
    """Whoever has pushed hears of it, once."""
    server = Server()
    server.push(1, 1, now=100.0)
    server.state.tick(50.0 + STEP)
    failure = failures(server.state.tick(101.0 + STEP))[leader(1)]
    assert failure.error == DeadlineError.__name__
    for part in ("'w'", "client 0", "round 1"):
        assert part in failure.text
    assert server.state.tick(102.0 + STEP) == []


def test_a_push_that_comes_after_the_round_has_failed_does_no_harm():
    """The late client learns from the others' departure; the server goes on for other keys."""
    server = Server(optimizer="hyper", whole=True)
    server.push(0, 1, slices=[(0, 5), (5, 8)], now=0.0)
    server.push(1, 1, slices=[(0, 5)], now=0.0)
    assert failures(server.state.tick(STEP + 1))
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
