"""One worker of a measurement of where the time goes; the same script for every kind of store.

Started by ``where_time_goes.py``; writes ``worker<rank>.json``. The first worker reads what the system says
of all threads of the job; the others only run.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mxnet as mx
from harness.cases import CASES, Case, by_names
from harness.procfs import role_pids
from harness.threads import Tasks, counted_calls
from pushpull_worker import KEYS_PER_CASE, Parameters, key_shapes, pushpull, round_trip

STILL_S = 0.3
"""How long both workers wait before and after a reading, so that it finds nobody at work."""


def repeat(kv: Any, parameters: Parameters, times: int) -> float:
    """Make round trips of all keys; return the seconds that they took."""
    kv._barrier()  # noqa: SLF001  MXNet's only name for it
    time.sleep(STILL_S)
    begin = time.monotonic()
    for _ in range(times):
        round_trip(kv, parameters, pushpull)
    seconds = time.monotonic() - begin
    kv._barrier()  # noqa: SLF001  MXNet's only name for it
    time.sleep(STILL_S)
    return seconds


def measure(kv: Any, case: Case, first_key: int, trace_into: Path | None) -> dict[str, Any]:
    """Run one case, with the kernel's counts and, much slower, strace's of system calls if wanted."""
    parameters = Parameters.of(key_shapes(case), first_key)
    for key, weight in zip(parameters.keys, parameters.weights):
        kv.init(key, mx.nd.zeros(weight.shape))
    # The first worker looks at all processes of the job.
    pids = role_pids() if kv.rank == 0 else {}
    repeat(kv, parameters, case.warmup)
    before = Tasks.now(pids)
    with counted_calls(pids if trace_into else {}, trace_into) as calls:
        seconds = repeat(kv, parameters, case.iterations)
    return {
        "keys": len(parameters.keys),
        "bytes": parameters.num_bytes,
        "round_trips": case.iterations,
        "seconds": seconds,
        "tasks": [asdict(task) for task in Tasks.now(pids).since(before)],
        "calls": calls,
    }


def main() -> None:
    """Run the cases and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv-store", required=True, help="name given to mx.kv.create")
    parser.add_argument("--cases", required=True, help="comma-separated names")
    parser.add_argument("--results", type=Path, required=True, help="directory for worker<rank>.json")
    parser.add_argument("--trace", action="store_true", help="count system calls instead of time")
    arguments = parser.parse_args()
    kv = mx.kv.create(arguments.kv_store)
    cases = {
        case.name: measure(kv, case, index * KEYS_PER_CASE, arguments.results if arguments.trace else None)
        for index, case in enumerate(by_names(arguments.cases, CASES))
    }
    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    found = {"pid": os.getpid(), "threads": names, "cases": cases}
    (arguments.results / f"worker{kv.rank}.json").write_text(json.dumps(found))
    kv._barrier()  # noqa: SLF001  MXNet's only name for it


if __name__ == "__main__":
    main()
