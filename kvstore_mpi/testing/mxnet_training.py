"""What training over the MXNet store must come to: the same as in one process with the same global batch.

The checks have the form of those in ``mxnet_contract.py`` and hold over any worker. The reference is one
process that adds up the gradients of all workers' shares before each step.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.base import _LIB, check_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvstore_mpi.adapters.mxnet import KVStoreMPI
    from kvstore_mpi.testing.adapter_contract import Turn
    from kvstore_mpi.testing.mxnet_contract import Check, OpenStore

STEPS = 6
SHARE = 4
"""Samples per device and step."""

TOLERANCE = 1e-5
"""Of sums that were formed in another order, relative to them."""


class Case(NamedTuple):
    """One way to train.

    Attributes:
        net: ``mlp``, ``cnn`` or ``embedding``.
        optimizer: Registered name.
        options: For the optimizer.
        on_kvstore: The Trainer's ``update_on_kvstore``.
        devices: Devices per worker.
    """

    net: str
    optimizer: str
    options: dict[str, Any]
    on_kvstore: bool | None = None
    devices: int = 1


_MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
_ADAM = {"learning_rate": 0.01}

CASES = {
    "momentum_on_the_store": Case("mlp", "sgd", _MOMENTUM, on_kvstore=True),
    "momentum_on_the_worker": Case("mlp", "sgd", _MOMENTUM, on_kvstore=False),
    "adam_on_the_store": Case("mlp", "adam", _ADAM, on_kvstore=True),
    "adam_on_the_worker": Case("mlp", "adam", _ADAM, on_kvstore=False),
    "convolutions": Case("cnn", "sgd", _MOMENTUM),
    "convolutions_with_adam": Case("cnn", "adam", _ADAM),
    "several_devices": Case("mlp", "sgd", _MOMENTUM, devices=2),
    "sparse_gradients": Case("embedding", "sgd", {"learning_rate": 0.1}),
}
"""All valid in sync mode, with servers and without."""


def make_net(case: Case) -> Any:
    """Make the same network, with the same weights, every time."""
    mx.random.seed(11)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        if case.net == "cnn":
            net.add(gluon.nn.Conv2D(64, 3, padding=1, in_channels=16, activation="relu"))
            net.add(gluon.nn.Conv2D(64, 3, padding=1, in_channels=64, activation="relu"))
            net.add(gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(5, in_units=64))
        elif case.net == "embedding":
            net.add(gluon.nn.Embedding(20, 6, sparse_grad=True), gluon.nn.Dense(5, in_units=6))
        else:
            net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(5, in_units=16))
    net.initialize(mx.init.Xavier(), ctx=[mx.cpu(index) for index in range(case.devices)])
    net[-1].bias.lr_mult = 0.5
    net[0].weight.wd_mult = 3.0
    return net


def share(case: Case, step: int, index: int) -> tuple[Any, Any]:
    """Return the samples and labels of one device, of all devices of all workers, in one step."""
    random = np.random.RandomState(1000 * step + index)
    labels = random.randint(0, 5, SHARE)
    if case.net == "embedding":
        return random.randint(0, 20, SHARE), labels
    shape = (SHARE, 16, 6, 6) if case.net == "cnn" else (SHARE, 8)
    return random.normal(size=shape), labels


def backward(
    net: Any, case: Case, step: int, indices: list[int], start: Callable[[Any], None] = lambda _batch: None
) -> None:
    """Leave the gradient of each device's share in that device's gradient arrays.

    Args:
        net: What ``make_net`` returned.
        case: What it was made from.
        step: Number of the step.
        indices: Numbers of the devices among all devices of all workers.
        start: Called with each batch before it is used.
    """
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    with autograd.record():
        for device, index in enumerate(indices):
            samples, labels = share(case, step, index)
            context = mx.cpu(device)
            batch = mx.nd.array(samples, ctx=context)
            start(batch)
            output = net(batch)
            losses.append(loss_of(output, mx.nd.array(labels, ctx=context)))
    autograd.backward(losses)


def evaluate(net: Any, case: Case, step: int) -> None:
    """Run an inference pass, in which oneDNN gives convolutions' weights another layout."""
    for _ in range(3 if step % 2 else 0):
        net(mx.nd.array(share(case, step, 0)[0]))


