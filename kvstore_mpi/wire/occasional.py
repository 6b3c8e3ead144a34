"""How often something that strangers can cause is said: at most once a minute for each reason. Pure."""

from __future__ import annotations

import math

LOG_INTERVAL = 60.0
"""Seconds between two lines of log of one reason."""


class Occasional:
    """When each reason was last said."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._said: dict[str, float] = {}

    def is_due(self, reason: str, now: float) -> bool:
        """Tell whether a reason may be said now, and note that it is; reasons are a few fixed words."""
        # For each reason apart: a port scan ("short", every second) must not hide that somebody knows our
        # frames and not our secret ("mac").
        if now - self._said.get(reason, -math.inf) < LOG_INTERVAL:
            return False
        self._said[reason] = now
        return True
