"""Into how many pieces the user wants tables to be cut, and which."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.errors import UsageError
from kvstore_mpi.hybrid.partitions import AUTO_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from kvstore_mpi.records import Key

log = logging.getLogger("kvstore_mpi.mxnet")

AUTO = "auto"


class Cut(NamedTuple):
    """How a table is cut.

    Attributes:
        pieces: How many; ``AUTO_PARTITIONS`` leaves it to the worker.
        by: ``mod`` or ``range``.
        is_searched: Other numbers are tried while the job trains.
    """

    pieces: int = AUTO_PARTITIONS
    by: str = "mod"
    is_searched: bool = False


class Partitions:
    """What was said with ``partitioner``, by names or patterns of parameters and keys."""

    def __init__(self) -> None:
        """Start with nothing said."""
        self._cuts: dict[str, Cut] = {}

    def say(
        self, name: Key, pieces: int | str, by: str, keys: Container[Key], tables: Mapping[Key, str]
    ) -> None:
        """Cut tables of this name, or of names that fit the pattern, so.

        Args:
            name: A name or a pattern.
            pieces: How many, or ``AUTO``.
            by: As of ``Cut``.
            keys: All that are there.
            tables: Those of them that are tables, with the names of their parameters.

        Raises:
            UsageError: There is no such way of cutting, or such a key is there already.
        """
        if by not in {"mod", "range"}:
            raise UsageError(f"partitioner({name!r}): tables are cut by 'mod' or by 'range', not by {by!r}")
        if pieces != AUTO and (type(pieces) is not int or pieces < 1):
            raise UsageError(
                f"partitioner({name!r}): pieces must be {AUTO!r} or a whole number above 0, not {pieces!r}"
            )
        fitting = [
            parameter
            for key, parameter in tables.items()
            if fnmatchcase(str(key), str(name)) or fnmatchcase(parameter, str(name))
        ]
        if name in keys or fitting:
            raise UsageError(
                f"partitioner({name!r}): {[*fitting, name][0]!r} is there already; call this before init, "
                "which a Trainer calls in its first step"
            )
        number = AUTO_PARTITIONS if isinstance(pieces, str) else pieces
        self._cuts[str(name)] = Cut(number, by, is_searched=pieces == AUTO)

    def of(self, key: Key, parameter: Any) -> Cut:
        """Return how a key is to be cut, by its own name or that of its parameter.

        Exact names count before patterns, and of these the first that fits.
        """
        names = [str(key), str(getattr(parameter, "name", key))]
        exact = [self._cuts[name] for name in names if name in self._cuts]
        fitting = [
            cut for each, cut in self._cuts.items() if any(fnmatchcase(name, each) for name in names)
        ]
        return next(iter([*exact, *fitting]), Cut())


def without_search(cut: Cut, key: Key, why: str, *, rank: int) -> Cut:
    """Return how a table is cut that cannot be cut anew: as if nothing was said of its number of pieces.

    A large one then has one on each server, which is what the searches of real jobs have come to.
    """
    if cut.is_searched and rank == 0:
        log.info("table %r: as many pieces as without partitioner, no others are tried: %s", key, why)
    return cut._replace(is_searched=False)
