"""Runs: neighbouring slices that travel as one entry and one payload.

A slice is the unit of summing, updating and priority; that several are next to each other in a message is
used to send them as one piece of memory. An entry of a message is (key number, lo, hi, …) and covers all
slices between ``lo`` and ``hi``.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, List, Tuple

Entry = Tuple[Any, ...]

BUNDLE_BYTES = 1 << 20
"""Slices for one server that are ready together share a message up to this size.

Handling a message takes a process some 50 us of Python, about as long as the memory traffic of one slice
of the default size; with five of them in a message that cost is small. An urgent slice waits for one
bundle at most before it is handed to the transport.
"""


def merge(entries: Iterable[Entry], elements: int | None = None) -> List[Entry]:
    """Join entries that follow each other: same key, adjoining elements, and all else equal.

    Args:
        entries: (key number, lo, hi, …).
        elements: Largest run, if there is a limit; a longer entry stays as it is.
    """
    merged: list[Entry] = []
    for entry in entries:
        if merged:
            key_id, lo, hi, *rest = merged[-1]
            joins = key_id == entry[0] and hi == entry[1] and tuple(rest) == entry[3:] and hi < entry[2]
            if joins and (elements is None or entry[2] - lo <= elements):
                merged[-1] = (key_id, lo, entry[2], *rest)
                continue
        merged.append(entry)
    return merged


def bundles(sized: Iterable[tuple[Entry, int]], num_bytes: int) -> Iterator[list[Entry]]:
    """Deal entries, each with its size in bytes, into messages of about ``num_bytes`` at most."""
    bundle: list[Entry] = []
    room = num_bytes
    for entry, size in sized:
        if bundle and size > room:
            yield bundle
            bundle, room = [], num_bytes
        bundle.append(entry)
        room -= size
    if bundle:
        yield bundle
