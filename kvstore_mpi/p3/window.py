"""How many bytes may be under way to one peer.

What has left this process cannot be overtaken any more: it lies in a socket, in the kernel or in a switch.
So a sender keeps no more under way than it needs to keep the link busy. Two things say how much that is:

- A share of what the peer exchanges with this process in one iteration, because that is also the share of
  an iteration that an urgent slice may have to wait. It grows with the model, and with fewer peers; it is
  the same for all peers of a model that is spread evenly, so that none crowds out the others.
- What arrives within a few milliseconds, which a peer that computes as well may need to answer. On a slow
  link that is little; on a fast one a share of a small model would not keep it busy.

Of two that share a link, who has twice as much under way gets twice as much of it. Servers have larger
windows than workers, so that on a host with both answers come before pushes: ``ANSWERS_OVER_PUSHES``.

Why not by each peer's measured rate and delay alone, as TCP's BBR has it: docs/adr/0004.

Pure: the caller says what time it is, and how many bytes are under way.
"""

from __future__ import annotations

import math

SHARE = 0.02
"""Of the bytes of an iteration."""

LEAST_SLICES = 3
"""One slice on the wire, one behind it, and one that is being acknowledged. While more waits, room is kept
for messages of half a window (``send_queue.BUNDLES_IN_WINDOW``), so that two of three are under way."""

LEAST_BYTES = 96 << 10
"""Two messages of 48 KB: of smaller ones the handling costs more than the bytes."""

MOST_BYTES = 16 << 20
"""A link of 100 Gb/s holds 12 MB in a millisecond."""

BUSY_PEER_S = 0.02
"""So long a peer that computes as well may take to acknowledge, at the rate at which it did before."""

ANSWERS_OVER_PUSHES = 2
"""How many times as large as a worker's window a server's is.

Where forward waits for layer after layer, answers are of more urgent layers than the pushes that travel at
the same time. And pushes that get ahead leave answers behind for the end of an iteration, to one host more
than to others: all then wait for that one, with idle links (docs/adr/0004).
"""

MEMORY_S = 1.0
"""The rate is an average over about this much time under way."""


class Window:
    """The window of one peer.

    Attributes:
        limit: Bytes that may be under way.
        slice_bytes: Size of an ordinary slice: the largest of those that are exchanged with the peer.
    """

    def __init__(self, fixed: int = 0, *, times: int = 1) -> None:
        """Make a window.

        Args:
            fixed: The limit, if it shall not be derived from what is exchanged and observed.
            times: Factor on what is derived; 1 for a worker.
        """
        self._fixed = fixed
        self._times = times
        self._iteration_bytes = 0
        self.slice_bytes = 0
        self.limit = fixed or times * LEAST_BYTES
        self._paused = False
        self._in_flight = 0
        self._since = 0.0
        self._arrived = 0.0  # bytes, and the seconds that they took, both fading
        self._seconds = 0.0

    def expect(self, num_bytes: int, slice_bytes: int) -> None:
        """Note what is exchanged with the peer in an iteration beside what was noted before.

        Args:
            num_bytes: Bytes in all.
            slice_bytes: Of a full slice. It depends on the type of the key: 50,000 elements of float64 are
                four times those of float16.
        """
        self._iteration_bytes += num_bytes
        self.slice_bytes = max(self.slice_bytes, slice_bytes)
        self._adjust()

    def admits(self, num_bytes: int, in_flight: int) -> bool:
        """Tell whether a message may follow what is under way; one always may when nothing is."""
        return not num_bytes or not in_flight or in_flight + num_bytes <= self.limit

    def has_room(self, num_bytes: int) -> bool:
        """Tell whether that much more may be under way, beside what was sent and not seen to arrive."""
        return self._in_flight + num_bytes <= self.limit

    def sent(self, num_bytes: int, now: float) -> None:
        """Note a message."""
        if not num_bytes:
            return
        if not self._in_flight:
            self._since = now
        self._in_flight += num_bytes

    def resume(self) -> None:
        """Note that something waits again after a pause, in which nobody looked at what arrived.

        What the next ``observe`` sees may have arrived long ago, and says nothing of the rate.
        """
        self._paused = True

    def observe(self, in_flight: int, now: float) -> None:
        """Note how many of the bytes that were sent have not been acknowledged."""
        if self._paused:
            self._paused = False
            self._in_flight, self._since = in_flight, now
            return
        arrived = self._in_flight - in_flight
        if arrived <= 0:
            return
        elapsed = now - self._since
        fading = math.exp(-elapsed / MEMORY_S)
        self._arrived = self._arrived * fading + arrived
        self._seconds = self._seconds * fading + elapsed
        self._in_flight, self._since = in_flight, now
        self._adjust()

    def _adjust(self) -> None:
        if self._fixed:
            return
        rate = self._arrived / self._seconds if self._seconds else 0.0
        least = max(LEAST_BYTES, LEAST_SLICES * self.slice_bytes)
        wanted = max(least, SHARE * self._iteration_bytes, BUSY_PEER_S * rate)
        self.limit = self._times * int(min(wanted, max(MOST_BYTES, least)))
