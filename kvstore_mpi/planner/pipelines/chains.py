"""Which operations of a net are computed together, when all of it may be divided. Pure.

To cut a chain, whose operations follow each other and nobody else, makes no step shorter: one device would
wait for the other. So chains are what is worth dividing, between what forks and what joins.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

Result = tuple[int, int]
"""The number of an operation, and which of its results."""


def chains(
    reads: Mapping[int, Sequence[Result]], last: Result, together: Sequence[Collection[int]] = ()
) -> list[list[int]]:
    """Return the operations in groups that can be computed one after the other.

    Args:
        reads: What each operation takes of others, in an order in which they can be computed.
        last: The net's result.
        together: Operations that must be in one group.

    Returns:
        Each operation in one group, each group in the given order. Of a group others take one result only,
        that of its last operation.
    """
    home = _follow(reads)
    while merged := (
        _apart(home, together)
        or _waiting_for_each_other(reads, home)
        or _with_several_results(reads, home, last)
    ):
        home = {number: min(merged) if group in merged else group for number, group in home.items()}
    groups: dict[int, list[int]] = {}
    for number, group in home.items():
        groups.setdefault(group, []).append(number)
    # A group's last operation is the one whose result others take: all of the group leads to it.
    return sorted(groups.values(), key=lambda numbers: numbers[-1])


def _follow(reads: Mapping[int, Sequence[Result]]) -> dict[int, int]:
    """Return the group of each operation, called by its first one: who follows one alone joins it."""
    readers: dict[int, set[int]] = {number: set() for number in reads}
    for number, results in reads.items():
        for source, _ in results:
            readers[source].add(number)
    home: dict[int, int] = {}
    for number, results in reads.items():
        sources = {source for source, _ in results}
        alone = len(sources) == 1 and all(len(readers[source]) == 1 for source in sources)
        home[number] = home[min(sources)] if alone else number
    return home


def _between(
    reads: Mapping[int, Sequence[Result]], home: Mapping[int, int]
) -> Iterator[tuple[int, Result]]:
    """Yield which group takes which result of another."""
    for number, results in reads.items():
        for result in results:
            if home[result[0]] != home[number]:
                yield home[number], result


def _apart(home: Mapping[int, int], together: Sequence[Collection[int]]) -> set[int]:
    """Return groups that must be one, if there are any."""
    for numbers in together:
        groups = {home[number] for number in numbers}
        if len(groups) > 1:
            return groups
    return set()


def _waiting_for_each_other(reads: Mapping[int, Sequence[Result]], home: Mapping[int, int]) -> set[int]:
    """Return groups of which each needs the next one's result, if there are any."""
    before: dict[int, set[int]] = {group: set() for group in home.values()}
    for group, (source, _) in _between(reads, home):
        before[group].add(home[source])
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        return set(error.args[1])
    return set()


def _with_several_results(
    reads: Mapping[int, Sequence[Result]], home: Mapping[int, int], last: Result
) -> set[int]:
    """Return a group of which others take several results, and these others; if there is one."""
    results: dict[int, set[Result]] = {home[last[0]]: {last}}
    takers: dict[int, set[int]] = {}
    for group, result in _between(reads, home):
        results.setdefault(home[result[0]], set()).add(result)
        takers.setdefault(home[result[0]], set()).add(group)
    wide = next((group for group in results if len(results[group]) > 1), None)
    return set() if wide is None else {wide, *takers[wide]}
