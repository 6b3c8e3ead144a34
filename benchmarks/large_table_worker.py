"""One worker of a job with one table that no worker holds: it looks rows up, computes, and pushes them.

Started by ``large_table.py``. Computing is waiting, as for an accelerator. Writes ``worker<rank>.json``.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from harness.procfs import anonymous_bytes, server_pids
from harness.sparse_ids import draw

from kvstore_mpi.mxnet import KVStoreMPI, TableEmbedding

SETS = 8
"""Batches that a worker goes through again and again, of different ids."""

KNOWN_IDS = 1_000_000
"""Of which ids are drawn by Zipf's law; those of all tables are spread over 10^8 by a factor."""

SPREAD = 97
DIM = 64


def touch(table: TableEmbedding, rows: int, each: int) -> None:
    """Push a gradient for each of some rows, far apart, once."""
    for begin in range(0, rows, each):
        _train(table, SPREAD * np.arange(begin, begin + each))
    mx.nd.waitall()


def _train(table: TableEmbedding, ids: Any) -> float:
    """Take a step with some rows; return the seconds until they were there."""
    begun = time.monotonic()
    with mx.autograd.record():
        loss = table(ids).sum()
    found = time.monotonic()
    loss.backward()
    table.step(1)
    return found - begun


def memory_of(kv: KVStoreMPI, rows: int) -> dict[str, float]:
    """Return what the servers hold more when some of 10^8 rows have been trained."""
    kv.set_optimizer(mx.optimizer.create("adagrad", learning_rate=0.1))
    table = TableEmbedding(kv, "table", DIM, num_rows=SPREAD * rows)
    touch(table, 1000, 1000)  # buffers are there
    before = sum(map(anonymous_bytes, server_pids()))
    touch(table, rows, 10_000)
    return {"rows": rows, "grown": sum(map(anonymous_bytes, server_pids())) - before}


def lookups(kv: KVStoreMPI, plan: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return how long steps took, and how much of that was waiting for rows."""
    kv.set_optimizer(mx.optimizer.create("adagrad", learning_rate=0.1))
    staleness = plan["staleness"] or 0
    table = TableEmbedding(kv, "table", DIM, num_rows=10**8, staleness=staleness)
    batches = [SPREAD * draw(KNOWN_IDS, plan["distinct"], 1.0, kv.rank, number) for number in range(SETS)]
    for ids in batches:
        _train(table, ids)
    mx.nd.waitall()
    kv.barrier()
    if kv.rank == 0:
        (folder / "created").write_text("created")  # pipes: links are limited in between
        (folder / "go").read_text()
    kv.barrier()
    found = [_step(table, batches, step, plan) for step in range(plan["warmup"])]
    begun = time.monotonic()
    found = [_step(table, batches, step, plan) for step in range(plan["steps"])]
    return {"step_s": (time.monotonic() - begun) / len(found), "lookup_s": sum(found) / len(found)}


def _step(table: TableEmbedding, batches: list[Any], step: int, plan: dict[str, Any]) -> float:
    """Take a step that computes for a while; return the seconds that its lookup took."""
    begun = time.monotonic()
    with mx.autograd.record():
        loss = table(batches[step % SETS]).sum()
    found = time.monotonic() - begun
    if plan["staleness"] is not None:
        table.prefetch(batches[(step + 1) % SETS])
    time.sleep(plan["compute_s"])
    loss.backward()
    table.step(1)
    return found


def main() -> None:
    """Do what the plan says and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="where plan.json is and results go")
    folder = parser.parse_args().results
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    plan = json.loads((folder / "plan.json").read_text())
    kv = KVStoreMPI("sync")
    measured = memory_of(kv, plan["rows"]) if "rows" in plan else lookups(kv, plan, folder)
    (folder / f"worker{kv.rank}.json").write_text(json.dumps(measured))
    kv.barrier()


if __name__ == "__main__":
    main()
