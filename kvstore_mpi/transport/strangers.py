"""Connections that others have made and that have not shown yet that they are of the job.

Their number is limited, and each has some seconds. Pure but for the limit on descriptors.
"""

from __future__ import annotations

import errno
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore_mpi.transport.connection import Connection

PROOF_S = 10.0
"""Seconds that who has connected has to show that it is of the job; it takes two round trips."""

MAX_STRANGERS = 1_024
"""Connections at a time that have shown nothing; of a limit on descriptors at most a quarter."""

READ_BYTES = 4 << 10
"""Bytes read in a pass from who has shown nothing: some handshakes, or some dozens of foreign messages."""

MAX_MESSAGES = 256
"""Messages of who has shown nothing; a process of the job says HELLO twice a second until one answers."""

MAX_QUEUED = 64
"""Messages that wait for a stranger to read them."""


EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Why ``accept`` fails for as long as nothing is released; other errors are those of one connection."""

ACCEPT_AGAIN_S = 1.0
"""From one attempt to accept to the next where there was no room."""


class Strangers:
    """Those of one transport, the oldest first."""

    def __init__(self) -> None:
        """Start without any."""
        self._until: dict[Connection, float] = {}
        self._most = min(MAX_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

    def __contains__(self, link: Connection) -> bool:
        """Tell whether a connection is one of them."""
        return link in self._until

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._until)

    def add(self, link: Connection, now: float) -> None:
        """Note that somebody has connected."""
        self._until[link] = now + PROOF_S

    def discard(self, link: Connection) -> None:
        """Forget a connection that has shown that it is of the job, or has ended."""
        self._until.pop(link, None)

    @property
    def surplus(self) -> Connection | None:
        """The one that has to go before another may come, if there is no room."""
        # The oldest and not the newest: a process of the job has shown itself within two round trips, so
        # that the old ones are others.
        return next(iter(self._until)) if len(self._until) >= self._most else None

    def late(self, now: float) -> list[Connection]:
        """Return those that have had their time."""
        late = []
        for link, until in self._until.items():
            if until > now:
                break
            late.append(link)
        return late
