"""Nets in parts for tests, and what one process makes of them without any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from kvstore_mpi.mxnet import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS, BATCH = 4, 16
OPTIONS = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.001}
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()


def seed() -> None:
    """Let what follows draw the same numbers wherever it is called."""
    mx.random.seed(4)
    np.random.seed(4)  # noqa: NPY002  MXNet's initialisers draw from it


def make_chain(*, normalised: bool = False) -> nn.HybridSequential:
    """Build a small CNN."""
    seed()
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, kernel_size=3, padding=1, activation="relu"))
    if normalised:
        net.add(nn.BatchNorm())
    net.add(nn.Conv2D(8, kernel_size=3, padding=1, activation="relu"), nn.MaxPool2D(2))
    net.add(nn.Dense(16, activation="relu"), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


class _Join(gluon.HybridBlock):  # type: ignore[misc]
    """Two inputs side by side, and a layer on both."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.layer = nn.Dense(10)

    def hybrid_forward(self, F: Any, left: Any, right: Any) -> Any:  # noqa: N803  MXNet's name
        """See ``HybridBlock``."""
        return self.layer(F.concat(left, right, dim=1))


class Towers(gluon.HybridBlock):  # type: ignore[misc]
    """Two towers on a stem, whose output both take, and a second input for one of them."""

    def __init__(self) -> None:
        """Build it."""
        super().__init__()
        with self.name_scope():
            self.stem = nn.Dense(12, activation="relu")
            self.left = nn.Dense(8, activation="relu")
            self.right = nn.Dense(8, activation="relu")
            self.gate = nn.Dense(8, activation="relu")
            self.top = _Join()
            self.last = _Join()

    def hybrid_forward(self, F: Any, images: Any, others: Any) -> Any:  # noqa: N803  MXNet's name
        """See ``HybridBlock``."""
        stem = self.stem(images)
        return self.last(self.top(self.left(stem), self.right(stem)), self.gate(others))

    def parts(self, ranks: Sequence[int]) -> list[Part]:
        """Return the net in parts; ``ranks`` has that of each, from the stem to the last."""
        inputs = [("data",), ("stem",), ("stem",), ("data1",), ("left", "right"), ("top", "gate")]
        blocks = [self.stem, self.left, self.right, self.gate, self.top, self.last]
        names = ["stem", "left", "right", "gate", "top", "last"]
        return [Part(*each) for each in zip(names, blocks, ranks, inputs)]


def make_towers() -> Towers:
    """Build the towers."""
    seed()
    net = Towers()
    net.initialize(mx.init.Xavier())
    net(*batches(inputs=2)[0][0])  # in whatever order the parts are given, these are the values
    return net


def batches(worker: int = 0, num_workers: int = 1, *, inputs: int = 1) -> list[tuple[Any, Any]]:
    """Return the batches of one worker, of as many as there are."""
    draw = np.random.default_rng(0)
    found = []
    for _ in range(STEPS):
        shape = (BATCH, 1, 8, 8)
        data = [mx.nd.array(draw.random(shape)[worker::num_workers]) for _ in range(inputs)]
        labels = mx.nd.array(draw.integers(0, 10, BATCH)[worker::num_workers])
        found.append((data if inputs > 1 else data[0], labels))
    return found


def train_alone(
    net: gluon.HybridBlock, *, inputs: int = 1, sizes: Sequence[int] = (BATCH,) * STEPS
) -> list[np.ndarray[Any, Any]]:
    """Train in one piece, with the first ``sizes`` samples of batches; return the parameters."""
    # Nothing is predicted before: MXNet would lay the weights of convolutions anew for that, and the next
    # training forward back again, behind what is queued by then.
    trainer = gluon.Trainer(net.collect_params(), "sgd", OPTIONS, kvstore=None)
    for (data, labels), size in zip(batches(inputs=inputs), sizes):
        with autograd.record():
            loss = loss_of(net(*(each[:size] for each in (data if inputs > 1 else [data]))), labels[:size])
        loss.backward()
        trainer.step(size)
    return values_of(net)


def values_of(net: gluon.HybridBlock) -> list[np.ndarray[Any, Any]]:
    """Return all parameters."""
    return [param.data().asnumpy() for param in net.collect_params().values()]


def train_parts(trainer: Any, worker: int = 0, num_workers: int = 1, *, inputs: int = 1) -> None:
    """Train in parts, and let this rank have all of them at the end."""
    for data, labels in batches(worker, num_workers, inputs=inputs):
        trainer.step(data, labels)
    trainer.gather()


def distance(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest difference."""
    assert len(found) == len(expected)
    return max(float(np.abs(each - other).max()) for each, other in zip(found, expected))
