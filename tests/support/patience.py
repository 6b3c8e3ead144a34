"""By how much a machine that does other things may be slower than one that does not."""

from __future__ import annotations

import os


def load_factor() -> float:
    """Return by what to multiply a deadline that a quiet machine meets; 1 on such a one.

    Processes of the last minute that wanted a processor, for each that there is; three times that, since
    those that take turns also lose what the caches held.
    """
    return max(1.0, 3 * os.getloadavg()[0] / (os.cpu_count() or 1))
