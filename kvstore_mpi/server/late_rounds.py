"""What is said of rounds that wait for a client: whom everybody waits for, once a minute and not per key.

Pure. This file must not know when a round is closed, or fails.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvstore_mpi.errors import DeadlineError, MismatchError
from kvstore_mpi.records import parameter_of
from kvstore_mpi.wire.instructions import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.server.records import Unit

REPEAT_S = 60.0
"""From one line about a round to the next: ten thousand keys may all wait for one client."""


class LateRounds:
    """Which rounds have been spoken of, and when."""

    def __init__(self, awaited: Callable[[Unit], Unit]) -> None:
        """Start without; ``awaited`` returns which unit of its step one waits for: itself, mostly."""
        self._awaited = awaited
        self._told: dict[tuple[int, tuple[int, ...]], float] = {}

    def tell(self, late: Iterable[Unit], now: float) -> list[Log]:
        """Return a line for each round, and those whom it waits for, of which none was said for a minute.

        Args:
            late: The units whose round has waited for long.
            now: The time.
        """
        rounds: dict[tuple[int, tuple[int, ...]], list[Unit]] = {}
        for unit in late:
            missing = _missing(self._awaited(unit))
            # Keys of one round that wait for the same clients are one matter, however many.
            # Who is missing is a part of the name, so that it is news when one of two has come.
            rounds.setdefault((max(unit.pushed), tuple(missing)), []).append(unit)
        # Forgotten after a minute, so that the line comes again as long as the round waits, and the table
        # stays small.
        self._told = {each: when for each, when in self._told.items() if now - when < REPEAT_S}
        new = {each: units for each, units in rounds.items() if each not in self._told}
        # Only what is said now: one that was said keeps its time, or it would never be a minute old.
        self._told.update(dict.fromkeys(new, now))
        others = _one_of_each(unit for units in rounds.values() for unit in units)
        return [
            Log(logging.WARNING, self._describe(units, now) + _crossed(units[0], others))
            for units in new.values()
        ]

    def errors(
        self, overdue: Iterable[Unit], waiting: Iterable[Unit], now: float
    ) -> Iterator[tuple[Unit, KVStoreError]]:
        """Yield what rounds fail with that have waited for too long, with all that wait."""
        others = _one_of_each(waiting)
        for unit in overdue:
            crossed = _crossed(unit, others)
            text = self._describe([unit], now) + crossed
            yield unit, MismatchError(text) if crossed else DeadlineError(text)

    def _describe(self, units: Sequence[Unit], now: float) -> str:
        """Say for how long a round of some units has waited, and for whom; in words of the first one."""
        # The first one stands for all: a line that named ten thousand keys would be read by nobody.
        unit = units[0]
        awaited = self._awaited(unit)
        missing = _missing(awaited)
        who = "worker" if unit.key.spec.apart else "client"
        more = f" and {len(units) - 1:,} more" if len(units) > 1 else ""
        begins = (
            f"key {parameter_of(unit.key.key)!r}{more}: round {max(unit.pushed)} has waited "
            f"{now - unit.since:.0f} s"
        )
        if awaited is not unit:
            return (
                f"{begins} for key {parameter_of(awaited.key.key)!r}, which {who} {_listed(missing)} has "
                "not pushed; clip_global_norm updates when all keys of the store have been pushed: name "
                "those that never are in its argument without"
            )
        return (
            f"{begins} for the push of {who} {_listed(missing)}; "
            f"{who} {_listed(sorted(unit.contributions))} has pushed"
        )


def _missing(unit: Unit) -> list[int]:
    return [pusher for pusher in range(unit.key.num_pushers) if pusher not in unit.contributions]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _one_of_each(waiting: Iterable[Unit]) -> list[Unit]:
    """Return one unit of all in a store that the same clients have pushed."""
    # There may be ten thousand, and each would be looked for among all.
    return list({(unit.key.spec.store, *sorted(unit.contributions)): unit for unit in waiting}.values())


def _crossed(unit: Unit, others: Iterable[Unit]) -> str:
    """Say which other round waits the other way round, if any does: then neither can end.

    Whoever is missing in one has gone on to push another key, for which those wait that have pushed this.
    """
    # As far as this server sees: keys of other servers are compared there.
    for other in others:
        ahead = sorted(other.contributions.keys() - unit.contributions.keys())
        behind = sorted(unit.contributions.keys() - other.contributions.keys())
        if ahead and behind and other.key.spec.store == unit.key.spec.store:
            who = "worker" if unit.key.spec.apart else "client"
            return (
                f"; meanwhile {who} {_listed(ahead)} has pushed round {max(other.pushed)} of key "
                f"{parameter_of(other.key.key)!r}, which waits for {who} {_listed(behind)}: all must push "
                "the same keys in each step, and a layer that one of them alone has frozen, or does not "
                "use, is left out there"
            )
    return ""
