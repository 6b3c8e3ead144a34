"""Optimizer states that servers saved and that MXNet saved are interchangeable."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from support.optimizer_parties import (  # noqa: E402
    FOREIGN,
    NATIVE,
    Local,
    Servers,
    assert_same,
    optimizer_pair,
    random_weights,
    train,
)

from kvstore_mpi.adapters.mxnet.updates.optimizer_states import (  # noqa: E402
    counts_from_mxnet,
    counts_to_mxnet,
    states_from_mxnet,
    states_to_mxnet,
)
from kvstore_mpi.errors import UsageError  # noqa: E402  after the check for mxnet

pytestmark = pytest.mark.mxnet

SHAPES = {0: (5, 4), 1: (7,)}
ONE_KEY = {0: (5, 4)}
STATEFUL = [
    *itertools.product(NATIVE, ["float32"]),
    *itertools.product(
        [case for case in FOREIGN if case[0] != "test"], ["float32"]
    ),  # which does not count
    (("sgd", {"multi_precision": True}), "float16"),
    (("sgd", {"momentum": 0.9, "multi_precision": True}), "float16"),
    (("nag", {"momentum": 0.9, "multi_precision": True}), "float16"),
    (("adam", {"multi_precision": True}), "float16"),
    (("rmsprop", {"multi_precision": True, "centered": True}), "float16"),
    (("lamb", {"multi_precision": True}), "float16"),
    (("lars", {"momentum": 0.9, "multi_precision": True}), "float16"),
]
"""An even number of steps leaves LBSGD without an unfinished large batch, which no state would hold."""


def tolerance(dtype):
    return {"rtol": 2**-10, "atol": 1e-6} if dtype == "float16" else {"rtol": 2e-6, "atol": 1e-6}


@pytest.mark.parametrize(("case", "dtype"), STATEFUL)
def test_mxnet_continues_from_states_saved_by_servers(case, dtype):
    """A file in MXNet's form, with the optimizer in it, lets a local Updater go on as the servers do."""
    ours, theirs = optimizer_pair(case[0], case[1])
    weights = random_weights(dtype, ONE_KEY)
    servers = Servers(ours, weights)
    train([servers], weights, steps=6)
    exported = servers.export()
    counts_to_mxnet(ours, {key: state.count for key, state in exported.items()})
    file = pickle.dumps((states_to_mxnet(ours, exported), ours))

    local = Local(theirs, {0: servers.value(0)})
    local.updater.set_states(file)
    assert local.updater.optimizer.num_update == 6
    train([servers, local], weights, steps=6, seed=3)
    assert_same(servers, local, weights, **tolerance(dtype))


@pytest.mark.parametrize(("case", "dtype"), STATEFUL)
def test_servers_continue_from_states_saved_by_mxnet(case, dtype):
    """A file that a local Updater wrote lets the servers go on as it does."""
    theirs = mx.optimizer.create(case[0], **case[1])
    weights = random_weights(dtype, ONE_KEY)
    local = Local(theirs, weights)
    train([local], weights, steps=6)
    states, optimizer = pickle.loads(local.updater.get_states(dump_optimizer=True))

    servers = Servers(optimizer, {0: local.value(0)})
    servers.load(states_from_mxnet(optimizer, states, {0: (SHAPES[0], dtype)}))
    assert servers.counts == {0: 6}
    train([servers, local], weights, steps=6, seed=3)
    assert_same(servers, local, weights, **tolerance(dtype))


@pytest.mark.parametrize(("case", "dtype"), STATEFUL)
def test_saved_states_have_exactly_mxnets_form(case, dtype):
    """Nesting, types, shapes and dtypes are those of the states that an Updater makes."""
    ours, theirs = optimizer_pair(case[0], case[1])
    weights = random_weights(dtype, SHAPES)
    servers, local = Servers(ours, weights), Local(theirs, weights)
    train([servers, local], weights, steps=1)

    def form(state):
        if isinstance(state, (tuple, list)):
            return type(state), [form(part) for part in state]
        return type(state), getattr(state, "shape", None), getattr(state, "dtype", None)

    saved = states_to_mxnet(ours, servers.export())
    assert {k: form(s) for k, s in saved.items()} == {k: form(s) for k, s in local.updater.states.items()}


def test_a_local_trainer_loads_what_servers_saved(tmp_path):
    """gluon's own load_states reads the file, and the next step equals the servers'."""
    net = mx.gluon.nn.Dense(3, in_units=4, use_bias=False)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1}, kvstore=None)
    optimizer = mx.optimizer.create("adam", learning_rate=0.1)
    weights = {0: net.weight.data().asnumpy()}
    servers = Servers(optimizer, weights)
    train([servers], weights, steps=3)
    counts_to_mxnet(optimizer, servers.counts)
    path = tmp_path / "states"
    path.write_bytes(pickle.dumps((states_to_mxnet(optimizer, servers.export()), optimizer)))

    net.weight.set_data(mx.nd.array(servers.value(0)))
    trainer.load_states(str(path))
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 4))).sum()
    loss.backward()
    trainer.step(1)
    servers.push(0, np.ones((3, 4), "float32"))
    np.testing.assert_allclose(servers.value(0), net.weight.data().asnumpy(), **tolerance("float32"))


def test_states_that_module_saved_by_number_are_found_by_name():
    """Module's own updater numbers parameters; the stores use their names."""
    optimizer = mx.optimizer.create("sgd", momentum=0.9, param_idx2name={0: "fc_weight", 1: "fc_bias"})
    states = {0: mx.nd.ones((2, 2)), 1: mx.nd.zeros(2)}
    found = states_from_mxnet(
        optimizer, states, {"fc_weight": ((2, 2), "float32"), "other": ((1,), "float32")}
    )
    assert list(found) == ["fc_weight"]
    np.testing.assert_array_equal(found["fc_weight"].arrays[0], np.ones(4))


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"w": mx.nd.ones(3)}, r"state of key 'w' does not fit SGD on \(4,\) float32"),
        ({"w": None}, "state of key 'w' does not fit"),
        ({"other": mx.nd.ones(4)}, "other keys, such as 'other'.*such as 'w'"),
    ],
)
def test_states_of_another_model_are_refused(states, message):
    """Wrong sizes, missing arrays and foreign keys are errors that name the key."""
    optimizer = mx.optimizer.create("sgd", momentum=0.9)
    with pytest.raises(UsageError, match=message):
        states_from_mxnet(optimizer, states, {"w": ((4,), "float32")})


def test_states_without_a_master_do_not_load_under_multi_precision():
    """A file that was saved without multi_precision is recognised."""
    optimizer = mx.optimizer.create("sgd", momentum=0.9, multi_precision=True)
    with pytest.raises(UsageError, match="multi_precision=True"):
        states_from_mxnet(optimizer, {"w": mx.nd.ones(4)}, {"w": ((4,), "float16")})


def test_counts_are_those_of_the_busiest_device():
    """Counts leave out begin_num_update, and go back into every device's table."""
    optimizer = mx.optimizer.create("sgd", begin_num_update=10)
    optimizer._set_current_context(1)
    optimizer._update_count([0, 0, 1])
    assert counts_from_mxnet(optimizer) == {0: 2, 1: 1}
    counts_to_mxnet(optimizer, {0: 5})
    assert optimizer._all_index_update_counts == {0: {0: 15}, 1: {0: 15, 1: 11}}
    assert optimizer.num_update == 15
