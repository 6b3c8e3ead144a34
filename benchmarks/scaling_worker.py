"""One worker of a job whose processor time is taken apart: keys of many sizes, without a framework.

Started by ``scaling.py`` through ``mpilaunch``; the first worker reads what the kernel has counted for all
processes, and writes the result.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from harness.procfs import role_pids
from harness.scaling_model import Case
from harness.threads import Task, Tasks

from kvstore_mpi.node import process_worker
from kvstore_mpi.testing.blocking_store import DEADLINE_S, BlockingStore

if TYPE_CHECKING:
    from collections.abc import Sequence

WARMUP = 3
STILL_S = 0.3
"""How long all wait before and after a reading, so that it finds nobody at work."""


class Keys:
    """The keys of one case; all are pushed and pulled together, the first ones most urgently."""

    def __init__(self, store: BlockingStore, case: Case) -> None:
        """Create them."""
        self._store = store
        self._ones = np.ones(case.elements, np.float32)
        self._names = [f"{case}/{index}" for index in range(case.keys)]
        for name in self._names:
            store.init(name, np.zeros(case.elements, np.float32))

    def exchange(self, times: int) -> float:
        """Make round trips; return the seconds of them all."""
        meet(self._store)
        time.sleep(STILL_S)
        begin = time.monotonic()
        for _ in range(times):
            pushed = [
                self._store.begin_pushpull(name, self._ones, -index)
                for index, name in enumerate(self._names)
            ]
            for each in pushed:
                each.result(DEADLINE_S)
        seconds = time.monotonic() - begin
        meet(self._store)
        time.sleep(STILL_S)
        return seconds


def meet(store: BlockingStore) -> None:
    """Wait for all workers."""
    store.pushpull("meeting", np.ones(1, np.float32))


def spent(tasks: Sequence[Task], role: str, times: int) -> list[float]:
    """Return the processor seconds of each thread of a role in one round trip, the busiest first."""
    return sorted((task.cpu_s / times for task in tasks if task.role == role), reverse=True)


def measure(store: BlockingStore, case: Case) -> dict[str, Any]:
    """Run one case."""
    keys = Keys(store, case)
    keys.exchange(WARMUP)
    pids = role_pids() if store.worker.rank == 0 else {}
    before, told = Tasks.now(pids), store.worker.stats()
    seconds = keys.exchange(case.times)
    tasks, now = Tasks.now(pids).since(before), store.worker.stats()
    carried = sum(now[name] - told[name] for name in ("messages_sent", "messages_received"))
    return {
        **case._asdict(),
        "seconds": seconds / case.times,
        "messages": carried / case.times,
        "worker_s": spent(tasks, "worker", case.times),
        "server_s": spent(tasks, "server", case.times),
    }


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", required=True, help="KEYSxELEMENTSxTIMES, comma-separated")
    parser.add_argument("--result", type=Path, required=True, help="what the first worker writes")
    arguments = parser.parse_args()
    worker = process_worker("a benchmark", "sync")
    store = BlockingStore(worker)
    store.init("meeting", np.zeros(1, np.float32))
    found = [measure(store, Case.of(text)) for text in arguments.cases.split(",")]
    if worker.rank == 0:
        arguments.result.write_text(json.dumps(found))
    worker.close()


if __name__ == "__main__":
    main()
