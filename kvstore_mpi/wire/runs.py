"""Runs: neighbouring slices that travel as one entry and one payload.

A slice is the unit of summing, updating and priority; that several are next to each other in a message is
used to send them as one piece of memory. An entry of a message is (key number, lo, hi, …) and covers all
slices between ``lo`` and ``hi``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Entry = tuple[Any, ...]


def neighbours(positions: Iterable[int]) -> Iterator[range]:
    """Join numbers in ascending order to ranges."""
    # The caller has sorted: positions come from a range, of which some are left out.
    start = end = None
    for position in positions:
        if end is None or position != end:
            if start is not None and end is not None:
                yield range(start, end)
            start = position
        end = position + 1
    if start is not None and end is not None:
        yield range(start, end)


def merge(entries: Iterable[Entry]) -> list[Entry]:
    """Join entries that follow each other: same key, adjoining elements, and all else equal.

    Args:
        entries: (key number, lo, hi, …).
    """
    merged: list[Entry] = []
    for entry in entries:
        if merged:
            key_id, lo, hi, *rest = merged[-1]
            # All else equal: slices of two rounds, or of which one wants a value and the other does not,
            # are neighbours in memory and still two requests. An empty entry, of a key without elements,
            # joins nothing: it would vanish, and its operation would never end.
            if key_id == entry[0] and hi == entry[1] and tuple(rest) == entry[3:] and hi < entry[2]:
                merged[-1] = (key_id, lo, entry[2], *rest)
                continue
        merged.append(entry)
    return merged
