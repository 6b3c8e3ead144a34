"""What is paid for transfers where a chain of ideals passes through a given one: a sum of claims. Pure.

A result crosses an ideal if its maker is inside and a reader is outside, so on different devices. If both
are on accelerators, it is written by the one and read by the other. If the maker is on a processor, nobody
writes it; but that may have cost time, and what the maker itself reads from accelerators was written. The
same holds for the reader. So the seconds of a write are claimed of the maker's delay on a processor, and,
as far as this does not cover them, of a write of what the maker reads: that claim then stands for both, and
is paid once if either crosses. Claims can be added up, also those of several ideals of a chain, for no
second of a transfer and no second of delay is in two of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvstore_mpi.planner.placement.ideals import Groups


@dataclass(eq=False)
class Claim:
    """Seconds that a chain pays once if one of its ideals parts one of the pairs, above the least times.

    Attributes:
        seconds: How many.
        pairs: Groups; an ideal that has the first and not the second parts them.
        ahead: They are paid by groups outside such an ideal, not by groups inside.
    """

    seconds: float
    pairs: set[tuple[int, int]]
    ahead: bool


def claims_of(
    groups: Groups, results: Mapping[tuple[int, frozenset[int]], float], delays: Sequence[float]
) -> list[Claim]:
    """Return the claims.

    Args:
        groups: In order.
        results: Seconds of a transfer of what a group makes and others read.
        delays: How much longer than its least time each group takes on a processor; infinite if barred.
    """
    claims = _Claims(groups, delays)
    rows = [
        (maker, *claims.sides(maker, readers), seconds) for (maker, readers), seconds in results.items()
    ]
    rows.sort(key=lambda row: row[0])
    for maker, before, after, seconds in rows:
        if before and not after:  # of a backward pass
            claims.simple(maker, before, seconds)
    for maker, _, after, seconds in rows:
        if after:
            claims.writes(maker, after, seconds)
    for maker, _, after, seconds in reversed(rows):
        if after:
            claims.reads(maker, after, seconds)
    return [claim for claim in claims.found if claim.seconds > 0]


class _Claims:
    """Claims as they are found, and what is left of delays."""

    def __init__(self, groups: Groups, delays: Sequence[float]) -> None:
        self.found: list[Claim] = []
        self._below = closures(groups)
        self._delays = list(delays)
        self._written: list[list[Claim]] = [[] for _ in delays]  # by reader
        self._read: list[list[Claim]] = [[] for _ in delays]  # by maker

    def sides(self, maker: int, readers: frozenset[int]) -> tuple[list[int], list[int]]:
        """Return the readers that come before the maker in any order, and those behind it."""
        before = [reader for reader in sorted(readers) if self._below[maker] >> reader & 1]
        return before, [reader for reader in sorted(readers) if self._below[reader] >> maker & 1]

    def simple(self, maker: int, readers: list[int], seconds: float) -> None:
        """Claim a result that goes from outside to inside, as far as delays cover it."""
        self._new(_take(self._delays, maker, seconds), {(each, maker) for each in readers}, ahead=True)
        last = max(readers, key=lambda each: self._delays[each])
        self._new(_take(self._delays, last, seconds), {(last, maker)}, ahead=False)

    def writes(self, maker: int, readers: list[int], seconds: float) -> None:
        """Claim a write; makers come in order."""
        pairs = {(maker, reader) for reader in readers}
        own = _take(self._delays, maker, seconds)
        latest_first = sorted(self._written[maker], key=lambda claim: -min(claim.pairs)[0])
        mine = [self._new(own, pairs, ahead=False), *self._shared(latest_first, seconds - own, pairs)]
        for reader in readers:
            self._written[reader] += [claim for claim in mine if claim not in self._written[reader]]

    def reads(self, maker: int, readers: list[int], seconds: float) -> None:
        """Claim a read; makers come in reverse order."""
        sure = [reader for reader in readers if self._delays[reader] >= seconds]
        pairs = {(maker, reader) for reader in sure or readers[:1]}
        own = seconds
        for reader in sure or readers[:1]:
            own = _take(self._delays, reader, seconds)
        following = self._read[readers[0]] if not sure else []
        self._read[maker] += [
            self._new(own, pairs, ahead=True),
            *self._shared(following, seconds - own, pairs),
        ]

    def _new(self, seconds: float, pairs: set[tuple[int, int]], *, ahead: bool) -> Claim:
        self.found.append(Claim(seconds, set(pairs), ahead))
        return self.found[-1]

    def _shared(
        self, claims: Sequence[Claim], seconds: float, pairs: set[tuple[int, int]]
    ) -> Iterator[Claim]:
        """Let other claims stand for these pairs, too; what they have beyond that stays on its own."""
        for claim in claims:
            part = min(seconds, claim.seconds)
            if part > 0:
                self._new(claim.seconds - part, claim.pairs, ahead=claim.ahead)
                claim.seconds = part
                claim.pairs |= pairs
                seconds -= part
                yield claim


def closures(groups: Groups) -> list[int]:
    """Return the smallest ideal with each group."""
    found: list[int] = []
    for group, before in enumerate(groups.before):
        ideal = 1 << group
        for other in range(group):
            if before >> other & 1:
                ideal |= found[other]
        found.append(ideal)
    return found


def _take(left: list[float], group: int, seconds: float) -> float:
    """Take seconds from what is left, as many as there are; return how many."""
    taken = min(seconds, left[group])
    left[group] -= taken
    return taken
