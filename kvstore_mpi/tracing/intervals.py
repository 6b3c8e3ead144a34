"""Sets of time as sorted lists of disjoint half-open intervals, and their arithmetic. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Interval = tuple[int, int]
Intervals = list[Interval]


def union(intervals: Iterable[Interval]) -> Intervals:
    """Return what any of the intervals covers; they may come in any order, overlap and be empty."""
    merged: Intervals = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """Return what a set covers of ``[start, end)``, in time that does not grow with the rest of it."""
    first = bisect_left(intervals, (start,))
    if first and intervals[first - 1][1] > start:
        first -= 1
    inside = intervals[first : bisect_left(intervals, (end,))]
    return [(max(start, low), min(end, high)) for low, high in inside]


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """Return what both cover."""
    common: Intervals = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            common.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return common


def difference(left: Intervals, right: Intervals) -> Intervals:
    """Return what the left one covers and the right one does not."""
    if not left:
        return []
    start, end = left[0][0], left[-1][1]
    edges = [start, *(edge for interval in right for edge in interval), end]
    gaps = [(low, high) for low, high in zip(edges[::2], edges[1::2]) if low < high]
    return intersection(left, gaps)


def length(intervals: Intervals) -> int:
    """Return how much time a set covers."""
    return sum(end - start for start, end in intervals)
