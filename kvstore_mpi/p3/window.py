"""How many bytes may be under way to one peer.

What has left this process cannot be overtaken any more: it lies in a socket, in the kernel or in a switch.
So a sender keeps no more under way than it needs to keep the link busy. How much that is follows from what
is observed: the rate at which bytes arrive, times the time that a message takes to arrive and be
acknowledged when nothing is in its way. Twice that, and a slice more, keeps the pipe full while
acknowledgements travel. The model is that of TCP's BBR. A prototype with a fixed window over links of 160
to 565 Mb/s found by trial that 130 to 150 KB for each connection were best with slices of 40 KB; the rule
gives such sizes there.

Pure: the caller says what time it is, and how many bytes are under way.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, NamedTuple

LEAST_SLICES = 2
"""One slice on the wire and one behind it."""

LEAST_BYTES = 64 << 10
MOST_BYTES = 16 << 20
"""A link of 100 Gb/s and a millisecond holds 12 MB."""

GAIN = 2.0

LEAST_DELAY_S = 0.005
"""So long may an urgent slice wait for what is under way in any case. A peer that is busy acknowledges
later than an idle one; on a fast link its time, not the link's, is what a small window would waste."""

MEMORY_S = 10.0
"""Rates older than this count no more: routes and neighbours change. Delays do when there are newer
ones."""

START_BYTES = 1 << 20
"""Before anything has been observed; what Linux lets a fresh TCP connection grow to within a few round
trips."""


class _Sent(NamedTuple):
    """A message under way.

    Only the first after a silence shows the delay of the link: all others wait behind the sender's own
    bytes, and a window that grew with that would make itself grow.
    """

    total: int  # bytes sent up to the end of this message
    at: float
    delivered: int  # bytes delivered when it was sent
    delivered_at: float
    first: bool


class Window:
    """The window of one peer.

    Attributes:
        limit: Bytes that may be under way.
        used: Something has travelled.
    """

    def __init__(self, slice_bytes: int, fixed: int = 0) -> None:
        """Make a window.

        Args:
            slice_bytes: Size of an ordinary slice.
            fixed: The limit, if it shall not be derived from what is observed.
        """
        self._least = max(LEAST_BYTES, LEAST_SLICES * slice_bytes)
        self._slice_bytes = slice_bytes
        self._fixed = fixed
        self.limit = fixed or max(START_BYTES, self._least)
        self.used = False
        self._sent: Deque[_Sent] = deque()
        self._sent_total = 0
        self._delivered = 0
        self._delivered_at = 0.0
        self._rates = _Extreme()
        self._delays = _Extreme()

    def admits(self, num_bytes: int, in_flight: int) -> bool:
        """Tell whether a message may follow what is under way; one always may when nothing is."""
        return not num_bytes or not in_flight or in_flight + num_bytes <= self.limit

    def sent(self, num_bytes: int, now: float) -> None:
        """Note a message."""
        if not num_bytes:
            return
        self.used = True
        if self._fixed:
            return
        first = not self._sent
        if first:
            self._delivered_at = now
        self._sent_total += num_bytes
        self._sent.append(_Sent(self._sent_total, now, self._delivered, self._delivered_at, first))

    def observe(self, in_flight: int, now: float) -> None:
        """Note how many of the bytes that were sent have not been acknowledged."""
        delivered = self._sent_total - in_flight
        newest = None
        while self._sent and self._sent[0].total <= delivered:
            newest = self._sent.popleft()
            if newest.first:
                self._delays.note(newest.at - now, now)
        if newest is None:
            return
        self._delivered, self._delivered_at = delivered, now
        span = max(now - newest.delivered_at, -self._delays.largest, 1e-6)
        self._rates.note((delivered - newest.delivered) / span, now)
        delay = max(GAIN * -self._delays.largest, LEAST_DELAY_S)
        needed = self._rates.largest * delay + self._slice_bytes
        self.limit = int(min(max(needed, self._least), MOST_BYTES))


class _Extreme:
    """The largest of the numbers noted within the memory, in constant time on average."""

    def __init__(self) -> None:
        self._candidates: Deque[tuple[float, float]] = deque()

    @property
    def largest(self) -> float:
        return self._candidates[0][0]

    def note(self, number: float, now: float) -> None:
        while self._candidates and self._candidates[-1][0] <= number:
            self._candidates.pop()
        self._candidates.append((number, now))
        while self._candidates[0][1] < now - MEMORY_S:
            self._candidates.popleft()
