"""Training with workers of several ranks: each computes its parts of the net, and owns their parameters.

The store sums each parameter among its owners alone, because the store of a rank is one of the owners of
its parts (docs/model-parallel.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.adapters.mxnet.exchange import lifecycle
from kvstore_mpi.adapters.mxnet.exchange.gluon_parameters import shape_is_known, shape_of
from kvstore_mpi.adapters.mxnet.exchange.own_worker import asked_parts, own_links, planned_cut, tell_numbers
from kvstore_mpi.adapters.mxnet.parallel import let_sizes_count
from kvstore_mpi.adapters.mxnet.parts.agreement import Agreement
from kvstore_mpi.adapters.mxnet.parts.message_costs import measure_handling
from kvstore_mpi.adapters.mxnet.parts.part_costs import measure_parts, structure_of
from kvstore_mpi.adapters.mxnet.parts.part_marks import PartMarks
from kvstore_mpi.adapters.mxnet.parts.segment_run import Step, Unobserved
from kvstore_mpi.adapters.mxnet.parts.segments import (
    Net,
    check_batch,
    check_dense,
    check_given,
    check_micro_batches,
    forms_of,
    owners,
)
from kvstore_mpi.adapters.mxnet.store import KVStoreMPI
from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cuts import PLACEMENT, Parts, write_parts
from kvstore_mpi.planner.pipelines.schedules import check, fill_drain
from kvstore_mpi.tracing import annotation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.parts.segment_run import Observer
    from kvstore_mpi.adapters.mxnet.parts.segments import Form, Part
    from kvstore_mpi.comm.links import Links
    from kvstore_mpi.planner.cuts import Cut
    from kvstore_mpi.planner.pipelines.schedules import Schedule


class PartTrainer:
    """Trains a net whose parts are on the ranks of a worker, in any shape that has one output.

    All ranks make the same net and the same trainer, and call ``step`` with the same batch: each takes of
    it what its parts need. The gradients of a step's micro-batches are added up and pushed once.

    Example::

        kv = mx.kv.create("sync-mpi")          # mpilaunch --model-parallel 2
        parts = [
            Part("left", left, 0, ("data",)),
            Part("right", right, 1, ("data1",)),
            Part("top", top, 0, ("left", "right")),
        ]
        trainer = PartTrainer(parts, loss, "sgd", {"learning_rate": 0.1}, kvstore=kv)
        loss = trainer.step([images, words], labels)

    Attributes:
        trainer: The ``gluon.Trainer`` of this rank's parameters, for its learning rate and its states;
            ``None`` if its parts learn nothing.
        observer: Told of what a step does; by default that is on the trace, if the job has one. For
            measurements.
    """

    _kind = PLACEMENT

    @raises_mxnet_errors
    def __init__(
        self,
        parts: Sequence[Part],
        loss: Callable[[NDArray, NDArray], NDArray],
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        *,
        kvstore: Any,
        micro_batches: int = 1,
        schedule: Schedule | None = None,
    ) -> None:
        """Make a trainer; all ranks of all workers must, with the same arguments.

        Args:
            parts: At least one on each rank of a worker; blocks that several have are on one rank. With
                ``mpilaunch --plan`` their ranks are those of the plan, and so is the order.
            loss: Of the net's output and the labels, a number for each sample; a ``gluon.loss.Loss``.
            optimizer: As of ``gluon.Trainer``.
            optimizer_params: As of ``gluon.Trainer``.
            kvstore: A store without keys, or its name; in one of MXNet's own a worker is one rank.
            micro_batches: Equal parts of a batch that follow each other through the ranks.
            schedule: What each rank computes, in order; all forward and then all backward if not given.
                With one that is given, a plan has no say.

        Raises:
            UsageError: The parts make no net, or do not fit the ranks of a worker, or the plan is for
                another net or number of ranks.
        """
        check_given(parts)
        check_micro_batches(micro_batches)
        self._kvstore = kvstore = opened(kvstore)
        self._rank: int = getattr(kvstore, "model_rank", 0)
        size: int = getattr(kvstore, "model_parallel", 1)
        self._links: Links | None = own_links() if size > 1 else None
        self._parts_file = asked_parts() if size == 1 else ""
        if self._parts_file:
            parts, schedule = [part._replace(rank=0) for part in parts], None
        cut = planned_cut() if size > 1 and schedule is None else None
        if cut is not None:
            parts = _as_planned(parts, cut, size)
        self._net = Net(parts, size)
        self._loss = loss
        self._micro_batches = micro_batches
        if cut is not None:
            schedule = cut.schedule(self._net.graph, micro_batches)
        schedule = schedule or fill_drain(self._net.graph, micro_batches)
        check(self._net.graph, schedule, micro_batches)
        self._actions = schedule[self._rank]
        self._forms: dict[tuple[Form, ...], list[Form]] = {}
        recorder = annotation.installed()
        self.observer: Observer = (
            PartMarks(recorder, [part.name for part in self._net.parts]) if recorder else Unobserved()
        )
        self._rule = _told(optimizer, optimizer_params)
        self._agreement: Agreement | None = None
        if self._links is not None:
            self._agreement = Agreement(self._links, self._described)
            lifecycle.part_at_exit(self._links)
            self._links.taken = True
        self.trainer: mx.gluon.Trainer | None = self._make_trainer(optimizer, optimizer_params)

    def _make_trainer(self, optimizer: Any, options: dict[str, Any] | None) -> mx.gluon.Trainer | None:
        mine = self._net.parameters(self._rank)
        check_dense(mine)
        for rank, param in owners(self._net):
            if param.grad_req != "null":
                # What others own needs no memory for a gradient here.
                param.grad_req = "add" if rank == self._rank else "null"
        if not any(param.grad_req != "null" for param in mine):
            return None
        trainer = mx.gluon.Trainer(mine, optimizer, options, kvstore=self._kvstore)
        if isinstance(self._kvstore, KVStoreMPI):
            let_sizes_count(trainer)
        return trainer

    @raises_mxnet_errors
    def step(self, data: Any, label: NDArray, batch_size: int | None = None) -> NDArray | None:
        """Make one step with this worker's batch.

        Args:
            data: An array or a list of them, whose first axis are the samples.
            label: The labels.
            batch_size: The number of samples by which the summed gradients are divided; those of all
                workers if not given, of which each is taken to have as many, in an asynchronous store
                those of this one.

        Returns:
            The loss of each sample, on the rank that has the last part; elsewhere ``None``.

        Raises:
            UsageError: The batch does not fit.
            MismatchError: Another rank has another batch.
            PeerError: Another rank does not do its part.
        """
        arrays = list(data) if isinstance(data, (list, tuple)) else [data]
        check_batch([*arrays, label])
        batch = forms_of([*arrays, label], self._micro_batches)
        forms = self._forms_of_outputs(batch[:-1])
        agreed = self._agree([*batch, *forms], [*arrays, label], batch_size)
        step = Step(
            self._net,
            self._rank,
            self._links,
            forms=forms,
            micro_batches=self._micro_batches,
            loss=self._loss,
            observer=self.observer,
            agreed=agreed,
        )
        self.observer.step()
        step.receive_all(self._actions)
        self._forget_gradients()
        pieces = [self._cut(array) for array in (*arrays, label)]
        for action in self._actions:
            *inputs, labels = [each[action.micro_batch] for each in pieces]
            step.carry_out(action, inputs, labels)
        agreed()
        if self.trainer is not None:
            self.trainer.step(self._divisor(label) if batch_size is None else batch_size)
        step.finish()
        losses = [step.losses[batch] for batch in sorted(step.losses)]
        return mx.nd.concat(*losses, dim=0) if losses else None

    @raises_mxnet_errors
    def gather(self) -> None:
        """Give all ranks of this worker all parameters, to evaluate or save the net; all must call this.

        Raises:
            UsageError: Some have no shape yet, which they get from the first batch.
            MismatchError: Another rank makes a step.
        """
        tell_numbers()
        if self._links is None:
            return
        unknown = [param.name for _, param in owners(self._net) if not shape_is_known(param)]
        if unknown:
            raise UsageError(
                f"gather() before the first step: nobody knows the shape of {unknown[0]} yet; call it "
                "after a step, or make the layers with in_units or in_channels"
            )
        self._links.broadcast(b"", 0)  # whoever makes a step meanwhile is told, whatever rank 0 owns
        for owner, param in owners(self._net):
            array = param.data().asnumpy() if self._rank == owner else None
            data = self._links.broadcast(b"" if array is None else array.tobytes(), owner)
            if array is None:
                values = np.frombuffer(data, param.dtype).reshape(shape_of(param))
                param.set_data(mx.nd.array(values, dtype=param.dtype))

    def _forms_of_outputs(self, data: Sequence[Form]) -> list[Form]:
        """Return the forms of all outputs for a batch; at the first of its form, parameters get values."""
        batch = tuple(data)
        if batch not in self._forms:
            self._forms[batch] = self._net.shape_all(batch)
            if self._parts_file:
                self._tell_parts(batch)
        return self._forms[batch]

    def _described(self, forms: Sequence[Form]) -> bytes:
        """Return what is equal on all ranks of the worker, for a batch and outputs of these forms."""
        return self._net.digest(forms, self._micro_batches) + self._rule

    def _agree(
        self, forms: Sequence[Form], values: Sequence[NDArray] = (), batch_size: int | None = None
    ) -> Callable[[], None]:
        """Begin to see that all ranks of the worker do the same; return what ends it."""
        if self._agreement is None:
            return lambda: None
        return self._agreement.begin(forms, values, batch_size)

    def _tell_parts(self, batch: Sequence[Form]) -> None:
        """Measure the parts, and write what they cost, for ``mpilaunch plan``."""
        graph = measure_parts(self._divisible(), batch)
        parts = Parts(graph, self._kind, self._micro_batches, measure_handling())
        Path(self._parts_file).write_bytes(write_parts(parts))
        self._parts_file = ""

    def _divisible(self) -> Net:
        """Return the net in the parts that can be on different ranks, all of them on one."""
        return self._net

    def _forget_gradients(self) -> None:
        for param in self._net.parameters(self._rank):
            if param.grad_req != "null":
                param.zero_grad()

    def _cut(self, array: NDArray) -> list[NDArray]:
        """Cut an array into micro-batches, which share its memory."""
        size = len(array) // self._micro_batches
        return [array[at : at + size] for at in range(0, size * self._micro_batches, size)]

    def _divisor(self, label: NDArray) -> int:
        workers = 1 if "async" in getattr(self._kvstore, "type", "") else self._kvstore.num_workers
        return len(label) * int(workers)


def _as_planned(parts: Sequence[Part], cut: Cut, size: int) -> list[Part]:
    """Return the parts on the ranks of the plan.

    Raises:
        UsageError: The plan is for other parts.
    """
    alone = Net([part._replace(rank=0) for part in parts], 1)
    cut.require(PLACEMENT, structure_of(alone), size)
    return [part._replace(rank=cut.rank_of[part.name]) for part in parts]


def opened(kvstore: Any) -> Any:
    """Return a store, given it or its name."""
    return mx.kv.create(kvstore) if isinstance(kvstore, str) else kvstore


def _told(optimizer: Any, options: dict[str, Any] | None) -> bytes:
    """Return what ranks compare of an optimizer: its name and its numbers."""
    if isinstance(optimizer, str):
        name, numbers = optimizer.lower(), dict(options or {})
    else:
        name, numbers = type(optimizer).__name__.lower(), vars(optimizer)
    plain = {key: value for key, value in numbers.items() if isinstance(value, (bool, int, float, str))}
    return repr((name, sorted(plain.items()))).encode()
