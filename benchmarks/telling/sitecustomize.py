"""On PYTHONPATH of a job of ``metrics.py``: processes tell about themselves only while a file is there."""

from __future__ import annotations

import os

from kvstore_mpi.metrics.telling import Teller

_tell = Teller.__call__
_while_there = os.environ["TELL_WHILE_THERE"]


def _tell_or_not(self: Teller, now: float) -> None:
    if os.path.exists(_while_there):  # noqa: PTH110  less than pathlib does of what is measured
        _tell(self, now)


Teller.__call__ = _tell_or_not  # type: ignore[method-assign]
