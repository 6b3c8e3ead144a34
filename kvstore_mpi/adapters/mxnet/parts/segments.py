"""A net in parts: Gluon blocks, which rank of a worker has each, and what travels between them.

This file must not know how anything travels, and when.
"""

from __future__ import annotations

import re
from collections import defaultdict
from hashlib import sha256
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.exchange.gluon_parameters import shape_of
from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.planner.pipelines.segments import Segment, SegmentGraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mxnet.gluon import HybridBlock
    from mxnet.gluon.parameter import Parameter

_BATCH = re.compile("data([0-9]*)", re.ASCII)
"""Names of the arrays of a batch among inputs: ``data`` is the first, ``data1`` the second."""


class Part(NamedTuple):
    """A part of a net that one rank computes at a stretch.

    Attributes:
        name: What other parts and messages call it.
        block: Computes it; of one output.
        rank: The rank of the worker that has it, from 0.
        inputs: Its arguments: names of parts, or ``data``, ``data1``, ... for the arrays of the batch.
    """

    name: str
    block: HybridBlock
    rank: int
    inputs: tuple[str, ...] = ("data",)


def check_given(parts: Sequence[Any]) -> None:
    """See that what a user gives as parts are some, as far as no net is needed to tell.

    Raises:
        UsageError: One is no ``Part``, or its name or its rank are not what they must be.
    """
    for number, part in enumerate(parts):
        if not isinstance(part, Part):
            raise UsageError(
                f"parts[{number}] is a {type(part).__name__}: each must be a kvstore_mpi.mxnet.Part, such "
                "as Part('top', block, 1, ('bottom',))"
            )
        if not isinstance(part.name, str):
            raise UsageError(f"parts[{number}]: the name of a part is a text, and not {part.name!r}")
        if not isinstance(part.rank, Integral):
            raise UsageError(
                f"part {part.name}: its rank is a whole number, counted from 0, and not {part.rank!r}"
            )


class Form(NamedTuple):
    """What an output looks like for one micro-batch."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of it."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


class Net:
    """Parts in the order of a graph.

    Attributes:
        graph: Who needs whose output.
        parts: In the order of the graph's segments.
    """

    def __init__(self, parts: Sequence[Part], num_ranks: int) -> None:
        """Check that the parts make a net.

        Raises:
            UsageError: They do not, or a weight is on two ranks.
        """
        for part in parts:
            if not isinstance(part.block, mx.gluon.HybridBlock):
                raise UsageError(
                    f"part {part.name} is a {type(part.block).__name__}, and shapes are known of a "
                    "HybridBlock only: make it one"
                )
            if isinstance(part.inputs, str):
                raise UsageError(
                    f"part {part.name}: its inputs are a tuple of names: ({part.inputs!r},), with a comma"
                )
            if _BATCH.fullmatch(part.name):
                raise UsageError(f"a part cannot be called {part.name}, which stands for the batch")
        self.graph = SegmentGraph([_segment(part) for part in parts], num_ranks)
        by_name = {part.name: part for part in parts}
        self.parts = tuple(by_name[segment.name] for segment in self.graph.segments)
        for part in parts:
            part.block.hybridize()  # without static memory, which two micro-batches would share
        # Kept: to collect them takes Gluon 0.3 ms for a few layers, and each micro-batch asks for them.
        self._learned = [tuple(part.block.collect_params().values()) for part in self.parts]

    def arguments(self, number: int) -> list[tuple[bool, int]]:
        """Return for each argument of a part whether it is of the batch, and which array or edge it is."""
        edges = iter(self.graph.into(number))
        found = [_BATCH.fullmatch(name) for name in self.parts[number].inputs]
        return [(True, int(each[1] or 0)) if each else (False, next(edges).number) for each in found]

    def goes_back(self, number: int) -> bool:
        """Tell whether a part has anything to differentiate: what it learns, or another's output."""
        learns = any(param.grad_req != "null" for param in self._learned[number])
        return learns or bool(self.graph.into(number))

    def gradients(self, number: int) -> list[mx.nd.NDArray]:
        """Return the arrays to which the backward pass of a part adds its parameters' gradients."""
        return [param.grad() for param in self._learned[number] if param.grad_req != "null"]

    def unlearned(self, number: int) -> list[mx.nd.NDArray]:
        """Return the arrays of a part's parameters that no gradient is computed of."""
        return [param.data() for param in self._learned[number] if param.grad_req == "null"]

    def parameters(self, rank: int) -> list[Parameter]:
        """Return what a rank learns and keeps, in an order that is the same on all owners."""
        mine = [learned for part, learned in zip(self.parts, self._learned) if part.rank == rank]
        # Not by name, which begins with a number that counts what a process has made before.
        by_name = {param.name: param for learned in mine for param in learned}
        return list(by_name.values())

    def shape_all(self, batch: Sequence[Form]) -> list[Form]:
        """Find the forms of all outputs for a micro-batch, and give all parameters their values.

        Every rank makes all of them, in one order, so that those with one seed have what a single process
        would have.

        Args:
            batch: The forms of the arrays of a micro-batch.

        Raises:
            UsageError: A part has several outputs, or takes what the batch does not have.
        """
        forms: list[Form] = []
        for number, part in enumerate(self.parts):
            arguments = self.arguments(number)
            beyond = [index for of_batch, index in arguments if of_batch and index >= len(batch)]
            if beyond:
                raise UsageError(
                    f"part {part.name} takes data{beyond[0]}, and the batch has {len(batch)} arrays"
                )
            inputs = [
                batch[index] if of_batch else forms[self.graph.edges[index].source]
                for of_batch, index in arguments
            ]
            forms.append(_shape(part, inputs))
        return forms

    def digest(self, forms: Sequence[Form], micro_batches: int) -> bytes:
        """Return 32 bytes that are equal where nets, plans and batches are."""
        params = [
            [
                (param.name.rpartition("_")[2], shape_of(param))
                for param in part.block.collect_params().values()
            ]
            for part in self.parts
        ]
        told = [(part.name, part.rank, part.inputs) for part in self.parts]
        return sha256(repr((told, params, list(forms), micro_batches)).encode()).digest()


