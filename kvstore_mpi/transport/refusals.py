"""Connections that a transport has ended because strangers made them: counted, and logged now and then.

What else goes wrong with connections is logged here as well.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import Counter

from kvstore_mpi.launcher_events import CANNOT_CONNECT
from kvstore_mpi.wire.occasional import Occasional

logger = logging.getLogger(__name__)


class Refusals:
    """What one transport has refused.

    Attributes:
        counts: How many connections, by reason.
    """

    def __init__(self) -> None:
        """Start without any."""
        self.counts: Counter[str] = Counter()
        self._occasional = Occasional()

    def add(self, reason: str, text: object) -> None:
        """Count a connection; say why it is ended, at most once a minute for each reason."""
        self.counts[reason] += 1
        self.say(reason, f"a connection is ended ({reason}, {self.counts[reason]} so far): {text}")

    def say(self, reason: str, text: str) -> None:
        """Say what may come again and again, at most once a minute for each reason."""
        if self._occasional.is_due(reason, time.monotonic()):
            logger.warning("%s", text)

    def say_unreachable(self, endpoint: str, error: int, *, reached: bool) -> None:
        """Say that who listens at an endpoint cannot be reached from here, and why.

        That nobody listens any more says nothing of the network: sessions notice who has gone.

        Args:
            endpoint: Where it listens.
            error: A system's ``errno``.
            reached: It has been before; a firewall refuses from the beginning.
        """
        if error != errno.ECONNREFUSED or not reached:
            self.say("unreachable", f"{CANNOT_CONNECT}{endpoint}: {os.strerror(error)}")
