"""Steps whose gradients wait for their common norm, where the workers update and have all sums.

What servers do in ``server/held_steps.py`` each worker does for itself: all have the same sums, and so come
to the same factor. A sum is held by an operation of the engine that ends when the last one of its step has
come; the update, which is queued behind it, then finds the scaled sum. This file must not know about
optimizers.
"""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.errors import DeadlineError, UsageError
from kvstore_mpi.records import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import Key

    Array = np.ndarray[Any, Any]


class Held(NamedTuple):
    """The sum of one key.

    Attributes:
        key: Which one.
        squares: Sum of the squares of its elements.
        scale: Multiplies it by a number.
        done: Ends the operation that holds it.
    """

    key: Key
    squares: float
    scale: Callable[[float], None]
    done: Done


class ClippedSteps:
    """The steps of one store, each of which has every key once."""

    def __init__(self, exchange: Exchange, max_norm: float, without: Iterable[Key]) -> None:
        """Scale what is held down to a norm; keys of ``without`` do not count, if they are pushed."""
        self.max_norm = max_norm
        self.without = {*without}
        self.frozen: frozenset[Key] = frozenset()  # others, which are never pushed
        self._exchange = exchange
        self._step: _Step | None = None
        self._watch = _Watch(exchange.worker.step_timeout)

    def hold(self, key: Key, array: NDArray, parts: Callable[[], list[Array]], rescale_grad: float) -> None:
        """Hold a sum until all of its step are there, and scale it.

        Args:
            key: Whose.
            array: What is queued to write it makes the sum, and what is queued to read it next finds it
                scaled.
            parts: Returns the arrays that the sum is in; called when it has been made.
            rescale_grad: By which the optimizer multiplies all gradients.

        Raises:
            UsageError: The key has been pushed, and another one of the step before has not; or it was never
                to be pushed.
        """
        check_frozen(key, self.frozen)
        if key in self.without or not self._exchange.stagings[key].buffer.size:
            return
        if self._step is None:
            self._step = _Step(self._awaited(), self.max_norm, rescale_grad, self._watch)
        step = self._step
        if key in step.pushed:
            raise pushed_again(key, step.missing)
        step.pushed.add(key)
        self._exchange.queue(partial(step.put, key, parts), mutable=[array])
        if len(step.pushed) == len(step.awaited):
            self._step = None
            step.close()

    def _awaited(self) -> set[Key]:
        """Return the keys that a step is to have; asked once in each, since it looks at all of them."""
        stagings = self._exchange.stagings.items()
        return {key for key, each in stagings if each.buffer.size} - self.without - self.frozen


def check_frozen(key: Key, frozen: Container[Key]) -> None:
    """Raise where a key is pushed whose parameter was frozen when the optimizer was set.

    Raises:
        UsageError: It is: steps are clipped without it, and servers do not wait for it.
    """
    if key in frozen:
        raise UsageError(
            f"key {key!r} is pushed, and clip_global_norm clips steps without it, as its parameter was "
            "frozen (grad_req 'null') when the optimizer was set: make a store and a Trainer anew where "
            "layers are unfrozen"
        )


def pushed_again(key: Key, missing: Iterable[Key]) -> UsageError:
    """Return the error of a key that is pushed twice in a step, which lacks others."""
    return UsageError(
        f"key {key!r} is pushed again before {_names(missing)}, without which the norm of the step is not "
        "known: push every key in each step, or name those that are never pushed in "
        "clip_global_norm(..., without=[...])"
    )


class _Watch:
    """Gives up steps that are never whole: who reads their weights would wait for ever.

    One timer serves all steps of its time, since to start a thread in each would cost milliseconds.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self._since: dict[_Step, float] = {}
        self._is_set = False

    def begin(self, step: _Step) -> None:
        """The first sum of a step has come."""
        with self._lock:
            self._since[step] = time.monotonic()
            if not self._is_set:
                self._set(self.timeout)

    def end(self, step: _Step) -> None:
        """A step is whole."""
        with self._lock:
            self._since.pop(step, None)  # it may have been given up

    def _set(self, seconds: float) -> None:
        self._is_set = True
        timer = threading.Timer(seconds, self._look)
        timer.daemon = True
        timer.start()

    def _look(self) -> None:
        with self._lock:
            now, self._is_set = time.monotonic(), False
            late = [step for step, since in self._since.items() if now - since >= self.timeout]
            for step in late:
                del self._since[step]
            if self._since:
                self._set(self.timeout + min(self._since.values()) - now)
        for step in late:
            step.give_up(self.timeout)


class _Step:
    """One step.

    Attributes:
        pushed: The keys whose pushes are queued.
        awaited: All keys that it is to have.
    """

    def __init__(self, awaited: set[Key], max_norm: float, rescale_grad: float, watch: _Watch) -> None:
        self.pushed: set[Key] = set()
        self.awaited = awaited
        self._max_norm, self._rescale_grad, self._watch = max_norm, rescale_grad, watch
        self._lock = threading.Lock()  # sums come on threads of the engine
        self._held: list[Held] = []
        self._closed = False

    @property
    def missing(self) -> set[Key]:
        """Keys that have not been pushed."""
        return self.awaited - self.pushed

    def put(self, key: Key, parts: Callable[[], list[Array]], done: Done) -> None:
        """Take a sum that has been made; in an operation of the engine."""
        arrays = parts()
        squares = math.fsum(float(np.sum(np.square(each, dtype=np.float64))) for each in arrays)

        def scale(factor: float) -> None:
            for each in arrays:
                np.multiply(each, factor, out=each, casting="unsafe")

        with self._lock:
            self._held.append(Held(key, squares, scale, done))
            if len(self._held) == 1:
                self._watch.begin(self)
        self._end_if_whole()

    def close(self) -> None:
        """All keys have been pushed."""
        with self._lock:
            self._closed = True
        self._end_if_whole()

    def _end_if_whole(self) -> None:
        with self._lock:
            if not self._closed or len(self._held) < len(self.pushed):
                return
            held, self._held = self._held, []
        self._watch.end(self)
        # Exact, so that it does not depend on the order in which sums have come.
        norm = math.sqrt(math.fsum(each.squares for each in held)) * abs(self._rescale_grad)
        for each in held:
            # What is no number stays so, and shows in the weights.
            if norm > self._max_norm:
                each.scale(self._max_norm / norm)
            each.done(None)

    def give_up(self, seconds: float) -> None:
        """End what is held with an error."""
        with self._lock:
            held, self._held = self._held, []
        missing = self.awaited - {each.key for each in held}
        error = DeadlineError(
            f"a step whose gradient is clipped by its norm waits for {_names(missing)} since "
            f"{seconds:g} s: push every key in each step, when all gradients are being computed, or "
            "name those that are never pushed in clip_global_norm(..., without=[...])"
        )
        for each in held:
            each.done(error)


def own_values(out: list[Rows]) -> list[Array]:
    """Give a sum of rows values that may be scaled; return them."""
    out[:] = [Rows(ids, np.array(values)) for ids, values in out]
    return [values for _, values in out]


def _names(keys: Iterable[Key]) -> str:
    return ", ".join(map(repr, sorted(keys, key=str)))
