"""The pace of jobs that train until a test has seen enough: meanwhile others need the processors."""

from __future__ import annotations

import time

PAUSE_S = 0.005
"""After each step, which itself takes a millisecond or two."""


def pause() -> None:
    """Wait as a larger model would compute."""
    time.sleep(PAUSE_S)
