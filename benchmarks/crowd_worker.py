"""One worker of a job of real processes that ``crowd.py`` starts: it joins, meets the others, and leaves.

Each step waits for a file of the benchmark's folder, and leaves one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from kvstore_mpi.node import process_worker

LOOK_S = 0.02


def wait_for(path: Path) -> None:
    """Wait for a file; what that costs is this process's, which is not measured."""
    while not path.exists():
        time.sleep(LOOK_S)


folder = Path(sys.argv[1])
worker = process_worker("a measurement", "sync")
(folder / f"joined{worker.rank}").touch()
wait_for(folder / "meet")
worker.barrier()
(folder / f"met{worker.rank}").touch()
wait_for(folder / "leave")
worker.close()
