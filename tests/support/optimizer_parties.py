"""One optimizer run the way servers run it, and the way MXNet runs it without servers, to be compared.

Imports mxnet; there are no processes and no messages here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.updates.optimizer_spec import spec_from_optimizer
from kvstore_mpi.adapters.mxnet.updates.optimizer_states import KeyState
from kvstore_mpi.server_optimizers import OptimizerSpec, build, hyper_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvstore_mpi.records import Key

    Array = np.ndarray[Any, Any]
    Case = tuple[str, dict[str, Any]]


NATIVE: list[Case] = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
    ("nag", {}),
    ("nag", {"momentum": 0.9}),
    ("adam", {}),
    ("adagrad", {}),
    ("ftrl", {}),
    ("ftrl", {"lamda1": 0.5, "beta": 0.25}),
    ("rmsprop", {}),
    ("rmsprop", {"centered": True, "gamma1": 0.95, "epsilon": 1e-4}),
    ("rmsprop", {"clip_weights": 0.5}),
]
"""Optimizers that servers run by themselves: name and hyper-parameters."""

FOREIGN: list[Case] = [
    ("lamb", {"learning_rate": 0.02}),
    ("lamb", {"bias_correction": False, "lower_bound": 0.1, "upper_bound": 2.0}),
    ("signum", {"wd_lh": 0.001}),
    ("signum", {"momentum": 0.0}),
    ("nadam", {"learning_rate": 0.02}),
    ("adadelta", {}),
    ("adamax", {}),
    ("lars", {"momentum": 0.9, "learning_rate": 0.5}),
    ("ftml", {}),
    ("dcasgd", {}),
    ("lbsgd", {"momentum": 0.9, "batch_scale": 2}),
    ("ccsgd", {"momentum": 0.9}),
    ("test", {}),
]
"""Optimizers that servers run through MXNet, all but the sampler."""


class Party(Protocol):
    """Something that has weights and is trained."""

    def push(self, key: Key, gradient: Array) -> None:
        """Update a key."""
        ...

    def value(self, key: Key) -> Array:
        """Return a key's weight."""
        ...


class Servers:
    """What servers do: a rule bound to each key, the key's state and its count of updates."""

    def __init__(self, optimizer: Any, weights: Mapping[Key, Array]) -> None:
        """Describe the optimizer, send the description through a dict, and start from these weights."""
        self.spec = OptimizerSpec.from_dict(spec_from_optimizer(optimizer, weights).to_dict())
        self.hyper = self.spec.hyper
        self._original = weights
        rule = build(self.spec)
        self.rules = {key: rule.bind(key, weight.shape) for key, weight in weights.items()}
        self.weights = {key: self._working_copy(weight) for key, weight in weights.items()}
        self.states: dict[Key, tuple[Array, ...]] = {
            key: self.rules[key].init(weight) for key, weight in self.weights.items()
        }
        self.counts: dict[Key, int] = dict.fromkeys(weights, 0)

    def _working_copy(self, weight: Array) -> Array:
        master = self.spec.multi_precision and weight.dtype == np.float16
        return weight.astype("float32" if master else weight.dtype).reshape(-1)

    def push(self, key: Key, gradient: Array) -> None:
        """Update a key."""
        self.counts[key] += 1
        hyper = hyper_for(self.hyper, key, self.counts[key])
        flat = gradient.astype(self.weights[key].dtype).reshape(-1)
        self.rules[key].update(self.weights[key], flat, self.states[key], hyper, self.counts[key])

    def value(self, key: Key) -> Array:
        """Return a key's weight, in its own shape and dtype."""
        original = self._original[key]
        return self.weights[key].astype(original.dtype).reshape(original.shape)

    def export(self) -> dict[Key, KeyState]:
        """Return the states for saving."""
        return {key: self._export(key, weight) for key, weight in self._original.items()}

    def _export(self, key: Key, original: Array) -> KeyState:
        master = None if self.weights[key].dtype == original.dtype else self.weights[key]
        states = list(self.states[key])
        return KeyState(self.counts[key], states, original.shape, str(original.dtype), master)

    def load(self, states: Mapping[Key, KeyState]) -> None:
        """Continue from saved states."""
        for key, state in states.items():
            self.counts[key] = state.count
            self.states[key] = tuple(state.arrays)
            if state.master is not None:
                self.weights[key] = state.master


class Local:
    """What MXNet does without servers: one ``Updater`` over NDArrays."""

    def __init__(self, optimizer: Any, weights: Mapping[Key, Array]) -> None:
        """Start from these weights."""
        self.updater = mx.optimizer.get_updater(optimizer)
        self.weights = {key: mx.nd.array(weight, dtype=weight.dtype) for key, weight in weights.items()}

    def push(self, key: Key, gradient: Array) -> None:
        """Update a key."""
        self.updater(key, mx.nd.array(gradient, dtype=gradient.dtype), self.weights[key])

    def value(self, key: Key) -> Array:
        """Return a key's weight."""
        value: Array = self.weights[key].asnumpy()
        return value


def optimizer_pair(name: str, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return two equal MXNet optimizers, one for each party: they change as they are used."""
    return mx.optimizer.create(name, **params), mx.optimizer.create(name, **params)


def random_weights(dtype: str, shapes: Mapping[Key, tuple[int, ...]]) -> dict[Key, Array]:
    """Return the same weights at each call."""
    rng = np.random.default_rng(1)
    return {key: rng.normal(size=shape).astype(dtype) for key, shape in shapes.items()}


def train(parties: Sequence[Party], weights: Mapping[Key, Array], *, steps: int, seed: int = 2) -> None:
    """Push the same random gradients, of the shapes and dtypes of ``weights``, to each party."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        for key, weight in weights.items():
            gradient = rng.normal(size=weight.shape).astype(weight.dtype)
            for party in parties:
                party.push(key, gradient)


def assert_same(
    one: Party, other: Party, keys: Iterable[Key], rtol: float = 1e-6, atol: float = 1e-6
) -> None:
    """Compare the weights of two parties."""
    for key in keys:
        np.testing.assert_allclose(one.value(key), other.value(key), rtol=rtol, atol=atol)
