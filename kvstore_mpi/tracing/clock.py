"""How far the clock of another host is from ours: an estimate with its error bound. Pure.

A probe leaves at ``sent`` and its answer arrives at ``received``, both by our clock; the peer noted its own
time when it had the probe. That moment lies between the two, so the middle is wrong by half the round trip
at most (Cristian, 1989), whatever the two ways took. Clocks drift apart, so an old estimate loses worth.
"""

from __future__ import annotations

from typing import NamedTuple

DRIFT_PER_SECOND_NS = 100_000
"""How far two clocks may drift apart in a second: 100 ppm, twice what quartz oscillators are sold with."""


class Offset(NamedTuple):
    """``peer's time - our time``, wrong by ``error_ns`` at most."""

    offset_ns: int
    error_ns: int


class ClockOffset:
    """Estimates a peer's clock from probes; keeps the one exchange that bounds it best."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._best: Offset | None = None
        self._taken_ns = 0

    def add(self, sent_ns: int, peer_ns: int, received_ns: int) -> None:
        """Take in one exchange; one whose answer came before its probe says nothing and is left out.

        Args:
            sent_ns: When the probe left, by our clock.
            peer_ns: When the peer had it, by the peer's clock.
            received_ns: When the answer arrived, by our clock.
        """
        if received_ns < sent_ns:
            return
        new = Offset(peer_ns - (sent_ns + received_ns) // 2, (received_ns - sent_ns + 1) // 2)
        old = self.at(received_ns)
        if old is None or new.error_ns <= old.error_ns:
            self._best, self._taken_ns = new, received_ns

    def at(self, now_ns: int) -> Offset | None:
        """Return the estimate, with the error that it has by now; ``None`` before the first exchange."""
        if self._best is None:
            return None
        age_ns = max(0, now_ns - self._taken_ns)
        drift_ns = age_ns * DRIFT_PER_SECOND_NS // 1_000_000_000
        return Offset(self._best.offset_ns, self._best.error_ns + drift_ns)
