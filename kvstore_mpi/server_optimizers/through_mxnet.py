"""Any optimizer that MXNet registers, run by a server through MXNet on whole tensors.

MXNet is imported when the first such optimizer is made, not before. State stays in NumPy arrays, and
MXNet works on them without a copy; what MXNet's object would remember beside the state (the number of
updates, the learning rate in force) is set before each update, so that loaded states continue as if
nothing had happened. This file must not know about messages, schedules or multipliers.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import StoreTerms
from kvstore_mpi.server_optimizers.spec import FRESH

if TYPE_CHECKING:
    import numpy as np

    from kvstore_mpi.interfaces import Hyper, Origin
    from kvstore_mpi.records import Key
    from kvstore_mpi.server_optimizers.spec import OptimizerSpec

    Array = np.ndarray[Any, Any]


class ThroughMXNet:
    """An MXNet optimizer for one key.

    Each key has an object of its own: MXNet's Nadam and LARS keep numbers that all keys of one object
    share, and results would depend on which keys happen to live on the same server.
    """

    terms = StoreTerms(whole=True)

    def __init__(self, spec: OptimizerSpec, key: Key = 0, shape: tuple[int, ...] | None = None) -> None:
        """Make MXNet's object.

        Args:
            spec: Registered name and hyper-parameters.
            key: The key that is updated; some optimizers treat keys named ``…_bias`` and the like apart.
            shape: Shape of the key; 1-D if not given.

        Raises:
            UsageError: There is no MXNet here, no such optimizer in it, or its hyper-parameters differ.
        """
        self._spec = spec
        self._key = key
        self._shape = (1,) if shape == () else shape  # MXNet takes () for a shape that is not known yet
        self._mx = _import_mxnet(spec.name)
        self._optimizer = _create(self._mx, spec)
        self._pattern: Any = None
        self._done = 0

    def bind(self, key: Key, shape: tuple[int, ...]) -> ThroughMXNet:
        """Return the optimizer for a key of this shape."""
        return ThroughMXNet(self._spec, key, shape)

    def init(self, weight: Array) -> tuple[Array, ...]:
        """Return MXNet's initial state as 1-D arrays that the caller owns, nested states in order."""
        if weight.size == 0:
            return ()
        return tuple(leaf.asnumpy().reshape(-1) for leaf in leaves(self._initial_state(weight)))

    def update(
        self,
        weight: Array,
        gradient: Array,
        state: tuple[Array, ...],
        hyper: Hyper,
        count: int,
        *,
        origin: Origin = FRESH,  # noqa: ARG002  as ``Rule.update``
    ) -> None:
        """Update the whole weight and its state in place; all arrays are 1-D and contiguous.

        Args:
            weight: The key's value, flat.
            gradient: Like ``weight``, or float32 beside float16; left as it is.
            state: What ``init`` returned, or the same loaded from elsewhere.
            hyper: The numbers of this update.
            count: Number of the key's update, from 1.
            origin: Whose gradient this is.

        Raises:
            UsageError: MXNet's implementation refuses these arrays.
        """
        if weight.size == 0:
            return
        if self._pattern is None:
            self._initial_state(weight)
        self._set_numbers(hyper, count - 1)
        views = self._views(state)
        target = self._view(weight, self._shape)
        # A copy, since some optimizers change their gradient and LBSGD keeps it.
        own = self._mx.nd.array(gradient.reshape(target.shape), dtype=weight.dtype)
        try:
            self._optimizer.update(self._key, target, own, views)
            self._mx.nd.waitall()
        except Exception as error:
            raise self._refusal(weight, error) from error

    def _initial_state(self, weight: Array) -> Any:
        """Ask MXNet for a state, and remember how it is nested, without its arrays."""
        try:
            state = self._optimizer.create_state(self._key, self._view(weight.copy(), self._shape))
        except Exception as error:
            raise self._refusal(weight, error) from error
        self._pattern = map_leaves(state, lambda leaf: SimpleNamespace(shape=leaf.shape))
        return state

    def _views(self, state: tuple[Array, ...]) -> Any:
        """Nest a flat state as MXNet wants it, over the same memory."""
        arrays = iter(state)
        return map_leaves(self._pattern, lambda leaf: self._view(next(arrays), leaf.shape))

    def _view(self, array: Array, shape: tuple[int, ...] | None) -> Any:
        """Return an NDArray over an array's memory; MXNet write-protects the view that it is given."""
        return self._mx.nd.from_numpy(
            array.reshape(array.shape if shape is None else shape), zero_copy=True
        )

    def _set_numbers(self, hyper: Hyper, done: int) -> None:
        """Make MXNet's object ready for an update of its key after ``done`` others."""
        optimizer = self._optimizer
        optimizer.lr, optimizer.wd = hyper.lr, hyper.wd
        optimizer.rescale_grad, optimizer.clip_gradient = hyper.rescale_grad, hyper.clip_gradient
        if done != self._done:
            resume(optimizer, self._key, done)
        self._done = done + 1

    def _refusal(self, weight: Array, error: Exception) -> UsageError:
        # Not only its own errors: some of its optimizers assert that a weight has two dimensions.
        reason = (str(error).strip().splitlines() or [repr(error)])[-1]
        return UsageError(
            f"MXNet's optimizer {self._spec.name!r} cannot update key {self._key!r}, {self._shape} "
            f"{weight.dtype}: {reason}; with float16 use multi_precision=True, else another optimizer or "
            "update_on_kvstore=False"
        )