def weights_of(net: Any) -> list[Any]:
    """Return copies of the weights on the first device."""
    weights = [parameter.list_data()[0] for parameter in net.collect_params().values()]
    # ``asnumpy`` waits for writers alone, and to the engine an inference that re-lays weights is a reader.
    for weight in weights:
        check_call(_LIB.MXNDArrayWaitToWrite(weight.handle))
    return [weight.asnumpy() for weight in weights]


def new_trainer(net: Any, case: Case, kv: KVStoreMPI | None) -> Any:
    """Make a Trainer as a user does."""
    return gluon.Trainer(
        net.collect_params(),
        case.optimizer,
        dict(case.options),
        kvstore=kv,
        update_on_kvstore=None if kv is None else case.on_kvstore,
    )


def step_of(trainer: Any, step: int, num_samples: int) -> None:
    """Make a step of the Trainer, with a smaller learning rate from the middle on."""
    if step == STEPS // 2:
        trainer.set_learning_rate(trainer.learning_rate / 4)
    trainer.step(num_samples)


def reference(case: Case, num_workers: int) -> list[Any]:
    """Train in one process, on one device, with the samples of all workers; return the weights."""
    shares = num_workers * case.devices
    case = case._replace(devices=1)
    net = make_net(case)
    trainer = new_trainer(net, case, None)
    for step in range(STEPS):
        backward(net, case, step, [0])
        gradients = [parameter.list_grad()[0] for parameter in net.collect_params().values()]
        totals = [gradient.copy() for gradient in gradients]
        for index in range(1, shares):
            backward(net, case, step, [index])
            totals = [total + gradient for total, gradient in zip(totals, gradients)]
        for total, gradient in zip(totals, gradients):
            total.copyto(gradient)
        step_of(trainer, step, SHARE * shares)
    return weights_of(net)


def compare(case: Case, kv: KVStoreMPI, found: list[Any], expected: list[Any]) -> None:
    """Compare weights: to the last bit where the same additions are made in the same order."""
    same = not kv.num_servers and kv.num_workers <= 2 and case.devices == 1  # noqa: PLR2004  a + b is b + a
    for ours, theirs in zip(found, expected):
        if same:
            np.testing.assert_array_equal(ours, theirs)
        elif case.optimizer == "adam":
            # It divides gradients by their size: where one is all rounding, an element may move by any part
            # of the rate. Two of 36,864 did, on a processor without AVX-512.
            distance = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
            assert distance <= TOLERANCE, f"weights differ by {distance:.1e} of their norm"
        else:
            np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE / 10)


def train(open_store: OpenStore, case: Case) -> Iterator[Turn]:
    """Train with a Trainer, with an evaluation after every other step, and compare the weights."""
    kv = open_store()
    net = make_net(case)
    trainer = new_trainer(net, case, kv)
    mine = range(kv.rank * case.devices, (kv.rank + 1) * case.devices)
    for step in range(STEPS):
        backward(net, case, step, list(mine))
        yield None
        step_of(trainer, step, SHARE * case.devices * kv.num_workers)
        yield None
        evaluate(net, case, step)
    compare(case, kv, weights_of(net), reference(case, kv.num_workers))


def _training_check(name: str, case: Case) -> Check:
    def run(open_store: OpenStore) -> Iterator[Turn]:
        return train(open_store, case)

    run.__name__ = f"training_{name}"
    run.__doc__ = f"Training equals one process with the same global batch: {case}."
    return run


