"""Pipelines: a chain of layers, cut into stages that are on the ranks of a worker."""

from __future__ import annotations

import operator
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.adapters.mxnet.decisions import decided_by_first
from kvstore_mpi.adapters.mxnet.exchange.own_worker import asked_parts, own_links, planned_cut
from kvstore_mpi.adapters.mxnet.parts.message_costs import measure_link
from kvstore_mpi.adapters.mxnet.parts.part_costs import measure_parts, structure_of
from kvstore_mpi.adapters.mxnet.parts.part_trainer import PartTrainer, opened
from kvstore_mpi.adapters.mxnet.parts.segments import Net, Part, check_micro_batches, forms_of
from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cluster import Device
from kvstore_mpi.planner.cuts import PIPELINE
from kvstore_mpi.planner.pipelines.schedules import one_f_one_b
from kvstore_mpi.planner.pipelines.stages import Layer, Stages, cut_at, partition
from kvstore_mpi.planner.workers import layers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.parts.segments import Form
    from kvstore_mpi.planner.cuts import Cut

AUTO = "auto"


class PipelineTrainer(PartTrainer):
    """Trains a ``HybridSequential`` as a pipeline: each rank of a worker has a stage of its layers.

    Micro-batches follow each other through the stages by 1F1B, so that stage i of S holds S - i of them at
    most; their gradients are added up and pushed once. With one micro-batch the result is that of a single
    process to the bit; with several, sums over a batch are made in another order, and BatchNorm takes the
    statistics of each micro-batch.

    Example::

        kv = mx.kv.create("sync-mpi")          # mpilaunch --model-parallel 2
        trainer = PipelineTrainer(net, loss, "sgd", {"learning_rate": 0.1}, kvstore=kv, micro_batches=4)
        for images, labels in loader:          # the same on all ranks of a worker
            trainer.step(images, labels)
        trainer.gather()
        net.save_parameters("net.params")

    Attributes:
        stages: Where the layers are cut, and what each stage costs; with given stages, counted in layers.
    """

    _kind = PIPELINE

    @raises_mxnet_errors
    def __init__(
        self,
        net: mx.gluon.nn.HybridSequential,
        loss: Callable[[NDArray, NDArray], NDArray],
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        *,
        kvstore: Any,
        stages: Sequence[int] | str = AUTO,
        micro_batches: int = 1,
        sample: NDArray | None = None,
        memory_limit: int = 0,
    ) -> None:
        """Make a trainer; all ranks of all workers must, with the same arguments.

        Args:
            net: The layers, initialised; each rank keeps the weights of all, and gradients and what the
                optimizer needs of its own.
            loss: Of the net's output and the labels, a number for each sample.
            optimizer: As of ``gluon.Trainer``.
            optimizer_params: As of ``gluon.Trainer``.
            kvstore: A store without keys, or its name; in one of MXNet's own a worker is one rank.
            stages: The first layer of each stage but the first; ``auto`` takes those of the plan, with
                ``mpilaunch --plan``, or else measures the layers on rank 0 and takes the best cut.
            micro_batches: Equal parts of a batch.
            sample: A batch, for ``auto`` without a plan; its values do not matter.
            memory_limit: For ``auto``, bytes that a stage may need; 0 for no limit.

        Raises:
            UsageError: There are more ranks than layers, layers that share a weight are on two, stages do
                not fit into memory, the plan is for another net, or an argument does not fit.
        """
        layers = self._layers = _layers_of(net)
        check_micro_batches(micro_batches)
        kvstore = opened(kvstore)
        size: int = getattr(kvstore, "model_parallel", 1)
        if size == 1 and asked_parts():
            stages = ()  # mpilaunch plan asks what layers cost on one rank
        if stages == AUTO and size > 1 and (cut := planned_cut()) is not None:
            stages = _planned_stages(layers, cut, size)
        if isinstance(stages, str):
            if stages != AUTO or sample is None:
                raise UsageError(f"stages={stages!r} must be numbers of layers, or {AUTO!r} with a sample")
            [form] = forms_of([sample], micro_batches)
            self.stages = _best_stages(layers, kvstore, form, micro_batches, memory_limit)
        else:
            self.stages = _given_stages(layers, stages, size, micro_batches)
        super().__init__(
            _parts_of(layers, self.stages),
            loss,
            optimizer,
            optimizer_params,
            kvstore=kvstore,
            micro_batches=micro_batches,
            schedule=one_f_one_b(size, micro_batches),
        )
        if sample is not None:
            self._get_ready(forms_of([sample], micro_batches))

    def _get_ready(self, batch: Sequence[Form]) -> None:
        """Give parameters their values now, before the script draws other random numbers."""
        self._agree([*batch, *self._forms_of_outputs(batch)])

    def _divisible(self) -> Net:
        return _net_of(self._layers)


