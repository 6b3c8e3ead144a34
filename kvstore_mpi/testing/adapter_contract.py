"""What the store of any framework must do over any worker, fake or real, alone or with others.

Values are NumPy arrays here; ``AdapterUnderTest`` says how they become the framework's and come back, and
``mxnet_contract.py`` is that of MXNet. Each check is a generator that one worker runs; ``yield kv`` means
"go on when all workers have come here", and ``yield None`` "in a process with several workers, let the
others catch up". ``run_together`` runs all workers of a fake group in one process and one thread,
``run_alone`` this process's worker of a real job. Expected values are computed from ``kv.rank`` and
``kv.num_workers``.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from kvstore_mpi.errors import UsageError

Array = np.ndarray[Any, Any]

SHAPE = (5, 3)
LARGE = (3, 40_001)
"""More than two slices, and no multiple of one."""

FLOATS = ("float16", "float32", "float64")

_ENDED: Any = object()


class Store(Protocol):
    """What the contract needs of a store; keys and values come alone or in lists, as in MXNet's KVStore."""

    @property
    def rank(self) -> int:
        """Number of this worker among all."""
        ...

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        ...

    def init(self, key: Any, value: Any) -> None:
        """Create keys with the values of rank 0."""
        ...

    def broadcast(self, key: Any, value: Any, out: Any) -> None:
        """Create keys with the values of rank 0, and copy those to ``out``."""
        ...

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add values to the sum over devices and workers."""
        ...

    def pull(self, key: Any, out: Any = None, priority: int = 0) -> None:
        """Copy the keys' values to ``out``."""
        ...

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push values, and copy the new ones to ``out``, or back."""
        ...

    def barrier(self) -> None:
        """Wait for all workers."""
        ...


class AdapterUnderTest(ABC):
    """One worker's side of a framework's adapter.

    Attributes:
        dtypes: NumPy names of the element types whose arrays can be pushed.
    """

    dtypes: Sequence[str]

    @abstractmethod
    def open_store(self) -> Store:
        """Open the worker's next store."""

    @abstractmethod
    def array(self, value: Array, device: int = 0) -> Any:
        """Make the framework's array of this value, shape and type, on one of the host's devices.

        Slices of it share its memory, and ``array[:] = number`` writes to it.
        """

    @abstractmethod
    def numpy(self, array: Any) -> Array:
        """Return an array's value when all operations on it are over."""

    def full(
        self, value: float, shape: tuple[int, ...] = SHAPE, dtype: str = "float32", device: int = 0
    ) -> Any:
        """Make an array that holds one value."""
        return self.array(np.full(shape, value, dtype), device)

    def expect(self, array: Any, value: Any) -> None:
        """Compare an array with what it must be, exactly."""
        found = self.numpy(array)
        np.testing.assert_array_equal(found, np.broadcast_to(value, found.shape))


Turn = Store | None
Check = Callable[[AdapterUnderTest], Iterator[Turn]]
_Worker = TypeVar("_Worker")

CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Add a check to those that every adapter must pass."""
    CHECKS.append(function)
    return function


def run_together(
    one: Callable[[_Worker], Iterator[Turn]],
    workers: Sequence[_Worker],
    settle: Callable[[], None] = lambda: None,
) -> None:
    """Run a check for all workers of a job, in turns between its rendezvous.

    Args:
        one: The check.
        workers: What it is given for each of them.
        settle: Waits for the framework's operations; called after each turn if there are several workers.
    """
    for turns in itertools.zip_longest(*(one(worker) for worker in workers), fillvalue=_ENDED):
        if len(workers) > 1:
            settle()
        assert _ENDED not in turns, "the workers take different ways"


def run_alone(one: Callable[[_Worker], Iterator[Turn]], worker: _Worker) -> None:
    """Run a check for this process's worker; the others run it in their processes."""
    for kv in one(worker):
        if kv is not None:
            kv.barrier()


