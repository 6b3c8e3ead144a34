"""One rank of a job whose tables leave the servers while it trains; run by test_moves.py.

Two workers of one client cannot be in one process here: MXNet's engine has one scratch memory for all of a
process's casts, and one worker's would wait for the other's.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from kvstore_mpi.hybrid import density
from kvstore_mpi.hybrid.density import WINDOW_STEPS

ROWS, WIDTH = 12, 4
STEPS = WINDOW_STEPS + 5
RULES = [("sgd", {"momentum": 0.9, "wd": 0.01}), ("adam", {"epsilon": 1e-4})]


def make_net(name="free_"):
    mx.random.seed(3)
    net = gluon.nn.Sequential(prefix=name)
    with net.name_scope():
        net.add(gluon.nn.Embedding(ROWS, WIDTH, sparse_grad=True))
        net.add(gluon.nn.Dense(3, in_units=2 * WIDTH))
    net.initialize(mx.init.Uniform(0.5))
    return net


def batch(step, rank, touched):
    """Return the ids of one worker's step: ``touched`` different rows, and one of them twice."""
    ids = np.random.default_rng([step, rank]).permutation(ROWS)[:touched]
    return mx.nd.array(np.append(ids, ids[:1]).repeat(2).reshape(-1, 2), dtype="float32")


def backward(net, ids):
    with autograd.record():
        loss = (net(ids) ** 2).sum()
    loss.backward()


def parameters(net):
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def trainer_of(net, store, rule, options):
    optimizer = mx.optimizer.create(rule, learning_rate=0.02, **options)
    return gluon.Trainer(net.collect_params(), optimizer, kvstore=store)


def in_one_process(rule, options, touched):
    """Return the parameters of one process that adds up the gradients of both workers.

    ``touched``: how many rows a worker touches in each step.
    """
    net = make_net()
    trainer = trainer_of(net, None, rule, options)
    for step, count in enumerate(touched):
        backward(net, mx.nd.concat(*(batch(step, rank, count) for rank in range(2)), dim=0))
        trainer.step(20)
    return parameters(net)


def in_the_job(name, rule, options, touched):
    """Train as a worker; return the parameters, the plan of the table, and what has states."""
    store = mx.kv.create("sync-mpi")
    net = make_net(name)
    trainer = trainer_of(net, store, rule, options)
    for step, count in enumerate(touched):
        backward(net, batch(step, store.rank, count))
        trainer.step(20)
    (table,) = (each for each in store.plan().keys if each.key == index_of_table(net))
    return parameters(net), table, set(store._updater.states)


def index_of_table(net):
    """Return the table's number: a Trainer counts parameters in the order of their names."""
    return sorted(net.collect_params()).index(net[0].weight.name)


def check_rule(rule, options):
    """A table of which all is touched leaves the servers, unless the user says no; little, it stays."""
    for name, touched, route, form in [
        ("free_", ROWS, "allreduce", "dense"),
        ("forced_", ROWS, "servers", "rows"),
        ("free_", 2, "servers", "rows"),
        ("gathered_", 2, "allreduce", "rows"),
    ]:
        steps = STEPS * [touched]
        got, table, states = in_the_job(name, rule, options, steps)
        assert (table.route.value, table.form.value) == (route, form), (rule, name, table)
        if route == "servers":
            assert abs(table.alpha_rank - touched / ROWS) < 1e-9, table
            assert touched / ROWS <= table.alpha_job <= min(1, 2 * touched / ROWS), table
        assert states == {0, 1, 2}
        for ours, theirs in zip(got, in_one_process(rule, options, steps)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def check_way_back(rule, options):
    """It comes back when few rows are touched, and goes again; each time with its states."""
    later = density.LATER_STEPS
    density.LATER_STEPS = 8
    all_rows, few = (WINDOW_STEPS + 4) * [ROWS], 14 * [2]
    for touched, route in [
        (all_rows + few, "servers"),
        (all_rows + few + all_rows, "allreduce"),
        (all_rows + few + all_rows + few, "servers"),
    ]:
        got, table, states = in_the_job("free_", rule, options, touched)
        assert table.route.value == route, (rule, len(touched), table)
        assert states == {0, 1, 2}
        for ours, theirs in zip(got, in_one_process(rule, options, touched)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    density.LATER_STEPS = later


def check_exact_updates():
    """A table of which few rows are touched goes, for a step changes all of them; it does not come back."""
    later = density.LATER_STEPS
    density.LATER_STEPS = 8
    options, touched = {"momentum": 0.9, "lazy_update": False}, 3 * WINDOW_STEPS * [2]
    got, table, _ = in_the_job("free_", "sgd", options, touched)
    assert table.route.value == "allreduce", table
    for ours, theirs in zip(got, in_one_process("sgd", options, touched)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    density.LATER_STEPS = later


def check_bits():
    """The move itself, and that back, leave value and states as they were."""
    later = density.LATER_STEPS
    density.LATER_STEPS = 8
    store = mx.kv.create("sync-mpi")
    net = make_net()
    trainer = trainer_of(net, store, "adam", {})
    table = index_of_table(net)
    for step in range(WINDOW_STEPS):
        backward(net, batch(step, store.rank, ROWS))
        trainer.step(20)
    before = [net[0].weight.data().asnumpy(), *(each.asnumpy() for each in store._updater.states[table])]
    for more, route in ((1, "allreduce"), (8, "allreduce"), (2, "servers")):
        for _ in range(more):
            backward(net, batch(0, store.rank, ROWS))
            gradient = net[0].weight.grad()
            # What is pushed has no rows: a lazy rule leaves everything as it is.
            mx.nd.sparse.zeros("row_sparse", gradient.shape).copyto(gradient)
            trainer.step(20)
        states = store._updater.states[table]
        after = [net[0].weight.data().asnumpy(), *(each.asnumpy() for each in states)]
        assert [each.route.value for each in store.plan().keys if each.key == table] == [route]
        for one, other in zip(before, after):
            np.testing.assert_array_equal(one, other)
    density.LATER_STEPS = later


if __name__ == "__main__":
    for rule, options in RULES:
        check_rule(rule, options)
    for rule, options in RULES:
        check_way_back(rule, options)
    check_exact_updates()
    check_bits()
    mx.nd.waitall()
