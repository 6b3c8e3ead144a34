"""Loosely coupled training with Gluon and Module: a client steps by itself and meets a center now and then.

The client's ranks sum their gradients among themselves at each step (``ClientStore``), so that they stay
bit-identical; ``Centers`` does the rest. MXNET-MPI (Mamidala et al. 2018) section 6, figures 7 and 8.
"""

from __future__ import annotations

import contextlib
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.adapters.mxnet.centers import Centers
from kvstore_mpi.adapters.mxnet.exchange.gluon_parameters import is_sparse
from kvstore_mpi.adapters.mxnet.exchange.own_worker import check_divided
from kvstore_mpi.adapters.mxnet.taken_up import Joined
from kvstore_mpi.adapters.mxnet.updates.optimizer_states import master_of
from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.esgd import Elastic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.store import KVStoreMPI

ALPHA = 0.5
"""Moving rate: stable with any number of clients, one at a time, since the exchange is atomic."""

_TRAILER = b"\nkvstore_mpi "
"""Begins what ``save_states`` adds to MXNet's file, which MXNet itself does not read."""


class ElasticTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """A ``gluon.Trainer`` for a client that is loosely coupled to others.

    ``step`` sums the gradients over the client's ranks, divides by their number, updates the parameters
    here, and every ``interval`` steps, after the step, exchanges them for the center. All parameters take
    part, also those without gradients, such as BatchNorm's running statistics (of which a client gives the
    mean over its ranks). Momentum and other states of the local optimizer stay local. Who starts, or starts
    again, begins with the center: call ``join`` before the first pass, or its gradient may be left out.

    Example::

        kv = mx.kv.create("async-mpi")
        trainer = ElasticTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kv)
        ...
        trainer.step(batch_size)        # the batch of this worker
        ...
        with trainer.center():
            net.save_parameters("center.params")
    """

    @raises_mxnet_errors
    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        *,
        kvstore: KVStoreMPI | str,
        interval: int = 64,
        alpha: float | None = None,
        server_optimizer: Any = None,
        overlap: int = 0,
        compress: str | None = None,
        quorum: int = 0,
        quorum_wait: float = 0.0,
    ) -> None:
        """Make a trainer; all workers must, with the same arguments.

        Args:
            params: As of ``gluon.Trainer``.
            optimizer: The local optimizer, as of ``gluon.Trainer``.
            optimizer_params: As of ``gluon.Trainer``.
            kvstore: A store with servers and without keys, or its name.
            interval: Steps between two exchanges of a parameter array.
            alpha: Moving rate of elastic averaging, 0.5 if neither this nor ``server_optimizer`` is given.
            server_optimizer: Another server optimizer that takes parameters, such as ``DiLoCo()``.
            overlap: Steps for which training goes on before a center is applied, to the then current
                parameters; below ``interval``.
            compress: ``"int8"`` or ``"int4"``: what travels between hosts are quantised differences.
            quorum: In a synchronous store, how many clients suffice for a round; 0 for all.
            quorum_wait: Seconds for which a round waits for the others, once that many have come.

        Raises:
            UsageError: An argument does not fit.
        """
        terms = {"compress": compress, "quorum": quorum, "quorum_wait": quorum_wait}
        server = _server_optimizer(alpha, server_optimizer)
        store, self._centers = _open(kvstore, server, interval, self._masters, overlap, terms)
        check_divided()
        # A single rank has nobody to sum with; its devices do that in MXNet's own store.
        local = store.client_store() if store.mpi_size > 1 else "device"
        super().__init__(params, optimizer, optimizer_params, kvstore=local, update_on_kvstore=False)
        self._scale /= store.mpi_size
        self._not_joined = list(enumerate(self._params))
        self._joined = Joined(goes_on=store.goes_on)
        sparse = [each.name for each in self._params if is_sparse(each)]
        if sparse:
            raise UnsupportedError(
                f"parameter {sparse[0]} is row-sparse, or its gradient is, which cannot be averaged with a "
                "center: make its block with sparse_grad=False, or train with gluon.Trainer"
            )

    @raises_mxnet_errors
    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Make one step; ``batch_size`` is the number of samples of this worker."""
        self.join()
        if not self._leaves_out():
            super().step(batch_size, ignore_stale_grad)
        self._centers.step(len(self._params))

    @raises_mxnet_errors
    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Make the second half of a step, after ``allreduce_grads``."""
        self.join()
        if not self._leaves_out():
            super().update(batch_size, ignore_stale_grad)
        self._centers.step(len(self._params))

    def join(self) -> None:
        """Let all parameters that have a shape by now begin with the center; so does the first step.

        Where a job is resumed, or this client is late or back, gradients of a pass before are left out.
        """
        for key, param in [*self._not_joined]:
            if not param._deferred_init:  # noqa: SLF001  as gluon.Trainer does
                self._centers.join(key, param.list_data())
                if param.grad_req != "null":
                    self._joined.add(param.list_data())
                self._not_joined.remove((key, param))
        # Now, and not in the first step: there rank 0's statistics of the first pass would be everybody's.
        if not self._not_joined and not self._kv_initialized:
            self._init_kvstore()
            self._init_params()

    def _leaves_out(self) -> bool:
        """Tell whether the gradients of this step are of weights that the center has replaced since."""
        return self._joined.leave_out(
            weight for each in self._params if each.grad_req != "null" for weight in each.list_data()
        )

    def _masters(self, key: int, dtype: str) -> list[NDArray | None]:
        return [master_of(updater, key, dtype) for updater in self._updaters]

    @raises_mxnet_errors
    def center(self) -> AbstractContextManager[None]:
        """Have the center in the parameters within a ``with``, to evaluate or to save it.

        Ranks and clients see the center as it is when each of them asks. Before the first step they join.

        Raises:
            UsageError: A parameter has no shape yet, and so no center.
        """
        self.join()
        if self._not_joined:
            name = self._not_joined[0][1].name
            raise UsageError(f"parameter {name} has no shape yet: call net(data) once before center")
        return self._centers.in_place()

    def save_states(self, fname: str) -> None:
        """Save the local optimizer's states and the step counter; ``gluon.Trainer`` can read the former.

        Exchanges that are under way, with overlap, are applied to the parameters: save those afterwards.
        """
        self._centers.settle()
        super().save_states(fname)
        with Path(fname).open("ab") as file:
            file.write(_TRAILER + json.dumps({"steps": self._centers.steps}).encode())

    def load_states(self, fname: str) -> None:
        """Load what ``save_states``, or that of ``gluon.Trainer``, has saved."""
        self._centers.settle()  # with another counter a parameter may be due that is still under way
        super().load_states(fname)
        _, found, trailer = Path(fname).read_bytes().rpartition(_TRAILER)
        if found:
            self._centers.steps = json.loads(trailer)["steps"]


