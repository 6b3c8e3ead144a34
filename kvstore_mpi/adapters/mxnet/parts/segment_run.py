"""One step of a net in parts: this rank's share of the schedule, and the messages between ranks.

Receives are begun before anything is computed, in the order in which they are needed, and sends as soon as
what they carry is there: both go on while this rank computes. This file must not know about parameters.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.bridge.arrays import array_of
from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.parts.segments import Form, Net
    from kvstore_mpi.comm.links import Links, UnderWay
    from kvstore_mpi.planner.pipelines.schedules import Action
    from kvstore_mpi.planner.pipelines.segments import Edge


class Observer(Protocol):
    """Told by the thread that trains what a rank does in a step."""

    def step(self) -> None:
        """A step begins."""

    def begins(self, action: Action) -> None:
        """What it takes is there, and MXNet will be asked for it."""

    def asked(self, action: Action, made: Callable[[], Sequence[NDArray]]) -> None:
        """MXNet has been asked for it; ``made`` returns the arrays that are computed then."""

    def waiting(self, what: Callable[[], str]) -> AbstractContextManager[None]:
        """Return what is entered while this waits for a message."""


class Unobserved:
    """Nobody is told."""

    def step(self) -> None:
        """Tell nobody."""

    def begins(self, action: Action) -> None:
        """Tell nobody."""

    def asked(self, action: Action, made: Callable[[], Sequence[NDArray]]) -> None:
        """Tell nobody."""

    def waiting(self, _what: Callable[[], str]) -> AbstractContextManager[None]:
        """Return what does nothing."""
        return nullcontext()


class _Kept(NamedTuple):
    """What a part keeps between forward and backward.

    Attributes:
        inputs: What came over each edge, by its number.
        head: Its output, or the loss of the last part.
    """

    inputs: dict[int, NDArray]
    head: NDArray


class _Travel(NamedTuple):
    """An output on its way forward, or its gradient on its way back."""

    edge: int
    micro_batch: int
    forward: bool


class Step:
    """One step of one rank."""

    def __init__(
        self,
        net: Net,
        rank: int,
        links: Links | None,
        *,
        forms: Sequence[Form],
        micro_batches: int,
        loss: Callable[[NDArray, NDArray], NDArray],
        observer: Observer,
        agreed: Callable[[], None],
    ) -> None:
        """Prepare a step.

        Args:
            net: All parts.
            rank: This rank's number in its worker.
            links: To the others, if there are any.
            forms: Of all outputs.
            micro_batches: Of the step.
            loss: Of the net's output and the labels, a number for each sample.
            observer: Told of what is computed, and waited for.
            agreed: Raises if another rank computes another step, of which nothing may ever come.
        """
        self._net, self._graph, self._rank, self._links = net, net.graph, rank, links
        self._forms = forms
        self._micro_batches = micro_batches
        self._loss = loss
        self._observer = observer
        self._agreed = agreed
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._local: dict[_Travel, NDArray] = {}
        self._coming: dict[_Travel, tuple[np.ndarray[Any, Any], UnderWay]] = {}
        self._leaving: list[tuple[_Travel, UnderWay]] = []
        self.losses: dict[int, NDArray] = {}

    def receive_all(self, actions: Sequence[Action]) -> None:
        """Begin to receive all that the actions need from other ranks."""
        for action in actions:
            for edge in self._before(action):
                if self._graph.crosses(edge):
                    form = self._forms[edge.source]
                    travel = _Travel(edge.number, action.micro_batch, action.forward)
                    array = np.empty(form.shape, form.dtype)
                    peer = self._graph.rank_of(edge.source if action.forward else edge.target)
                    future = self._need_links().receive(array, peer, self._tag(travel))
                    self._coming[travel] = (array, future)

    def carry_out(self, action: Action, data: Sequence[NDArray], label: NDArray) -> None:
        """Compute a part for one micro-batch.

        Args:
            action: Which, and whether forward or backward.
            data: The arrays of the micro-batch.
            label: Its labels.
        """
        if action.forward:
            self._forward(action, data, label)
        else:
            self._backward(action)

    def finish(self) -> None:
        """Wait until the others have what this rank has sent."""
        for travel, future in self._leaving:
            self._wait(travel, future)

    def _forward(self, action: Action, data: Sequence[NDArray], label: NDArray) -> None:
        number, batch, _ = action
        inputs: dict[int, NDArray] = {}
        arguments = []
        for of_batch, index in self._net.arguments(number):
            if not of_batch:
                inputs[index] = self._take(_Travel(index, batch, forward=True)).detach()
                _want_gradient(inputs[index])
            # Detached: MXNet forgets what has gone backward, and with it what other parts have recorded of
            # the same array.
            arguments.append(data[index].detach() if of_batch else inputs[index])
        _record_anew(self._net.unlearned(number))
        self._observer.begins(action)
        with mx.autograd.record():
            head = output = self._net.parts[number].block(*arguments)
            if number == self._graph.output:
                head = self.losses[batch] = _checked_loss(self._loss(output, label), len(label))
        self._observer.asked(action, lambda: [head])
        self._kept[number, batch] = _Kept(inputs, head)
        for edge in self._graph.out_of(number):
            self._give(edge, _Travel(edge.number, batch, forward=True), output)

    def _backward(self, action: Action) -> None:
        number, batch, _ = action
        kept = self._kept.pop((number, batch))
        gradients = [
            self._take(_Travel(edge.number, batch, forward=False)) for edge in self._graph.out_of(number)
        ]
        # In the order of the edges: the same sum wherever the parts are.
        total = gradients[0] if gradients else None
        for gradient in gradients[1:]:
            total = total + gradient
        if not self._net.goes_back(number):
            return
        self._observer.begins(action)
        kept.head.backward(total)
        made = {edge: _gradient_of(array) for edge, array in kept.inputs.items()}
        self._observer.asked(action, lambda: [*made.values(), *self._net.gradients(number)])
        for edge in self._graph.into(number):
            self._give(edge, _Travel(edge.number, batch, forward=False), made[edge.number])

    def _before(self, action: Action) -> list[Edge]:
        graph = self._graph
        return graph.into(action.segment) if action.forward else graph.out_of(action.segment)

    def _take(self, travel: _Travel) -> NDArray:
        if travel in self._local:
            return self._local.pop(travel)
        array, future = self._coming.pop(travel)
        self._wait(travel, future)
        return array_of(array)

    def _wait(self, travel: _Travel, future: UnderWay) -> None:
        what = partial(self._describe, travel)
        with self._observer.waiting(what):
            self._agreed()
            self._need_links().wait(future, what)

    def _give(self, edge: Edge, travel: _Travel, array: NDArray) -> None:
        if not self._graph.crosses(edge):
            self._local[travel] = array
            return
        peer = self._graph.rank_of(edge.target if travel.forward else edge.source)
        future = self._need_links().send(array.asnumpy(), peer, self._tag(travel))
        self._leaving.append((travel, future))

    def _tag(self, travel: _Travel) -> int:
        return (travel.edge * self._micro_batches + travel.micro_batch) * 2 + travel.forward

    def _need_links(self) -> Links:
        assert self._links is not None, "parts are on several ranks only where there are links"
        return self._links

    def _describe(self, travel: _Travel) -> str:
        edge = self._graph.edges[travel.edge]
        source, target = self._net.parts[edge.source], self._net.parts[edge.target]
        if travel.forward:
            return f"output {travel.micro_batch} of {source.name}, from rank {source.rank} to {target.rank}"
        return (
            f"gradient {travel.micro_batch} of {source.name}'s output, from rank {target.rank} to "
            f"{source.rank}"
        )


def _record_anew(arrays: Sequence[NDArray]) -> None:
    """Have what is recorded next know arrays without gradients, such as running means, by itself.

    MXNet forgets of these what has gone backward, and with it what other micro-batches have recorded of the
    same array: their own backward would fail.
    """
    if arrays:
        nothing = mx.nd.empty(1)
        mx.autograd.mark_variables(arrays, [nothing] * len(arrays), "null")


def _want_gradient(array: NDArray) -> None:
    """Attach a gradient, as ``attach_grad`` does but for its zeros: one backward writes it, or none."""
    mx.autograd.mark_variables(array, mx.nd.empty(array.shape, array.context, array.dtype))


def _checked_loss(loss: NDArray, num_samples: int) -> NDArray:
    """Return a loss that has a number for each sample, or for each of what a sample consists of.

    Raises:
        UsageError: It has not: gradients of a mean would be divided by the batch twice.
    """
    if not isinstance(loss, mx.nd.NDArray) or loss.ndim == 0 or len(loss) % num_samples:
        found = (
            f"an array of shape {loss.shape}" if isinstance(loss, mx.nd.NDArray) else type(loss).__name__
        )
        raise UsageError(
            f"the loss of {num_samples} samples is {found}: it must have a number for each sample, whose "
            "sum is divided by batch_size in step"
        )
    return loss


def _gradient_of(array: NDArray) -> NDArray:
    """Return what backward has written; zeros where its part does not use the array."""
    return array.grad if array._fresh_grad else mx.nd.zeros_like(array)  # noqa: SLF001  MXNet's only word