def refused(kind: Any, words: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Make sure that a call raises an error of this kind that says this."""
    said = "nothing"
    try:
        call(*args, **kwargs)
    except kind as error:
        said = str(error)
    assert words in said, f"{words!r} was to be said, but {said} was"


def sum_of_ranks(kv: Store) -> int:
    """Return the sum of ``rank + 1`` over all workers."""
    return kv.num_workers * (kv.num_workers + 1) // 2


@check
def init_takes_rank_zeros_value(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """Init and broadcast give every worker what rank 0 has."""
    kv = adapter.open_store()
    kv.init("a", adapter.full(kv.rank + 7))
    out = adapter.full(0)
    kv.pull("a", out=out)
    first, second = adapter.full(kv.rank + 8), adapter.full(0)
    kv.broadcast("b", first, out=[first, second])
    yield kv
    adapter.expect(out, 7)
    adapter.expect(first, 8)
    adapter.expect(second, 8)


@check
def every_dtype_is_summed(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """Pushpull sums each dtype over workers and devices; push and pull do the same."""
    kv = adapter.open_store()
    outs = {}
    for dtype in adapter.dtypes:
        kv.init(dtype, adapter.full(0, dtype=dtype))
        values = [adapter.full(kv.rank + 1, dtype=dtype), adapter.full(1, dtype=dtype, device=1)]
        outs[dtype] = [adapter.full(0, dtype=dtype, device=device) for device in (0, 1, 0)]
        kv.pushpull(dtype, values, out=outs[dtype][:2])
        kv.push(dtype, values)
        kv.pull(dtype, out=outs[dtype][2])
    yield kv
    for dtype, arrays in outs.items():
        for out in arrays:
            assert adapter.numpy(out).dtype == np.dtype(dtype)
            adapter.expect(out, sum_of_ranks(kv) + kv.num_workers)


@check
def large_arrays_and_integers_are_exact(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """Every element of an array of several slices has its place, and 64-bit integers all their bits."""
    kv = adapter.open_store()
    pattern = np.arange(np.prod(LARGE)).reshape(LARGE)
    floats, integers = adapter.array(pattern.astype("float32")), adapter.array(pattern + 2**60)
    kv.init(["f", "i"], [floats, integers])
    kv.pushpull(["f", "i"], [floats, integers])
    yield kv
    adapter.expect(floats, (pattern.astype(np.float32) * kv.num_workers))
    adapter.expect(integers, (pattern + 2**60) * kv.num_workers)


@check
def lists_of_keys_and_devices(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """Keys come alone or in lists, repeated or not, strings or integers of 64 bits."""
    kv, full = adapter.open_store(), adapter.full
    keys = [3, np.int64(2**40), 5]
    kv.init(keys, [full(0)] * 3)
    kv.push(keys, [[full(1), full(2)], [full(3)], full(4)])
    outs = [[full(0), full(0)], [full(0)], full(0)]
    kv.pull(keys, out=outs)
    kv.push([5, 3, 5], [full(10), full(20), full(30)])
    again = [full(0) for _ in range(3)]
    kv.pull([5, 5, 3], out=again)
    yield kv
    for out, total in ((outs[0][0], 3), (outs[0][1], 3), (outs[1][0], 3), (outs[2], 4)):
        adapter.expect(out, total * kv.num_workers)
    for out, total in zip(again, (40, 40, 20)):
        adapter.expect(out, total * kv.num_workers)


@check
def results_may_overlap_values(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """In place, without out, the same array several times, slices of one array."""
    kv = adapter.open_store()
    weight = adapter.full(1)
    kv.broadcast("a", weight, out=[weight, weight])
    kv.pushpull("a", weight)
    kv.pushpull("a", [weight, weight], out=[weight] * 3)
    whole = adapter.array(np.arange(4, dtype="float32").reshape(4, 1))
    kv.init("rows", adapter.full(0, (2, 1)))
    kv.pushpull("rows", [whole[0:2], whole[1:3]], out=[whole[2:4], whole[0:2]])
    yield kv
    adapter.expect(weight, 2 * kv.num_workers**2)
    adapter.expect(whole, kv.num_workers * np.array([[1], [3], [1], [3]]))


@check
def gradients_stay_as_they_are(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """Neither push nor pushpull with out changes what was pushed."""
    kv = adapter.open_store()
    kv.init("a", adapter.full(0))
    gradient, out = adapter.full(kv.rank + 1), adapter.full(0)
    kv.pushpull("a", gradient, out=out)
    kv.push("a", gradient)
    kv.pull("a", out=out)
    yield kv
    adapter.expect(gradient, kv.rank + 1)
    adapter.expect(out, sum_of_ranks(kv))


@check
def pushed_values_may_change_at_once(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """A value counts as it was at the call, and a later call's value does not overtake it."""
    kv = adapter.open_store()
    kv.init("a", adapter.full(0))
    value, outs = adapter.full(0), []
    for step in range(5):
        value[:] = step + kv.rank
        outs.append(adapter.full(-1))
        kv.pushpull("a", value, out=outs[-1])
        value[:] = -100
    yield kv
    for step, out in enumerate(outs):
        adapter.expect(out, step * kv.num_workers + sum_of_ranks(kv) - kv.num_workers)


@check
def workers_may_order_keys_differently(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """Keys are matched by name: each worker may go through them in its own order."""
    kv, full = adapter.open_store(), adapter.full
    keys = [f"k{index}" for index in range(8)]
    for key in keys:
        kv.init(key, full(0))
    outs = {key: full(0) for key in keys}
    order = keys if kv.rank % 2 else keys[::-1]
    for key in order[kv.rank :] + order[: kv.rank]:
        kv.pushpull(key, full(int(key[1:]) + kv.rank), out=outs[key], priority=-int(key[1:]))
    yield kv
    for key in keys:
        adapter.expect(outs[key], int(key[1:]) * kv.num_workers + sum_of_ranks(kv) - kv.num_workers)


@check
def a_list_is_pushed_before_any_of_it_is_pulled(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """Keys that share an array get the sums of what was in it before the call."""
    kv, full = adapter.open_store(), adapter.full
    kv.init([1, 2, 3], [full(0)] * 3)
    shared = [full(kv.rank + 1), full(0, device=1)]
    kv.pushpull([1, 2, 3], [shared] * 3)
    yield kv
    for array in shared:
        adapter.expect(array, sum_of_ranks(kv))


@check
def empty_and_zero_dimensional_arrays(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """Arrays without elements and without dimensions are keys like others."""
    kv = adapter.open_store()
    empty, point, out = adapter.full(0, (0, 3)), adapter.full(1, ()), adapter.full(0, ())
    kv.init(["empty", "point"], [empty, point])
    kv.pushpull("empty", empty)
    kv.pushpull("point", point, out=out)
    kv.push("empty", empty)
    kv.pull("empty", out=empty)
    yield kv
    assert adapter.numpy(empty).shape == (0, 3)
    assert adapter.numpy(out).shape == ()
    adapter.expect(out, kv.num_workers)


@check
def pulls_convert_between_floats(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """``pull`` fills arrays of other floating-point types than the key's."""
    kv, full = adapter.open_store(), adapter.full
    kv.init(list(FLOATS), [full(2.5, dtype=dtype) for dtype in FLOATS])
    yield kv
    outs = [(stored, full(wanted == stored, dtype=wanted)) for stored in FLOATS for wanted in FLOATS]
    for stored, out in outs:
        kv.pull(stored, out=out)
    yield kv
    for _, out in outs:
        adapter.expect(out, 2.5)
    assert [adapter.numpy(out).dtype.name for _, out in outs] == [*FLOATS] * 3
    refused(UsageError, "int32", kv.pull, "float32", out=full(0, dtype="int32"))


@check
def flags_travel(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """Arrays of ``bool`` are initialised, broadcast and pulled; they have no sum."""
    kv = adapter.open_store()
    flags = np.arange(15).reshape(SHAPE) % 3 == kv.rank % 3
    out, sent = adapter.full(0, dtype="bool"), adapter.array(flags)
    kv.init("a", sent)
    kv.pull("a", out=out)
    kv.broadcast("b", sent, out=sent)
    yield kv
    for array in (out, sent):
        assert adapter.numpy(array).dtype == np.dtype("bool")
        adapter.expect(array, np.arange(15).reshape(SHAPE) % 3 == 0)
    refused(UsageError, "is bool and has no sum", kv.push, "a", sent)
    refused(UsageError, "is bool and has no sum", kv.pushpull, "a", sent)


@check
def stores_do_not_meet(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """Two stores of one process have the same keys with different shapes and values."""
    first, second = adapter.open_store(), adapter.open_store()
    one, two = adapter.full(1), adapter.full(2, shape=(7,))
    first.init(0, one)
    second.init(0, two)
    first.pushpull(0, one)
    second.pushpull(0, two)
    yield first
    adapter.expect(one, first.num_workers)
    adapter.expect(two, 2 * first.num_workers)


@check
def not_a_number_passes(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """NaN and infinity are values like others."""
    kv = adapter.open_store()
    value = adapter.array(np.array([np.nan, np.inf, -np.inf, 1], "float32"))
    kv.init("a", value)
    kv.pushpull("a", value)
    yield kv
    adapter.expect(value, [np.nan, np.inf, -np.inf, kv.num_workers])


@check
def mistakes_are_refused_at_once(adapter: AdapterUnderTest) -> Iterator[Turn]:
    """What cannot work raises at the call, says what and where, and leaves the store usable."""
    kv, full = adapter.open_store(), adapter.full
    kv.init("a", full(0))
    refused(UsageError, "'b' has not been initialised", kv.push, "b", full(0))
    refused(UsageError, "'b' has not been initialised", kv.pull, "b", out=full(0))
    refused(UsageError, "(2, 2) float32", kv.init, "a", full(0, shape=(2, 2)))
    refused(UsageError, "(2, 2) float32", kv.pushpull, "a", full(0, shape=(2, 2)))
    refused(UsageError, "int32", kv.pull, "a", out=full(0, dtype="int32"))
    refused(UsageError, "float64", kv.pushpull, "a", full(0), out=full(0, dtype="float64"))
    refused(UsageError, "mixed key types", kv.init, 3, full(0))
    refused(UsageError, "strings or integers", kv.push, 1.5, full(0))
    refused(UsageError, "2 keys", kv.push, ["a", "a"], [full(0)])
    value = full(1)
    kv.pushpull("a", value)
    yield kv
    adapter.expect(value, kv.num_workers)
