"""The MXNet store over fake workers: a pull after a push of the same key finds the value arriving."""

from __future__ import annotations

import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters import in_place  # noqa: E402
from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.errors import PeerLostError  # noqa: E402
from kvstore_mpi.esgd import DCASGD, Elastic, StalenessAware  # noqa: E402

pytestmark = pytest.mark.mxnet
MODES = pytest.mark.parametrize("mode", ["sync", "async"])


def open_store(group, mode="sync", rank=0):
    """Open a store with a key, of which every push is subtracted if the mode needs an optimizer."""
    kv = KVStoreMPI(mode, group.workers[rank])
    if mode == "async":
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    kv.init("w", mx.nd.zeros((3,)))
    return kv


def push(kv, value):
    kv.push("w", mx.nd.full((3,), value))


def pull(kv):
    out = mx.nd.full((3,), 99)
    kv.pull("w", out=out)
    return out


def push_pull(group, kv, value):
    """Push and pull, while the network is too slow for the push to be over between the two."""
    group.hold(lambda call: call.name == "push")
    push(kv, value)
    out = pull(kv)
    group.release()
    return out


def first(array):
    assert len(set(array.asnumpy())) == 1
    return array.asnumpy()[0]


def count(group, name):
    return sum(call.name == name for call in group.calls)


def gives(group):
    """Return of each push whether it brings the value."""
    return [call.gives for call in group.calls if call.name == "push"]


@MODES
def test_a_loop_of_push_and_pull_asks_once(make_group, mode):
    """From the second time on the value comes with the push."""
    group = make_group(num_servers=1)
    kv = open_store(group, mode)
    outs = [push_pull(group, kv, 1 + step) for step in range(4)]
    expected = [1, 2, 3, 4] if mode == "sync" else [-1, -3, -6, -10]
    assert [first(out) for out in outs] == expected
    assert gives(group) == [False, True, True, True]
    assert count(group, "pull") == 1


@MODES
def test_a_pull_that_is_served_queues_nothing_but_copies(make_group, monkeypatch, mode):
    """To look, in an operation of its own, would take as long as a small key's whole way."""
    group = make_group(num_servers=1)
    kv = open_store(group, mode)
    push_pull(group, kv, 1)
    settle(kv)
    queued = []
    push_async = engine.push_async
    monkeypatch.setattr(engine, "push_async", lambda *a, **kw: (queued.append(1), push_async(*a, **kw)))
    out = push_pull(group, kv, 2)
    assert len(queued) == 1
    assert first(out) == (2 if mode == "sync" else -3)


@MODES
def test_pushes_that_nobody_pulls_bring_no_value(make_group, mode):
    """But for one, when the program stops to pull."""
    group = make_group(num_servers=1)
    kv = open_store(group, mode)
    push_pull(group, kv, 1)
    for _ in range(4):
        push(kv, 1)
    kv.barrier()
    assert gives(group) == [False, True, False, False, False]
    assert count(group, "pull") == 1


def test_later_pulls_of_a_round_are_of_its_value(make_group):
    """In a synchronous store no other round is closed without this worker's push."""
    group = make_group(num_servers=1)
    kv = open_store(group)
    push_pull(group, kv, 1)
    push(kv, 2)
    kv.barrier()
    outs = [pull(kv), pull(kv)]
    push(kv, 3)
    outs.append(pull(kv))
    assert [first(out) for out in outs] == [2, 2, 3]
    assert count(group, "pull") == 1


def test_a_later_pull_sees_what_others_have_pushed(make_group):
    """Of an asynchronous store, although a value came with the worker's own push before."""
    group = make_group(2, num_servers=1)
    kv, other = open_two(group)
    push_pull(group, kv, 1)
    push(kv, 1)
    settle(kv)
    assert gives(group)[-1]
    push(other, 10)
    settle(other)
    assert first(pull(kv)) == -12
    push(kv, 1)
    push(kv, 1)
    settle(kv)
    assert gives(group)[-2:] == [False, False]


def settle(kv):
    """Wait for the operations of one worker; at a barrier it would wait for the other one."""
    kv._exchange.drain()


