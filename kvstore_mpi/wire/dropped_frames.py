"""The frames that an endpoint has dropped, counted by reason, and logged now and then.

Anybody who reaches the socket can cause them, so that the log must not grow with their number.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from kvstore_mpi.wire.occasional import Occasional

if TYPE_CHECKING:
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.wire.codec import BadFrameError

logger = logging.getLogger(__name__)


class DroppedFrames:
    """What one process has dropped.

    Attributes:
        counts: How many frames, by reason.
    """

    def __init__(self, node: NodeId) -> None:
        """Start without any; ``node`` names the process in the log."""
        self.counts: Counter[str] = Counter()
        self._node = node
        self._occasional = Occasional()

    def add(self, error: BadFrameError, now: float) -> None:
        """Count a frame, and log it unless one of its reason was logged within the last minute."""
        # Counted even when nothing is logged: the number in the next line of log is all that tells one
        # stray frame from a flood of them.
        self.counts[error.reason] += 1
        if self._occasional.is_due(error.reason, now):
            # The last frames of a peer that was forgotten are ordinary; the rest is not.
            level = logging.DEBUG if error.reason == "session" else logging.WARNING
            count = self.counts[error.reason]
            text = "%s ignores frames that are not acceptable (%s, %d so far): %s"
            logger.log(level, text, self._node, error.reason, count, error)
