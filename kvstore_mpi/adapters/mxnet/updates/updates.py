"""What a store asks of the place where its weights are updated: the workers, or the servers.

This file must not know about either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.values.coding import GRADIENT_CODINGS, rounds_rows
from kvstore_mpi.values.two_bits import NAME as TWO_BITS
from kvstore_mpi.values.two_bits import THRESHOLD, TwoBits

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from kvstore_mpi.records import Key
    from kvstore_mpi.server_optimizers import OptimizerSpec

Updater = Callable[["Key", "NDArray", "NDArray"], None]
"""A function of key, summed gradient and stored weight that changes the weight."""


class Updates(Protocol):
    """What a store asks of the place where its weights are updated."""

    updater: Any
    """What MXNet knows as ``kv._updater``: has ``optimizer`` and ``states``; ``None`` without."""

    spec: OptimizerSpec | None
    """The servers' update rule, as rank 0 gave it; ``None`` without one."""

    takes_params: bool
    """The values that are pushed must be parameters, not gradients."""

    notes_values: bool
    """The servers note which values a worker has been given, so that none may come that it may not use."""

    on_workers: bool
    """The workers update, and not servers; so it is, too, where nobody does and there are no servers."""

    needs_sums: bool
    """A push must bring the sum back, because the weight is updated here."""

    @property
    def local(self) -> Any:
        """What updates the keys that this worker updates, as ``updater``; ``None`` if nothing does."""
        ...

    def set_optimizer(
        self, optimizer: Any, quorum: int, quorum_wait: float, compress: str | None
    ) -> Updates:
        """Take an MXNet optimizer, or one of ``kvstore_mpi.esgd``; return what updates from now on."""
        ...

    def compensate_delays(self, how: str, **numbers: float) -> None:
        """Put a rule for delayed gradients around each MXNet optimizer that is taken from now on."""
        ...

    def clip_global_norm(self, max_norm: float, without: Sequence[Key]) -> None:
        """Clip the gradient of all keys together, with each MXNet optimizer that is taken from now on."""
        ...

    def average_weights(self, decay: float) -> None:
        """Keep averages of the weights, with each MXNet optimizer that is taken from now on."""
        ...

    def set_updater(self, updater: Updater) -> None:
        """Take a function of key, summed gradient and stored weight that changes the weight."""
        ...

    def key_created(self, key: Key) -> None:
        """Take notice of a key whose initialisation is queued."""
        ...

    def before_push(self, key: Key) -> None:
        """Do what must be done before a push of this key is queued."""
        ...

    def after_push(self, key: Key, *, sparse: bool) -> None:
        """Do what must be done when a push is queued; ``sparse``: its values were row-sparse."""
        ...

    def hold(self, key: Key, array: NDArray, parts: Callable[[], list[np.ndarray[Any, Any]]]) -> None:
        """Do what must be done with a sum that ``array`` stands for before it is used here."""
        ...

    def value(self, key: Key) -> NDArray:
        """Return the dense array that holds the key's value, once the queued operations are over."""
        ...


def travels_rounded(spec: OptimizerSpec | None, dtype: str) -> bool:
    """Return whether rows of a table of this type travel rounded, and workers have no others."""
    return spec is not None and rounds_rows(spec.compress, np.dtype(dtype))


def check_not_compressed(compress: str | None) -> None:
    """Raise where gradients are to be compressed, and workers update.

    Raises:
        UsageError: They are: only a server's optimizer takes them so.
    """
    if compress:
        raise UsageError(
            f"gradients are to be compressed (compression_params, {compress!r}), and only servers that "
            "update take them so: leave that out, or let servers update (mpilaunch --servers 1 or more, "
            "and a Trainer with update_on_kvstore=True)"
        )


def compression_of(params: Any) -> str | None:
    """Return the coding that MXNet's parameters of gradient compression ask for; ``None`` if for none.

    Raises:
        UnsupportedError: Gradients cannot be compressed so.
        UsageError: The threshold is no positive number.
    """
    name = params.get("type") if isinstance(params, dict) else None
    if name == "none":
        return None
    if name == TWO_BITS and params.keys() == {"type", "threshold"}:
        return TwoBits(params["threshold"]).name
    if name is None or params.keys() != {"type"} or name not in GRADIENT_CODINGS:
        raise UnsupportedError(
            f"gradient compression {params!r} is not supported; compression_params may be "
            + " or ".join(f'{{"type": "{each}"}}' for each in GRADIENT_CODINGS)
            + f', the last one with a "threshold" other than {THRESHOLD}, too'
        )
    return str(name)