def check_micro_batches(micro_batches: int) -> None:
    """Raise where a batch cannot be cut so.

    Raises:
        UsageError: It is no whole number.
    """
    if type(micro_batches) is not int:
        raise UsageError(f"micro_batches must be a whole number, not {micro_batches!r}")


def check_batch(arrays: Sequence[Any]) -> None:
    """Raise where arrays of a batch are none of MXNet's.

    Raises:
        UsageError: One is another library's.
    """
    other = next((type(each).__name__ for each in arrays if not isinstance(each, mx.nd.NDArray)), None)
    if other is not None:
        raise UsageError(f"a batch is made of arrays of MXNet, and not of {other}: use mx.nd.array")


def check_dense(params: Sequence[Parameter]) -> None:
    """Refuse parameters whose gradients cannot be added up over micro-batches.

    Raises:
        UnsupportedError: One is row-sparse.
    """
    sparse = [param.name for param in params if not {param._stype, param._grad_stype} <= {"default"}]  # noqa: SLF001
    if sparse:
        raise UnsupportedError(f"parts of a net have dense parameters only, and {sparse[0]} is row-sparse")


def forms_of(arrays: Sequence[Any], micro_batches: int) -> list[Form]:
    """Return the forms of a micro-batch's arrays.

    Raises:
        UsageError: A batch of this size cannot be divided so.
    """
    sizes = {array.shape[0] for array in arrays}
    if len(sizes) != 1:
        raise UsageError(f"the arrays of a batch have different numbers of samples: {sorted(sizes)}")
    [size] = sizes
    if size % micro_batches or not size:
        raise UsageError(
            f"a batch of {size} cannot be cut into {micro_batches} micro-batches of equal size"
        )
    return [Form((size // micro_batches, *array.shape[1:]), np.dtype(array.dtype).name) for array in arrays]


def _segment(part: Part) -> Segment:
    inputs = tuple(name for name in part.inputs if not _BATCH.fullmatch(name))
    return Segment(part.name, part.rank, inputs, tuple(part.block.collect_params()))


def _shape(part: Part, inputs: Sequence[Form]) -> Form:
    """Return the form of a part's output; give its parameters the values that waited for their shapes."""
    names = [f"input{index}" for index in range(len(inputs))]
    symbol = part.block(*map(mx.sym.var, names))
    if isinstance(symbol, (list, tuple)) or len(symbol.list_outputs()) != 1:
        raise UsageError(f"part {part.name} has several outputs: make it several parts, or join them")
    of_arguments, shapes, of_states = symbol.infer_shape(
        **{name: form.shape for name, form in zip(names, inputs)}
    )
    _, dtypes, _ = symbol.infer_type(**{name: form.dtype for name, form in zip(names, inputs)})
    # By the symbol, and not by the block's own infer_shape, which recurrent layers cannot do without
    # states.
    known = dict(zip(symbol.list_arguments(), of_arguments))
    known |= dict(zip(symbol.list_auxiliary_states(), of_states))
    for param in part.block.collect_params().values():
        if param._deferred_init:  # noqa: SLF001  as gluon.Trainer does
            param.shape = known.get(param.name, param.shape)
            param._finish_deferred_init()  # noqa: SLF001  likewise
    return Form(tuple(shapes[0]), np.dtype(dtypes[0]).name)


def owners(net: Net) -> list[tuple[int, Parameter]]:
    """Return all parameters of a net, each once and with its rank, in one order on all ranks."""
    found: dict[int, list[Parameter]] = defaultdict(list)
    for rank in range(net.graph.num_ranks):
        found[rank] += net.parameters(rank)
    return [(rank, param) for rank, params in found.items() for param in params]