def leaves(state: Any) -> list[Any]:
    """Return the arrays of a nested optimizer state in order, without the ``None`` among them."""
    if state is None:
        return []
    if isinstance(state, (tuple, list)):
        return [leaf for part in state for leaf in leaves(part)]
    return [state]


def map_leaves(state: Any, function: Any) -> Any:
    """Return a nested optimizer state with each array replaced by ``function(array)``, in order."""
    if state is None:
        return None
    if isinstance(state, (tuple, list)):
        return type(state)([map_leaves(part, function) for part in state])
    return function(state)


def _import_mxnet(name: str) -> Any:
    try:
        return importlib.import_module("mxnet")
    except ImportError as error:
        raise UsageError(
            f"the servers run optimizer {name!r} through MXNet, which cannot be imported there ({error}); "
            "install kvstore_mpi[mxnet] on the servers' hosts, or use one of the servers' own optimizers"
        ) from error


def _create(mx: Any, spec: OptimizerSpec) -> Any:
    registry = mx.optimizer.Optimizer.opt_registry
    if spec.name not in registry:
        raise UsageError(f"MXNet has no optimizer {spec.name!r}; it has {', '.join(sorted(registry))}")
    try:
        return mx.optimizer.create(spec.name, begin_num_update=spec.hyper.begin_num_update, **spec.params)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"MXNet's optimizer {spec.name!r} cannot be made with {spec.params}: {error}"
        ) from error


def resume(optimizer: Any, key: Key, done: int) -> None:
    """Make an MXNet optimizer believe that it has updated a key ``done`` times.

    That is its table of counts, and what Nadam and LBSGD remember outside their states. What LBSGD has
    gathered of an unfinished large batch is dropped.
    """
    begin = optimizer.begin_num_update
    for counts in optimizer._all_index_update_counts.values():  # noqa: SLF001  MXNet offers no other way
        counts[key] = begin + done
    optimizer.num_update = max(optimizer.num_update, begin + done)
    if hasattr(optimizer, "m_schedule"):
        optimizer.m_schedule = _nadam_schedule(optimizer, range(begin + 1, begin + done + 1))
    if hasattr(optimizer, "cumgrads"):
        optimizer.cumgrads[key] = {"cum_grad": 0, "num_cums": optimizer.init_updates + done}


def _nadam_schedule(optimizer: Any, steps: range) -> float:
    """Return the product that MXNet's Nadam keeps over its updates, for those in ``steps``."""
    product = 1.0
    for step in steps:
        product *= optimizer.beta1 * (1.0 - 0.5 * 0.96 ** (step * optimizer.schedule_decay))
    return product
