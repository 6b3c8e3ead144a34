"""What ``mx.kv.create`` makes of a name: a store of this package, one of MXNet's own, or an error.

MXNet knows no unknown name. What contains ``dist`` it takes for its parameter server; out of anything else,
``sync_mpi`` say, it makes a store of this process alone, and every worker trains apart without a word.
"""

from __future__ import annotations

import os
import sys
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.adapters.mxnet.exchange.own_worker import check_divided, own_worker
from kvstore_mpi.adapters.mxnet.store import KVStoreMPI
from kvstore_mpi.adapters.mxnet.updates.parameter_order import tell_names
from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MODES = {
    "sync-mpi": "sync",
    "dist_sync_mpi": "sync",
    "dist-sync-mpi": "sync",
    "async-mpi": "async",
    "dist_async_mpi": "async",
    "dist-async-mpi": "async",
}


class _Registry(dict[str, Any]):
    """MXNet's table of stores by name, which answers for some names that are not in it."""

    takes_over = False

    def __contains__(self, name: object) -> bool:
        """Tell whether a name is not left to MXNet's library."""
        return super().__contains__(name) or self._answer(str(name)) is not None

    def __missing__(self, name: str) -> Callable[[], Any]:
        """Return what makes a store, or raises."""
        answer = self._answer(name)
        if answer is None:
            raise KeyError(name)
        return answer

    def answers_for(self, name: str) -> bool:
        """Tell whether a name is one of this package, or looks like one."""
        return name in _MODES or self._answer(name) is not None

    def _answer(self, name: str) -> Callable[[], Any] | None:
        if "mpi" in name:
            return partial(_refuse_unknown, name)
        if "dist" not in name:
            return None
        mode = "async" if "_async" in name else "sync"  # as MXNet's library reads its names
        if self.takes_over:
            return partial(_open, name, mode, store_type=name)
        # MXNet's own launchers set the role: there, its servers are running.
        return None if "DMLC_ROLE" in os.environ else partial(_refuse_native, name, mode)


def register() -> None:
    """Make the stores known to ``mx.kv.create``."""
    registry = _Registry(mx.kv.KVStoreBase.kv_registry)
    registry.takes_over = os.environ.get("KVMPI_TAKE_OVER") == "1"  # mpilaunch --take-over
    registry.update({name: partial(_open, name, mode) for name, mode in _MODES.items()})
    mx.kv.KVStoreBase.kv_registry = registry
    for users in (mx.model, mx.gluon.trainer, mx.module.module):
        create = users._create_kvstore  # noqa: SLF001  there is no other way
        opening = _opening_ours(getattr(create, "__wrapped__", create), tells=users is mx.gluon.trainer)
        users._create_kvstore = opening  # noqa: SLF001  likewise
    # Trainers whose weights are row-sparse open theirs otherwise.
    create = mx.gluon.trainer._create_sparse_kvstore  # noqa: SLF001  likewise
    opening = _refusing_whole_nets(getattr(create, "__wrapped__", create))
    mx.gluon.trainer._create_sparse_kvstore = opening  # noqa: SLF001  likewise


def _opening_ours(create: Callable[..., Any], *, tells: bool) -> Callable[..., Any]:
    """Let Trainers and Modules open the stores of this package that they are given by name.

    With one device MXNet drops a store by name unless that has ``dist`` in it, in small letters: the worker
    would train apart.

    Args:
        create: MXNet's own.
        tells: By the order in which parameters are given their keys are numbered: tell it other workers.
    """

    @wraps(create)
    def opening(kvstore: Any, num_devices: int, parameters: Mapping[str, Any]) -> Any:
        if isinstance(kvstore, str) and mx.kv.KVStoreBase.kv_registry.answers_for(kvstore.lower()):
            kvstore = mx.kv.create(kvstore)
        if isinstance(kvstore, KVStoreMPI):
            check_divided()
        if tells and isinstance(kvstore, KVStoreMPI):
            tell_names(kvstore._exchange, list(parameters))  # noqa: SLF001  of this package
        return create(kvstore, num_devices, parameters)

    return opening


def _refusing_whole_nets(create: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let Trainers of row-sparse weights open a store of this package only where nets are not divided."""

    @wraps(create)
    def opening(kvstore: Any) -> Any:
        opened = create(kvstore)
        if isinstance(opened[0], KVStoreMPI):
            check_divided()
        return opened

    return opening


def take_over() -> None:
    """Answer for the names of MXNet's own distributed stores too, for scripts that ask for those.

    ``kv.type`` is then the name that was asked for.
    """
    mx.kv.KVStoreBase.kv_registry.takes_over = True


@raises_mxnet_errors
def _open(name: str, mode: str, *, store_type: str = "") -> KVStoreMPI:
    return KVStoreMPI(mode, own_worker(repr(name), mode), store_type)


@raises_mxnet_errors
def _refuse_unknown(name: str) -> None:
    raise UsageError(f"there is no store {name!r}; there are {', '.join(map(repr, _MODES))}")


@raises_mxnet_errors
def _refuse_native(name: str, mode: str) -> None:
    script = Path(sys.argv[0]).name or "train.py"
    raise UsageError(
        f"{name!r} is a store of MXNet's own, and none of its servers have been started. Let this package "
        f"answer for the name: mpilaunch --take-over [options] {script}; or ask for its own store, "
        f"mx.kv.create('dist_{mode}_mpi')"
    )
