"""Files that are costly to make and the same for all tests: one of pytest's processes makes each."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def made_once(file: Path, make: Callable[[Path], None]) -> Path:
    """Return a file; whoever comes first makes it, and who comes meanwhile waits for that.

    Args:
        file: Where it is to be; its folder exists.
        make: Makes it, under the name that it is given.
    """
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed, or its process has ended
        if not file.exists():
            draft = file.with_suffix(f".draft{file.suffix}")
            make(draft)
            draft.rename(file)
    return file
