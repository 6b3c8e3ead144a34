"""One worker of a measurement of what metrics cost: blocks of steps, with and without them, in turn.

Started by ``metrics.py``; the first worker writes ``found.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import mxnet as mx
from harness.cases import CASES, by_names
from harness.procfs import cpu_seconds, role_pids
from metrics import KINDS, NOTHING
from pushpull_worker import KEYS_PER_CASE, Parameters, key_shapes, pushpull, round_trip

GO_ON = -1
"""Key by which both workers stop after the same step."""

WARMUP_S = 1.2
"""Before a block is timed; processes tell about themselves once a second."""


def steps_for(kv: Any, parameters: Parameters, seconds: float) -> int:
    """Make steps for that long; return how many both workers have made."""
    steps, end = 0, time.monotonic() + seconds
    go_on = mx.nd.ones(1)
    while go_on.asscalar():
        round_trip(kv, parameters, pushpull)
        steps += 1
        go_on[:] = time.monotonic() < end
        kv.pushpull(GO_ON, [go_on], out=[go_on])
    return steps


def block(kv: Any, parameters: Parameters, pids: dict[int, str], seconds: float) -> dict[str, float]:
    """Make steps after some that do not count; return seconds and processor seconds of one."""
    steps_for(kv, parameters, WARMUP_S)
    spent, begin = sum(map(cpu_seconds, pids)), time.monotonic()
    steps = steps_for(kv, parameters, seconds)
    taken = time.monotonic() - begin
    return {"seconds": taken / steps, "cpu": (sum(map(cpu_seconds, pids)) - spent) / steps, "steps": steps}


def main() -> None:
    """Make the blocks of each case and write what they have cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", required=True, help="comma-separated names")
    parser.add_argument("--turns", type=int, required=True, help="blocks of each kind")
    parser.add_argument("--block", type=float, required=True, help="seconds of a block")
    parser.add_argument("--folder", type=Path, required=True, help="where the benchmark looks")
    arguments = parser.parse_args()
    kv = mx.kv.create("dist_sync_mpi")
    kv.init(GO_ON, mx.nd.zeros(1))
    pids = role_pids() if kv.rank == 0 else {}
    tells, found = arguments.folder / "tells", []
    for index, case in enumerate(by_names(arguments.cases, CASES)):
        parameters = Parameters.of(key_shapes(case), index * KEYS_PER_CASE)
        for key, weight in zip(parameters.keys, parameters.weights):
            kv.init(key, mx.nd.zeros(weight.shape))
        for turn in range(arguments.turns):
            for kind in KINDS[:: -1 if turn % 2 else 1]:
                if kv.rank == 0:
                    tells.unlink(missing_ok=True)
                    if kind != NOTHING:
                        tells.write_text(kind)
                cost = block(kv, parameters, pids, arguments.block)
                found.append({"case": case.name, "turn": turn, "kind": kind, **cost})
    if kv.rank == 0:
        (arguments.folder / "found.json").write_text(json.dumps(found))
    kv.barrier()


if __name__ == "__main__":
    main()
