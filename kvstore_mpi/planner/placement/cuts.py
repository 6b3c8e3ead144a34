"""The ideals that a chain of a given length can pass through, and what it pays behind each. Pure.

Groups take their least times, and an ideal costs its claims. That is not all: an accelerator's memory is a
window over which the chain cannot leap, so that it has further ideals before and behind. What these cost at
least is found from the end, by the place of an ideal, which is its memory. Only claims count for it whose
pairs are near each other, and of these those that no ideal so far can have parted: none is counted twice.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from kvstore_mpi.planner.placement.claims import claims_of, closures
from kvstore_mpi.planner.placement.load_table import ROUNDING, costs_of, inside_of, results_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvstore_mpi.planner.placement.claims import Claim
    from kvstore_mpi.planner.placement.ideals import Groups
    from kvstore_mpi.planner.placement.stages import Pipeline

Array = np.ndarray[Any, Any]

PLACES = 256
"""Memory is rounded up to one of these, at equal distances."""

NEAR = 0.5
"""A claim is near if it is parted within this share of an accelerator's memory."""

MOST_NEAR = 40_000
"""The most ideals that are listed for the bound by memory."""

SURPLUS = 4
"""How many times as many ideals as are wanted may be listed before bounds by memory leave some out."""

_TRIFLE = 1e-6
_WORD = 64


class _Part(NamedTuple):
    """A claim, or what of it counts for one of the two sums of ``_parts``.

    Attributes:
        pairs: Of the claim.
        seconds: What it adds to each sum, two numbers.
        ahead: As in ``Claim``.
    """

    pairs: set[tuple[int, int]]
    seconds: Array
    ahead: bool


class _Shape(NamedTuple):
    """Some groups: those right before each, how much of its memory counts, and parts of claims."""

    before: dict[int, list[int]]
    memory: Array
    parts: Sequence[_Part]


class _Near(NamedTuple):
    """What is near.

    Attributes:
        members: Groups of near pairs.
        memory: Of these, and nothing for all others.
        pairs: Of each claim those that are parted within reach of its first.
    """

    members: list[int]
    memory: Array
    pairs: list[set[tuple[int, int]]]


class _Ideals(NamedTuple):
    """Ideals in columns: their groups, and the claims that they part, as bits; and sums over both."""

    groups: Array
    parted: Array
    memory: Array
    seconds: Array


