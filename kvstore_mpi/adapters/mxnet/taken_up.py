"""Gradients that were computed before their worker had the weights of a job that goes on.

A Trainer makes its keys in its first step, behind the first backward pass. What the store gives it then,
where a job is resumed or a client comes later than others, is not what those gradients belong to. MXNet
marks each weight whose gradient is new, and by this mark they are known. This file must not know how
anything travels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.interfaces import KVWorker
    from kvstore_mpi.records import Key


class _Overwritten(NamedTuple):
    """Weights that had a gradient when the store wrote its value to them."""

    own: NDArray
    weights: list[NDArray]


class TakenUp:
    """The weights of one store whose first push may be of a gradient of other weights."""

    def __init__(self, worker: KVWorker, mode: str) -> None:
        """Begin without keys, in a store of this mode."""
        self._rank, self._is_async = worker.rank, mode == "async"
        self._goes_on = mode in worker.takes_up
        self._overwritten: dict[Key, _Overwritten] = {}

    def overwrite(self, key: Key, own: NDArray, weights: Sequence[NDArray]) -> None:
        """A key is new, and its value is about to be written to weights.

        Args:
            key: Which one.
            own: The value that this worker has given, which may be one of the weights.
            weights: One for each device.
        """
        marked = [each for each in weights if self._goes_on and each._fresh_grad]  # noqa: SLF001  as Gluon
        if marked:
            _mark(marked, fresh=False)  # a backward pass from now on marks them again
            self._overwritten[key] = _Overwritten(own if self._is_async else own.copy(), marked)

    def leaves_out(self, key: Key) -> bool:
        """Tell whether a push must not count; asked before each.

        In an asynchronous store nobody waits for it. There the values are not compared: all ranks of a
        client have to come to the same.

        Raises:
            UsageError: It is one of a round for which others wait.
        """
        if key not in self._overwritten:
            return False
        own, weights = self._overwritten.pop(key)
        if all(each._fresh_grad for each in weights):  # noqa: SLF001  as Gluon
            return False
        _mark(weights, fresh=True)  # a Trainer looks at the marks behind its pushes
        if not self._is_async and (own.asnumpy() != weights[0].asnumpy()).any():
            raise UsageError(
                f"worker {self._rank}: key {key!r}: this job is resumed, and its first gradient was "
                "computed with the script's weights, before the saved ones were read: call "
                "kvstore_mpi.mxnet.take_up(trainer) before the first recorded pass (and net(data) before "
                "that, if parameters have no shape yet)"
            )
        return self._is_async


class Joined:
    """The weights of a loosely coupled client that its center has replaced, until its next step."""

    def __init__(self, *, goes_on: bool) -> None:
        """Begin without weights; ``goes_on``: a center may be another than what this worker gives."""
        self._goes_on = goes_on
        self._weights: list[NDArray] = []

    def add(self, weights: Sequence[NDArray]) -> None:
        """A center has been written to the arrays of a parameter that has a gradient."""
        if self._goes_on:
            _mark(weights, fresh=False)  # a backward pass from now on marks them again
            self._weights += weights

    def leave_out(self, weights: Iterable[NDArray]) -> bool:
        """Tell whether the gradients of a step are of weights that are gone; asked once for each.

        No pass has been made since, on any rank of the client: all of them come to the same. Nobody waits
        for a gradient of one client alone, and so it is an error in no mode.

        Args:
            weights: Of all parameters that have a gradient; if so, none of these counts any more.
        """
        joined, self._weights = self._weights, []
        if not joined or any(each._fresh_grad for each in joined):  # noqa: SLF001  as Gluon
            return False
        _mark(weights, fresh=False)
        return True


def _mark(weights: Iterable[NDArray], *, fresh: bool) -> None:
    for each in weights:
        each._fresh_grad = fresh  # noqa: SLF001  as Gluon
