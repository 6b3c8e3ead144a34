"""Deals a data set or a sampler out to workers: ``shard``.

Knows no framework: what it returns has the class that the data's class begins with, so that Gluon takes the
shard of a ``Dataset`` for one, with ``transform`` and the rest, and that of a ``Sampler`` for a sampler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import new_class
from typing import Any

from kvstore_mpi.errors import UsageError

KEEP, DROP, REPEAT = "keep", "drop", "repeat"
_REMAINDERS = (KEEP, DROP, REPEAT)

_PLAIN = frozenset(
    {
        __name__,
        "builtins",
        "typing",
        "abc",
        "collections",
        "collections.abc",
        "_collections_abc",
        "itertools",
    }
)
"""Modules of classes that make nothing a data set of a framework."""


def shard(data: Any, num_shards: int, index: int, *, remainder: str = KEEP) -> Any:
    """Return every ``num_shards``-th element of some data, from ``index`` on.

    The shards of all workers have no element in common and, with ``remainder="keep"``, all of them. So
    their sizes may differ by one, and so may the numbers of batches of the workers: synchronous stores wait
    for every worker in every step and need the same number everywhere, which the other two choices give.
    Shuffle afterwards, ``shuffle=True`` of a loader say: workers that shuffle before, each for itself, get
    shards that overlap.

    ::

        mine = kvstore_mpi.shard(dataset, kv.num_workers, kv.rank, remainder="drop")

    Args:
        data: A data set or another sequence (``len`` and ``[]``), which is read when the shard is; an
            array, of which the shard is an array as well; or a sampler or another iterable, of which the
            shard takes its elements whenever it is iterated over. A sampler must give the same order on
            all workers.
        num_shards: Number of workers, usually.
        index: Which of the shards, from 0 on.
        remainder: What happens to the elements that are left when all shards have the same number:
            ``"keep"`` deals them to the first shards, ``"drop"`` leaves them out, ``"repeat"`` fills up the
            other shards with elements from the beginning.

    Raises:
        UsageError: There is no such shard or choice, the data cannot be dealt out, or, where all shards are
            to have the same number of elements, it has too few for one each.
    """
    if not (_is_whole(num_shards) and _is_whole(index) and 0 <= index < num_shards):
        raise UsageError(
            f"shard {index!r} of {num_shards!r}: shards are numbered from 0 to their number less 1"
        )
    if remainder not in _REMAINDERS:
        raise UsageError(f"remainder must be one of {', '.join(_REMAINDERS)}, not {remainder!r}")
    _check_kind(data)
    if not hasattr(data, "__getitem__"):
        return _stream(data, num_shards, index, remainder)
    if not hasattr(data, "shape"):
        return _part(data, _positions(len(data), num_shards, index, remainder))
    size = data.shape[0]  # sparse arrays of SciPy's have no length
    positions = _positions(size, num_shards, index, remainder)
    return data[[each % size for each in positions]] if remainder == REPEAT else data[_slice(positions)]


def _is_whole(number: Any) -> bool:
    return hasattr(number, "__index__")


def _check_kind(data: Any) -> None:
    """Raise where data is none that can be dealt out."""
    if hasattr(data, "provide_data"):
        raise UsageError(
            f"a {type(data).__name__} makes batches of its own, which cannot be dealt out: shard the arrays"
            " that it is made from, or give it num_parts and part_index where it has them"
        )
    if getattr(data, "stype", "default") != "default":
        raise UsageError(
            f"a {type(data).__name__} cannot be dealt out row by row: shard range(len(data)), the numbers"
            " of its rows, and take these from it, as mx.nd.take does"
        )
    has_elements = hasattr(data, "__getitem__") or isinstance(data, Iterable)
    if isinstance(data, Mapping) or not has_elements or getattr(data, "shape", None) == ():
        raise UsageError(
            f"a {type(data).__name__} has no shards: it is no sequence, array, sampler or iterable"
        )


def _positions(size: int, num_shards: int, index: int, remainder: str) -> range:
    """Return the positions of a shard; with ``"repeat"`` they go on past the end."""
    if remainder == KEEP:
        return range(index, size, num_shards)
    rounds = size // num_shards if remainder == DROP else -(-size // num_shards)
    if not rounds:
        raise UsageError(_too_few(size, num_shards, remainder))
    return range(index, rounds * num_shards, num_shards)


def _too_few(size: int, num_shards: int, remainder: str) -> str:
    other = "; remainder='repeat' gives some of them to several" if size and remainder == DROP else ""
    return f"{size} elements are too few for {num_shards} shards with remainder={remainder!r}{other}"


def _slice(positions: range) -> slice:
    return slice(positions.start, positions.stop, positions.step)


def _like(data: Any, kind: type) -> type:
    """Return a class that is both ``kind`` and what the data's own class begins with."""
    # Its first own base, and not the class itself, which would bring along what shows all elements. None
    # that tidies up behind itself, as a loader does: of what its constructor makes a shard has nothing.
    bases = [each for each in type(data).__mro__ if each.__module__ not in _PLAIN]
    is_data = bases and not hasattr(bases[-1], "__del__")
    return new_class(kind.__name__.strip("_"), (kind, bases[-1])) if is_data else kind


class _Part:
    """Some elements of a sequence, in the order of their positions."""

    def __init__(self, data: Any, positions: range) -> None:
        self._data = data
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, position: Any) -> Any:
        chosen = self._positions[position]
        if isinstance(chosen, range):
            return _part(self._data, chosen)
        return self._data[chosen % len(self._data)]

    def __iter__(self) -> Iterator[Any]:
        return (self._data[each % len(self._data)] for each in self._positions)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made here and has no name under which it could be found; loaders pickle data sets.
        return _part, (self._data, self._positions)


def _part(data: Any, positions: range) -> Any:
    return _like(data, _Part)(data, positions)


class _Stream:
    """Every ``step``-th element of an iterable, taken anew by each iterator."""

    def __init__(self, data: Any, num_shards: int, index: int, remainder: str) -> None:
        self._data = data
        self._num_shards = num_shards
        self._index = index
        self._remainder = remainder

    def __len__(self) -> int:
        return len(_positions(len(self._data), self._num_shards, self._index, self._remainder))

    def __iter__(self) -> Iterator[Any]:
        """Take rounds of one element for each shard, and give ours of each."""
        elements = iter(self._data)
        if self._remainder == KEEP:
            yield from islice(elements, self._index, None, self._num_shards)
            return
        first = this = list(islice(elements, self._num_shards))
        if len(first) < (self._num_shards if self._remainder == DROP else 1):
            raise UsageError(_too_few(len(first), self._num_shards, self._remainder))
        while len(this) == self._num_shards:
            yield this[self._index]
            this = list(islice(elements, self._num_shards))
        if this and self._remainder == REPEAT:
            behind = self._index - len(this)
            yield this[self._index] if behind < 0 else first[behind % len(first)]

    def __reduce__(self) -> tuple[Any, ...]:
        return _stream, (self._data, self._num_shards, self._index, self._remainder)


def _stream(data: Any, *rest: Any) -> Any:
    return _like(data, _Stream)(data, *rest)
