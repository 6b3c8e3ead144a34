"""One worker of a job with one table, on the servers only: it looks rows up, computes, and pushes them.

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


class Embedding:
    """A table of any ids, of which rows come into being, and may be used for some steps."""

    def __init__(self, kv: KVStoreMPI, staleness: int) -> None:
        """Make the table."""
        self._table = TableEmbedding(kv, "table", DIM, num_rows=10**8, staleness=staleness)
        self._loss: Any = None

    def look_up(self, ids: Any) -> None:
        """Return when the rows are there."""
        with mx.autograd.record():
            self._loss = self._table(SPREAD * ids).sum()

    def prefetch(self, ids: Any) -> None:
        """Say which rows come next."""
        self._table.prefetch(SPREAD * ids)

    def update(self) -> None:
        """Push the gradient of the rows that were looked up last."""
        self._loss.backward()
        self._table.step(1)


class Weight:
    """A row-sparse weight, of which this worker has the rows that it has asked for."""

    def __init__(self, kv: KVStoreMPI, *, is_one: bool) -> None:
        """Make the weight; ``is_one``: of what is looked up and pushed, only look the first row up."""
        self._kv = kv
        self._most = 1 if is_one else None
        self._rows = mx.nd.sparse.zeros("row_sparse", (KNOWN_IDS, DIM))
        kv.init("weight", self._rows)
        self._ids: Any = None

    def look_up(self, ids: Any) -> None:
        """Return when the rows are there."""
        self._ids = mx.nd.array(ids, dtype="int64")
        self._kv.row_sparse_pull("weight", out=self._rows, row_ids=self._ids[: self._most])
        self._rows.wait_to_read()

    def prefetch(self, ids: Any) -> None:
        """Say which rows come next."""
        self._kv.prefetch("weight", mx.nd.array(ids, dtype="int64"))

    def update(self) -> None:
        """Push the gradient of the rows that were looked up last."""
        ones = mx.nd.ones((len(self._ids), DIM))
        gradient = mx.nd.sparse.row_sparse_array((ones, self._ids), shape=self._rows.shape)
        self._kv.push("weight", gradient)


def touch(table: TableEmbedding, rows: int, each: int) -> None:
    """Push a gradient for each of some rows, far apart, once."""
    for begin in range(0, rows, each):
        with mx.autograd.record():
            loss = table(SPREAD * np.arange(begin, begin + each)).sum()
        loss.backward()
        table.step(1)
    mx.nd.waitall()


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
    table = Weight(kv, is_one=plan["is_one"]) if plan["is_weight"] else Embedding(kv, plan["staleness"])
    batches = [draw(KNOWN_IDS, plan["distinct"], 1.0, kv.rank, number) for number in range(SETS)]
    for ids in batches:
        table.look_up(ids)
        table.update()
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


def _step(table: Embedding | Weight, batches: list[Any], step: int, plan: dict[str, Any]) -> float:
    """Take a step that computes for a while; return the seconds that its lookup took."""
    begun = time.monotonic()
    table.look_up(batches[step % SETS])
    found = time.monotonic() - begun
    if plan["ahead"]:
        table.prefetch(batches[(step + 1) % SETS])
    time.sleep(plan["compute_s"])
    table.update()
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
