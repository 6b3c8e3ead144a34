"""Rounds on a server: who is waited for, what is updated, who is answered."""

from __future__ import annotations

import pytest
from support.one_server import (
    GRADIENTS,
    SPEC,
    WHOLE,
    Server,
    answered,
    failures,
    leader,
    only,
    summed,
)

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import KeySpec, Slice
from kvstore_mpi.server.records import Allocate, Answer, Fill, Update
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

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


def test_async_keys_are_scheduled_by_the_one_that_was_updated_most():
    """By what a state that is loaded has counted, too; a new rule has a schedule of its own."""
    server = Server(mode="async", optimizer="hyper")
    server.create(1, "v")

    def pushed(sequence, key_id):
        (update,) = only(Update, server.push(0, sequence, key_id=key_id))
        return update.number, update.scheduled

    assert [pushed(sequence, 0) for sequence in (1, 2)] == [(1, 1), (2, 2)]
    assert [pushed(sequence, 1) for sequence in (1, 2, 3)] == [(1, 2), (2, 2), (3, 3)]
    server.unit().count_from(7)
    assert pushed(4, 1) == (4, 7)
    server.state.set_optimizer(0, SPEC, "others", GRADIENTS)
    assert [pushed(3, 0), pushed(5, 1)] == [(1, 1), (1, 1)]


def test_rounds_are_scheduled_by_their_own_key():
    """Rank 0 says by how much it is behind."""
    server = Server(clients=1, optimizer="hyper")
    server.create(1, "v")
    for sequence in (1, 2):
        server.push(0, sequence)
    (update,) = only(Update, server.push(0, 1, key_id=1))
    assert (update.number, update.scheduled) == (1, 1)


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


def test_who_awaits_the_next_optimizer_is_not_told_of_the_one_before():
    """Of those of rank 0 it is the same number as of its own; if it is refused, the former one counts."""
    server, other = Server(mode="async"), {"name": "other"}
    wait = server.state.await_optimizer
    assert server.state.set_optimizer(0, SPEC, "hyper", GRADIENTS) == []
    assert wait(leader(1), m.AwaitOptimizer(7, 0, 2)) == []
    assert wait(leader(1), m.AwaitOptimizer(8, 0, 3)) == []
    assert wait(leader(1), m.AwaitOptimizer(9, 0, 1)) == [Send(leader(1), m.Ok(9, SPEC))]
    assert server.state.set_optimizer(0, other, "hyper", GRADIENTS, 2) == [Send(leader(1), m.Ok(7, other))]
    assert server.state.refuse_optimizer(0, 3) == [Send(leader(1), m.Ok(8, other))]
    assert wait(leader(1), m.AwaitOptimizer(10, 0, 3)) == [Send(leader(1), m.Ok(10, other))]
    assert server.state.refuse_optimizer(1, 1) == []
    # A rank 0 that was started again counts from 1.
    assert server.state.set_optimizer(0, SPEC, "hyper", GRADIENTS, 1) == []
    assert wait(leader(1), m.AwaitOptimizer(11, 0, 3)) == [Send(leader(1), m.Ok(11, SPEC))]


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


def test_a_part_of_a_tensor_is_refused_where_its_optimizer_has_overtaken_it():
    """The key is placed without it, and is not here yet when it comes."""
    server = Server(servers=2, optimizer="hyper", whole=True, create=False)
    half = m.Create(KeySpec(0, "w", (8,), "float32"), "async", 0, (0, 4), [(0, 4)])
    with pytest.raises(UsageError, match=r"'w' was initialised before set_optimizer and is spread over"):
        server.state.create(leader(0), half, [b""])
    assert server.state.keys.get(0) is None