def open_two(group):
    """Open the asynchronous stores of two workers."""
    stores = []
    for worker in group.workers:
        kv = KVStoreMPI("async", worker)
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        stores.append(kv)
    for kv in stores:  # the first one waits for nobody: its own value is there
        kv.init("w", mx.nd.zeros((3,)))
    return stores


def test_a_pull_after_pushpull_asks(make_group):
    """The value in the store's array is not that of the push before."""
    group = make_group(num_servers=1)
    kv = open_store(group)
    push_pull(group, kv, 1)
    push(kv, 2)
    kv.pushpull("w", mx.nd.full((3,), 5), out=mx.nd.zeros((3,)))
    assert first(pull(kv)) == 5
    assert count(group, "pull") == 2


def test_what_has_not_come_is_asked_for(make_group):
    """A rank that is not the first of its client depends on what that one wants."""
    group = make_group(num_servers=1)
    group.workers[0].mpi_rank = 1
    kv = open_store(group)
    outs = [push_pull(group, kv, step) for step in range(3)]
    assert [first(out) for out in outs] == [0, 1, 2]
    assert count(group, "pull") == 3


def test_a_rank_takes_what_its_client_gets(make_group, monkeypatch):
    """It looks when the push is over, and then need not ask."""
    group = make_group(num_servers=1)
    worker = group.workers[0]
    given = worker.push
    monkeypatch.setattr(worker, "push", lambda *args: as_first_rank(worker, given, args))
    worker.mpi_rank = 1
    kv = open_store(group)
    outs = [push_pull(group, kv, step) for step in range(3)]
    assert [first(out) for out in outs] == [0, 1, 2]
    assert count(group, "pull") == 0


def as_first_rank(worker, push_of_worker, args):
    worker.mpi_rank = 0
    push_of_worker(*args)
    worker.mpi_rank = 1


@MODES
def test_a_value_that_failed_is_taken_for_none(make_group, mode):
    """The array that was to get it has the error, and keeps what it had."""
    group = make_group(num_servers=1)
    kv = open_store(group, mode)
    push_pull(group, kv, 1)
    settle(kv)
    group.fail(lambda call: call.name == "push", PeerLostError("worker 1 on node7 has died"))
    out = push_pull(group, kv, 2)
    with pytest.raises(PeerLostError, match="node7"):
        out.wait_to_read()
    with pytest.raises(PeerLostError, match="node7"):
        kv.pull("w", out=out)


@pytest.mark.parametrize(
    ("mode", "make"),
    [
        ("sync", Elastic),
        ("async", lambda: DCASGD(learning_rate=1.0)),
        ("async", lambda: StalenessAware("sgd", learning_rate=1.0)),
    ],
)
def test_rules_that_look_at_what_workers_have_seen_send_no_value_unasked(make_group, mode, make):
    """To them a value that came and was not used would be one that the worker has computed with."""
    group = make_group(num_servers=1)
    kv = KVStoreMPI(mode, group.workers[0])
    kv.set_optimizer(make())
    kv.init("w", mx.nd.zeros((3,)))
    for step in range(3):
        push_pull(group, kv, step).wait_to_read()
    assert not any(gives(group))
    assert count(group, "pull") == 3


def test_a_rule_for_parameters_asks_for_what_came_before_it(make_group):
    """All ranks of a client then pull together, whatever each has."""
    group = make_group(num_servers=1)
    kv = open_store(group)
    push_pull(group, kv, 1)
    push(kv, 2)
    kv.barrier()
    kv.set_optimizer(Elastic())
    assert first(pull(kv)) == 2
    assert count(group, "pull") == 2


def test_the_gradient_is_free_when_it_is_copied(make_group, monkeypatch):
    """Also of a push that brings the value: nothing is sent from where it lies."""
    monkeypatch.setattr(in_place, "SENT_IN_PLACE_BYTES", 1)
    group = make_group(num_servers=1)
    kv = open_store(group)
    push_pull(group, kv, 1)
    settle(kv)
    gradient = mx.nd.full((3,), 2)
    group.hold(lambda call: call.name == "push")
    kv.push("w", gradient)
    out = pull(kv)
    gradient[:] = 7
    gradient.wait_to_read()  # would wait for the answer
    group.release()
    assert first(out) == 2
    assert gives(group)[-1]