def _layers_of(net: mx.gluon.nn.HybridSequential) -> list[mx.gluon.HybridBlock]:
    if not isinstance(net, mx.gluon.nn.HybridSequential):
        raise UsageError(
            f"a pipeline is made of a HybridSequential, and not of a {type(net).__name__}: put the net's "
            "parts into one, or give them to PartTrainer"
        )
    return list(net)


def _counted(layer: mx.gluon.HybridBlock) -> Layer:
    return Layer(layer.name, 1.0, parameters=tuple(layer.collect_params()))


def _net_of(layers: Sequence[mx.gluon.HybridBlock]) -> Net:
    """Return the layers as parts of their own, on one rank; one that is there twice has two names."""
    uses: Counter[str] = Counter()
    parts: list[Part] = []
    for layer in layers:
        uses[layer.name] += 1
        name = layer.name if uses[layer.name] == 1 else f"{layer.name}#{uses[layer.name]}"
        parts.append(Part(name, layer, 0, (parts[-1].name,) if parts else ("data",)))
    return Net(parts, 1)


def _planned_stages(layers: Sequence[mx.gluon.HybridBlock], cut: Cut, size: int) -> tuple[int, ...]:
    """Return the stages of the plan.

    Raises:
        UsageError: It is for another net.
    """
    net = _net_of(layers)
    cut.require(PIPELINE, structure_of(net), size)
    return cut.bounds([part.name for part in net.parts])


def _given_stages(
    layers: Sequence[mx.gluon.HybridBlock], stages: Sequence[int], size: int, micro_batches: int
) -> Stages:
    try:
        stages = [operator.index(stage) for stage in stages]
    except TypeError:
        raise UsageError(f"stages={stages!r} must be a list of numbers of layers, or {AUTO!r}") from None
    if len(stages) != size - 1:
        raise UsageError(
            f"the stages {list(stages)} are {len(stages) + 1}, and a worker has {size} ranks: give "
            f"{size - 1} numbers of layers, or --model-parallel {len(stages) + 1}"
        )
    return cut_at([_counted(layer) for layer in layers], stages, micro_batches=micro_batches)


def _parts_of(layers: Sequence[mx.gluon.HybridBlock], stages: Stages) -> list[Part]:
    bounds = (0, *stages.bounds, len(layers))
    parts = []
    for rank, (first, last) in enumerate(pairwise(bounds)):
        block = mx.gluon.nn.HybridSequential()
        block.add(*layers[first:last])
        parts.append(Part(f"stage{rank}", block, rank, (f"stage{rank - 1}",) if rank else ("data",)))
    return parts


def _best_stages(
    layers: Sequence[mx.gluon.HybridBlock], kvstore: Any, form: Form, micro_batches: int, memory_limit: int
) -> Stages:
    """Let all measure, and rank 0 of worker 0 decide for all: the times of others differ from its own.

    Raises:
        UsageError: There is no cut; on all ranks.
    """
    size: int = getattr(kvstore, "model_parallel", 1)
    links = own_links() if size > 1 else None
    # Before anything is measured: what no times can mend, all ranks see for themselves.
    without_times = partition([_counted(layer) for layer in layers], size)
    if links is None:
        return without_times
    net = _net_of(layers)
    net.shape_all([form])
    link, _ = measure_link(links)
    # At once: what ranks share, such as the memory of a host, slows them as it does when they train.
    measured = layers_of(measure_parts(net, [form]))
    devices = [Device(f"rank {rank}", memory_bytes=memory_limit) for rank in range(size)]
    bounds = decided_by_first(
        lambda: partition(measured, size, micro_batches=micro_batches, link=link, devices=devices).bounds,
        kvstore.rank,
        links,
    )
    return cut_at(measured, bounds, micro_batches=micro_batches)