class ElasticCallback:
    """Does for ``Module.fit`` what ``ElasticTrainer`` does for Gluon: give it as ``batch_end_callback``.

    Give ``fit`` the store in ``client_store`` as ``kvstore``: in it the client's ranks sum their gradients.

    Example::

        elastic = ElasticCallback(mx.kv.create("async-mpi"), interval=64)
        module.fit(data, kvstore=elastic.client_store, batch_end_callback=elastic, ...)
    """

    @raises_mxnet_errors
    def __init__(
        self,
        kvstore: KVStoreMPI | str,
        *,
        interval: int = 64,
        alpha: float | None = None,
        server_optimizer: Any = None,
        overlap: int = 0,
        **terms: Any,
    ) -> None:
        """Make a callback; arguments, also ``terms``, as of ``ElasticTrainer``.

        Raises:
            UsageError: An argument does not fit.
        """
        server = _server_optimizer(alpha, server_optimizer)
        store, self._centers = _open(kvstore, server, interval, self._masters, overlap, terms)
        self._module: Any = None
        self._goes_on = store.goes_on
        self.client_store = store.client_store()

    @raises_mxnet_errors
    def __call__(self, param: Any) -> None:
        """Take the end of a batch; ``param`` is what ``fit`` passes."""
        module = param.locals["self"]
        if not isinstance(module, mx.mod.Module):
            raise UnsupportedError(
                f"ElasticCallback is for mx.mod.Module, and this is a {type(module).__name__}, whose parts "
                "have the arrays in other orders"
            )
        group = module._exec_group  # noqa: SLF001  there is no public way to the arrays
        arrays = [*group.param_arrays, *group.aux_arrays]
        if self._module is None:
            self._module = module
            if self._goes_on:
                _forget(module._updater)  # noqa: SLF001  as above
            for key, devices in enumerate(arrays):
                self._centers.join(key, devices)
                # Centers move on: another rank of this client may have been given a later one.
                self.client_store.broadcast(f"center {key}", devices[0], devices)
        self._centers.step(len(arrays))
        self._arrays_have_changed()

    def _masters(self, key: int, dtype: str) -> list[NDArray | None]:
        module = self._module
        devices = len(module._context)  # noqa: SLF001  a Module numbers what it updates on all of them
        of_key = range(key * devices, (key + 1) * devices)
        return [master_of(module._updater, index, dtype) for index in of_key]  # noqa: SLF001  as above

    @raises_mxnet_errors
    def center(self) -> AbstractContextManager[None]:
        """Have the center in the module's arrays within a ``with``, to evaluate or to save it.

        Raises:
            UsageError: There has been no batch yet, after which the module's arrays are known.
        """
        if self._module is None:
            raise UsageError("the module has no center before the first batch of fit has ended")
        return self._in_place()

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        try:
            with self._centers.in_place():
                self._arrays_have_changed()
                yield
        finally:
            self._arrays_have_changed()

    def _arrays_have_changed(self) -> None:
        """Tell the module, which otherwise returns and saves the copies that it made before."""
        self._module._params_dirty = True  # noqa: SLF001  only its own update says so


def _open(  # noqa: PLR0917  what both kinds of users are given
    kvstore: Any,
    optimizer: Any,
    interval: int,
    masters: Callable[[int, str], list[NDArray | None]],
    overlap: int,
    terms: dict[str, Any],
) -> tuple[KVStoreMPI, Centers]:
    """Return the store, made if a name is given, and its centers."""
    store = mx.kv.create(kvstore) if isinstance(kvstore, str) else kvstore
    return store, Centers(store, optimizer, interval, masters, overlap=overlap, **terms)


def _forget(updater: Any) -> None:
    """Let an updater begin anew: its one update was with a gradient of weights that the center replaces."""
    updater.states.clear()
    updater.states_synced.clear()
    for counts in updater.optimizer._all_index_update_counts.values():  # noqa: SLF001  Adam goes by them
        counts.clear()


def _server_optimizer(alpha: float | None, server_optimizer: Any) -> Any:
    if server_optimizer is None:
        return Elastic(alpha=ALPHA if alpha is None else alpha)
    if alpha is not None:
        raise UsageError("give alpha or server_optimizer, not both: alpha means Elastic(alpha)")
    return server_optimizer
