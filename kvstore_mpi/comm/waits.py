"""Lets ranks sleep while they wait for other hosts: MPI polls, and a wait over a network is long.

MPICH polls without a pause, so that a rank which waits keeps a core from servers, from its own I/O thread,
and from the training. With this setting it sleeps between two polls, for the 50 to 100 us that the system's
timers take. Ranks of one host wait for less than that, and so do those on networks with cards that write
into memory themselves.

Over a slow link the thread would still be woken 10,000 times a second for as long as a step takes. So the
longer a call usually takes, the later its timers may be.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from kvstore_mpi.comm.memory_hooks import RDMA_DEVICES, has_cards

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping
    from pathlib import Path

VARIABLE = "MPIR_CVAR_ENABLE_HEAVY_YIELD"

_RANKS, _RANKS_HERE = "PMI_SIZE", "MPI_LOCALNRANKS"
"""What MPICH's own mpiexec tells."""


def sleep_between_hosts(environment: MutableMapping[str, str], devices: Path = RDMA_DEVICES) -> None:
    """Tell MPICH, unless the user has said how it is to wait; must come before MPI is loaded."""
    ranks, here = environment.get(_RANKS, ""), environment.get(_RANKS_HERE, "")
    apart = ranks.isdigit() and here.isdigit() and int(here) < int(ranks)
    if VARIABLE not in environment and apart and not has_cards(devices):
        environment[VARIABLE] = "1"


USUAL_NS, LONGEST_NS = 50_000, 1_000_000
"""By how much timers may be late: as Linux has it, and at most. In a millisecond a link of 200 Mbit/s
carries 25 KB, which lie in the buffers of its sockets meanwhile."""

SHARE, SHARE_OF_SEVERAL = 0.08, 0.12
"""Of the time of one message that timers may be late by: half of it is lost on average, where nothing else
goes on; and less of it where several calls are under way."""

HELD_BYTES = 64 << 10
"""That sockets hold while a thread sleeps: it comes back before they have no more to send."""

Around = Callable[[int], AbstractContextManager[None]]
"""Encloses a call, given its bytes."""

_MEMORY = 1 / 4
"""What the last call counts for in what one of its size usually takes."""

_SET_TIMER_SLACK = 29
"""Of Linux's ``prctl``."""


def sleeps(environment: Mapping[str, str]) -> bool:
    """Return whether MPICH sleeps while it waits."""
    return environment.get(VARIABLE) == "1"


def messages_of_the_library(ranks: int) -> int:
    """Return how many messages an allreduce of MPICH's is, one after the other: 2 log2 N."""
    return max(1, 2 * (ranks - 1).bit_length())


def slack_ns(usual_s: float, num_bytes: int, messages: int, share: float = SHARE) -> int:
    """Return by how much timers may be late in a call that usually takes this long.

    Args:
        usual_s: Seconds.
        num_bytes: That cross the link of a rank.
        messages: That it is one after the other, each of which is waited for.
        share: Of the time of one of them.
    """
    message_s = usual_s / messages
    held_s = usual_s * HELD_BYTES / max(1, num_bytes)
    return int(min(max(1e9 * min(share * message_s, held_s), USUAL_NS), LONGEST_NS))


class Patience:
    """Lets the timers of a thread be late in calls that take long, and in no others."""

    def __init__(
        self,
        messages: int,
        share: float,
        allow: Callable[[int], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without knowing how long calls take.

        Args:
            messages: That a call is, one after the other.
            share: Of the time of a message that timers may be late by.
            allow: Told by how many nanoseconds the thread's timers may be late.
            now: Tells the time.
        """
        self._messages = messages
        self._share = share
        self._allow = allow
        self._now = now
        self._usual_s: dict[int, float] = {}  # by the binary digits of the sizes of calls

    @contextmanager
    def during(self, num_bytes: int) -> Iterator[None]:
        """Enclose a call, and note how long it takes."""
        begin = self._now()
        try:
            with self.late_timers(num_bytes):
                yield
        finally:
            self.took(num_bytes, self._now() - begin)

    @contextmanager
    def late_timers(self, num_bytes: int) -> Iterator[None]:
        """Enclose a call that says nothing about how long one takes."""
        slack = self.slack_ns(num_bytes)
        if slack > USUAL_NS:
            self._allow(slack)
        try:
            yield
        finally:
            if slack > USUAL_NS:
                self._allow(USUAL_NS)

    def slack_ns(self, num_bytes: int) -> int:
        """Return by how much timers may be late in a call of this many bytes."""
        usual_s = self._usual_s.get(num_bytes.bit_length(), 0.0)
        return slack_ns(usual_s, num_bytes, self._messages, self._share)

    def took(self, num_bytes: int, seconds: float) -> None:
        """Note how long a call took."""
        size = num_bytes.bit_length()
        usual_s = self._usual_s.get(size, 0.0)
        self._usual_s[size] = usual_s + _MEMORY * (seconds - usual_s)


def around_calls(messages: int, environment: Mapping[str, str]) -> Around:
    """Return what encloses calls of a thread by their bytes: patience, where MPICH sleeps.

    Args:
        messages: That a call is, one after the other.
        environment: Of this process.
    """
    if not sleeps(environment):
        return lambda _: nullcontext()
    return Patience(messages, SHARE, allow_late_timers).during


def patience_with_several(messages: int) -> Patience:
    """Return the patience with sums of which several are under way, each of this many messages."""
    return Patience(messages, SHARE_OF_SEVERAL, allow_late_timers)


def allow_late_timers(nanoseconds: int) -> None:
    """Tell Linux by how much the timers of this thread may be late; other systems cannot be told."""
    if sys.platform == "linux":
        _LIBRARY.prctl(_SET_TIMER_SLACK, ctypes.c_ulong(nanoseconds), 0, 0, 0)


_LIBRARY = ctypes.CDLL(None)