def saved_states_continue(open_store: OpenStore) -> Iterator[Turn]:
    """A new store with loaded optimizer states goes on as the old one would have."""
    for name in ("momentum_on_the_store", "adam_on_the_store"):
        case = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            saved = str(Path(folder) / "states")
            kv = open_store()
            net = make_net(case)
            trainer = new_trainer(net, case, kv)
            for step in range(STEPS):
                if step == STEPS // 2:
                    trainer.save_states(saved)
                    weights = weights_of(net)
                backward(net, case, step, [kv.rank])
                yield None
                step_of(trainer, step, SHARE * kv.num_workers)
                yield kv
            expected = weights_of(net)

            kv = open_store()
            net = make_net(case)
            for parameter, weight in zip(net.collect_params().values(), weights):
                parameter.set_data(mx.nd.array(weight))
            trainer = new_trainer(net, case, kv)
            trainer._optimizer.rescale_grad = 1 / (SHARE * kv.num_workers)  # noqa: SLF001  as after a step
            trainer._init_kvstore()  # noqa: SLF001  load_states does this, but then waits for the others
            trainer._init_params()  # noqa: SLF001
            yield kv
            trainer.load_states(saved)
            for step in range(STEPS // 2, STEPS):
                backward(net, case, step, [kv.rank])
                yield None
                step_of(trainer, step, SHARE * kv.num_workers)
                yield kv
            for ours, theirs in zip(weights_of(net), expected):
                np.testing.assert_array_equal(ours, theirs)


def half_precision_has_a_master_copy(open_store: OpenStore) -> Iterator[Turn]:
    """With multi-precision, changes too small for float16 add up in a float32 copy of the weight."""
    kv = open_store()
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, multi_precision=True))
    weight = mx.nd.ones((4,), dtype="float16")
    kv.broadcast("w", weight, out=weight)
    for _ in range(16):
        kv.pushpull("w", mx.nd.full((4,), 2.0**-13 / kv.num_workers, dtype="float16"), out=weight)
    yield kv
    np.testing.assert_allclose(weight.asnumpy(), 1 - 2.0**-9, rtol=2.0**-11)


def module_trains_too(open_store: OpenStore) -> Iterator[Turn]:
    """The Module API comes to the same weights as one process with the same global batch."""
    kv = open_store()
    module = _make_module(kv)
    case = CASES["momentum_on_the_store"]
    yield None
    for step in range(STEPS):
        _module_backward(module, [share(case, step, kv.rank)])
        yield None
        _module_update(module)
        yield None
    alone = _make_module(None, rescale_grad=1 / (SHARE * kv.num_workers))
    for step in range(STEPS):
        _module_backward(alone, [share(case, step, rank) for rank in range(kv.num_workers)])
        _module_update(alone)
    expected = alone.get_params()[0]
    for name, weight in module.get_params()[0].items():
        np.testing.assert_allclose(weight.asnumpy(), expected[name].asnumpy(), rtol=1e-5, atol=1e-6)


def _make_module(kv: KVStoreMPI | None, **options: Any) -> Any:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="hidden")
    output = mx.sym.FullyConnected(mx.sym.Activation(hidden, act_type="relu"), num_hidden=5, name="output")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(output, name="softmax"))
    module.bind([("data", (SHARE, 8))], [("softmax_label", (SHARE,))], grad_req="write" if kv else "add")
    mx.random.seed(12)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(kvstore=kv, optimizer="sgd", optimizer_params={**_MOMENTUM, **options})
    return module


def _module_backward(module: Any, shares: list[tuple[Any, Any]]) -> None:
    for samples, labels in shares:
        module.forward_backward(mx.io.DataBatch([mx.nd.array(samples)], [mx.nd.array(labels)]))


def _module_update(module: Any) -> None:
    module.update()
    for (gradient,) in module._exec_group.grad_arrays:  # noqa: SLF001  Module cannot clear sums of gradients
        gradient[:] = 0


TRAINING_CHECKS: list[Check] = [
    *(_training_check(name, case) for name, case in CASES.items()),
    saved_states_continue,
    half_precision_has_a_master_copy,
    module_trains_too,
]
"""Checks for sync mode."""