class Cuts:
    """Which ideals chains can pass through.

    Attributes:
        floor: Seconds that no chain is below.
    """

    def __init__(self, pipeline: Pipeline, groups: Groups) -> None:
        """Find claims, and bounds by memory if it is short."""
        costs = costs_of(pipeline, groups)
        delays = costs.host - costs.least if pipeline.processors else np.full(len(costs.host), math.inf)
        claims = claims_of(groups, results_of(pipeline, groups), delays.tolist())
        window = pipeline.memory_bytes * (1 + ROUNDING)
        memory = np.where(costs.barred, 0.0, costs.memory)  # what no accelerator takes is no window's
        near = _near(groups, claims, memory, NEAR * window)
        self._total = float(near.memory.sum())
        self._after, self._before, self._whole = np.zeros((3, PLACES + 1))
        if self._total > window:
            self._after, self._before, self._whole = _bounds(groups, claims, near, window)
        self._shape = _shape_of(groups, range(len(memory)), near.memory, _parts(claims, near))
        self._least = float(costs.least.sum())
        others = np.minimum(PLACES + 2 - np.arange(PLACES + 1), PLACES)  # both memories are rounded up
        self._spare = np.array(
            [np.min(self._after + self._before[others]), np.min(self._after + self._whole[others])]
        )
        self._listed_to = -math.inf
        self.floor = self._least + float(max(self._after[0], self._before[0]))

    def list_to(self, seconds: float, most: int) -> bool:
        """List the ideals for chains that are no longer; return whether they are few enough."""
        left = (seconds - self._least) + ROUNDING * seconds
        if left <= self._listed_to:
            return True
        found = _ideals(self._shape, left - self._spare, SURPLUS * most)
        if not found:
            return False
        behind = self._after[_places(found.memory, self._total)]
        back = _places(self._total - found.memory, self._total)
        through = (found.seconds + behind + np.array((self._before[back], self._whole[back]))).max(0)
        keep = np.flatnonzero(through <= left)
        if len(keep) > most:
            return False
        for number, part in enumerate(self._shape.parts):
            if part.ahead:
                behind += part.seconds[1] * _has(found.parted, number)
        self._listed_to, self._groups = left, found.groups[:, keep]
        self._through, self._behind = through[keep], behind[keep]
        return True

    def within(self, seconds: float) -> tuple[list[int], Array]:
        """Return the listed ideals for chains that are no longer, and what is paid behind each."""
        keep = np.flatnonzero(self._through <= (seconds - self._least) + ROUNDING * seconds)
        raw = np.ascontiguousarray(self._groups[:, keep].T).tobytes()
        bounds = range(0, len(raw) + 1, _WORD // 8 * len(self._groups))
        return [int.from_bytes(raw[lo:hi], "little") for lo, hi in pairwise(bounds)], self._behind[keep]


def _parts(claims: Sequence[Claim], near: _Near) -> Iterator[_Part]:
    """Yield what counts for the sums to which a bound before an ideal can be added.

    Such a bound has claims whose near pairs an ideal before has parted. If other pairs of these are parted
    here, they must not count again. So there are two sums: either such pairs are left out here, or claims
    that have such pairs are left out before.
    """
    for claim, pairs in zip(claims, near.pairs):
        if not pairs or pairs == claim.pairs:
            yield _Part(claim.pairs, np.array([claim.seconds, claim.seconds]), claim.ahead)
        else:
            yield _Part(claim.pairs, np.array([0.0, claim.seconds]), claim.ahead)
            yield _Part(pairs, np.array([claim.seconds, 0.0]), ahead=False)


def _shape_of(groups: Groups, members: Iterable[int], memory: Array, parts: Iterable[_Part]) -> _Shape:
    """Return a shape; what comes before a group through others that are left out does so still."""
    below = closures(groups)
    before: dict[int, list[int]] = {}
    for group in members:
        rest = below[group]
        right = []
        for other in reversed(before):
            if rest >> other & 1:
                right.append(other)
                rest &= ~below[other]
        before[group] = right
    return _Shape(before, memory, tuple(parts))


def _ideals(shape: _Shape, seconds: Array, most: int) -> _Ideals | None:
    """Return the ideals of which neither sum is larger, or ``None`` if they are too many.

    Groups are decided in order. What is parted once stays so, whatever follows, so that sums only grow.
    """
    ends: dict[int, list[int]] = {group: [] for group in shape.before}
    for number, part in enumerate(shape.parts):
        for group in {second for _, second in part.pairs}:
            ends[group].append(number)
    words, numbers = (
        np.zeros((-(-max(count, 1) // _WORD), 1), np.uint64)
        for count in (len(shape.memory), len(shape.parts))
    )
    found = _Ideals(words, numbers, np.zeros(1), np.zeros((2, 1)))
    for group, before in shape.before.items():
        can = np.ones(found.memory.shape, bool)
        for other in before:
            can &= _has(found.groups, other)
        larger = _Ideals(*(column[..., can] for column in found))
        larger.groups[group // _WORD] |= _bit(group)
        larger.memory[:] += shape.memory[group]
        for number in ends[group]:
            _note(found, number, shape.parts[number], group)
        keep = (found.seconds <= seconds[:, None]).all(0)
        found = _Ideals(*(np.concatenate((a[..., keep], b), -1) for a, b in zip(found, larger)))
        if len(found.memory) > most:
            return None
    return found


def _note(found: _Ideals, number: int, part: _Part, second: int) -> None:
    """Note which ideals part a claim by a pair whose second group they do not have."""
    now = np.zeros(found.memory.shape, bool)
    for one, other in part.pairs:
        if other == second:
            now |= _has(found.groups, one)
    now &= ~_has(found.parted, number)
    found.parted[number // _WORD] |= now * _bit(number)
    found.seconds[:] += part.seconds[:, None] * now


def _bit(number: int) -> np.uint64:
    return np.uint64(1 << number % _WORD)


def _has(columns: Array, number: int) -> Array:
    """Return which columns have a bit."""
    return np.asarray(columns[number // _WORD] & _bit(number) != 0)


def _places(memory: Array, total: float) -> Array:
    """Return the places of ideals by their memory, a trifle of which is added for rounding."""
    shares = memory / total if total else np.zeros(len(memory))
    return np.asarray(np.minimum(np.ceil(shares * PLACES + _TRIFLE), PLACES).astype(int))


def _spans(groups: Groups, memory: Array) -> tuple[Array, Array]:
    """Return the memory of the smallest ideal with each group, and of the largest one without it."""
    contains = inside_of(closures(groups), len(memory)).astype(float)
    return memory @ contains, memory.sum() - contains @ memory


def _near(groups: Groups, claims: Sequence[Claim], memory: Array, reach: float) -> _Near:
    """Return what is near; memory of groups that are not makes others no less near."""
    members = set(range(len(memory)))
    while True:
        memory = np.where([group in members for group in range(len(memory))], memory, 0.0)
        since, until = _spans(groups, memory)
        near = []
        for claim in claims:
            first = min(since[one] for one, _ in claim.pairs)
            pairs = {pair for pair in claim.pairs if members.issuperset(pair)}
            near.append({pair for pair in pairs if until[pair[1]] - first <= reach})
        left = {group for pairs in near for pair in pairs for group in pair}
        if left == members:
            return _Near(sorted(members), memory, near)
        members = left


def _bounds(groups: Groups, claims: Sequence[Claim], near: _Near, window: float) -> Array:
    """Return what is paid at least behind each place, and before each one, counted from the end.

    In three rows: the latter by all near pairs, and by claims of which all pairs are near.
    """
    chosen = [(claim, pairs) for claim, pairs in zip(claims, near.pairs) if pairs]
    parts = [_Part(pairs, np.full(2, claim.seconds), claim.ahead) for claim, pairs in chosen]
    shape = _shape_of(groups, near.members, near.memory, parts)
    most = sum(claim.seconds for claim, _ in chosen)
    for halved in range(11):
        found = _ideals(shape, np.full(2, most / 2**halved), MOST_NEAR)
        if found:
            break
    else:
        return np.zeros((3, PLACES + 1))
    unlisted = most / 2**halved if halved else math.inf
    total = near.memory.sum()
    first, last = _spans(groups, near.memory)
    since = np.array([min(first[one] for one, _ in claim.pairs) for claim, _ in chosen])
    until = np.array([max(last[other] for _, other in pairs) for _, pairs in chosen])
    forth, back = _places(found.memory, total), _places(total - found.memory, total)
    parted = [(claim.seconds, _has(found.parted, i)) for i, (claim, _) in enumerate(chosen)]
    after = _behind(forth, parted, since / total, window / total, unlisted)
    before = _behind(back, parted, 1 - until / total, window / total, unlisted)
    parted = [
        (seconds * (pairs == claim.pairs), has) for (seconds, has), (claim, pairs) in zip(parted, chosen)
    ]
    unlisted = 0.0 if unlisted < math.inf else math.inf
    return np.array((after, before, _behind(back, parted, 1 - until / total, window / total, unlisted)))


def _behind(
    places: Array, parted: Sequence[tuple[float, Array]], since: Array, window: float, unlisted: float
) -> Array:
    """Return what is paid at least behind each place.

    From wherever a window begins behind a place, it has an ideal in it, unless it reaches the end.

    Args:
        places: Of the ideals.
        parted: Seconds of each claim, and which ideals part it.
        since: The share of memory behind which a claim is parted.
        window: The share of memory over which a chain cannot leap.
        unlisted: Seconds of claims of an ideal that is not among these.
    """
    width = math.ceil(window * PLACES) + 2
    far = math.ceil(NEAR * window * PLACES) + 2
    later = np.argsort(-since, kind="stable")
    order = np.argsort(places, kind="stable")
    places = places[order]
    filled, begins = np.unique(places, return_index=True)
    behind, paid, counted = np.zeros(PLACES + 1), np.zeros(len(places)), 0
    ends = np.full(width - 1, math.inf)
    for place in range(PLACES - 1, -1, -1):
        while counted < len(later) and since[later[counted]] * PLACES > place + _TRIFLE:
            seconds, has = parted[later[counted]]
            paid += seconds * has[order]
            counted += 1
        least = behind + (unlisted if unlisted == math.inf else 0.0)
        least[place + 1 + far :] = behind[place + 1 + far :] + unlisted
        least[filled] = np.minimum(least[filled], np.minimum.reduceat(paid, begins) + behind[filled])
        windows = sliding_window_view(np.concatenate((least[place + 1 :], ends)), width)
        behind[place] = windows.min(1).max()
    return behind
