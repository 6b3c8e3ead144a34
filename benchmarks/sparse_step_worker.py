"""One worker that replays the communication of a model's steps: lookups, then gradients, without compute.

Started by ``sparse_step.py``; the same script for every store, which it drives by plain calls. Writes
``worker<rank>.json``.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from harness.netns import LINK
from harness.procfs import Load, job_pids
from harness.sparse_ids import draw

SETS = 4
"""Drawings of ids that a worker goes through again and again."""

CHECKED_ROWS = 1000


@dataclass(frozen=True)
class Plan:
    """What to replay.

    Attributes:
        tables: Rows, width, rows touched and exponent of each table.
        dense: Elements of the other tensors.
        warmup: Steps that are not measured.
        steps: Steps that are.
    """

    tables: list[tuple[int, int, int, float]]
    dense: list[int]
    warmup: int
    steps: int

    @property
    def num_steps(self) -> int:
        """All steps: one more, between the two kinds, has nothing to wait for."""
        return self.warmup + 1 + self.steps


class Replay:
    """The tensors of the model and the steps over them; keys of tables come first."""

    def __init__(self, kv: Any, plan: Plan, **options: Any) -> None:
        """Make the arrays and tell the store; an optimizer takes every gradient from its weight."""
        self._kv, self._plan = kv, plan
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, wd=0.0), **options)
        self._ids = [self._drawn(kv.rank, number) for number in range(SETS)]
        self._lookups = [[mx.nd.array(ids, dtype="int64") for ids in each] for each in self._ids]
        self._rows = [self._pushed(each) for each in self._ids]
        self._tables = list(range(len(plan.tables)))
        self._found = [mx.nd.zeros(table[:2], stype="row_sparse") for table in plan.tables]
        self._dense = [mx.nd.zeros(size) for size in plan.dense]
        self._gradients = [mx.nd.ones(size) for size in plan.dense]
        for key, (rows, width, _, _) in enumerate(plan.tables):
            # With all of its rows: stock's servers serve no others.
            value = (mx.nd.zeros((rows, width)), np.arange(rows))
            kv.init(key, mx.nd.sparse.row_sparse_array(value, shape=(rows, width)))
        for key, array in enumerate(self._dense, len(self._tables)):
            kv.init(key, array)
        mx.nd.waitall()
        self._barrier()

    def _drawn(self, rank: int, number: int) -> list[Any]:
        return [
            draw(rows, touched, exponent, rank, number, key)
            for key, (rows, _, touched, exponent) in enumerate(self._plan.tables)
        ]

    def _pushed(self, drawn: list[Any]) -> list[Any]:
        return [
            mx.nd.sparse.row_sparse_array(
                (np.ones((ids.size, width), np.float32), ids), shape=(rows, width)
            )
            for ids, (rows, width, _, _) in zip(drawn, self._plan.tables)
        ]

    def run(self) -> dict[str, Any]:
        """Do all steps; return when each measured one began and ended, and what it cost."""
        plan = self._plan
        pids = job_pids() if self._kv.rank == 0 else []
        self._barrier()
        for step in range(plan.warmup):
            self._step(step)
        self._settle()
        before, crossed = Load.now(pids) if pids else None, link_bytes()
        self._barrier()  # others begin when this one has read
        self._step(plan.warmup)  # waits for nothing, as nothing is under way: no length of a step
        marks = [time.monotonic()]
        for step in range(plan.warmup + 1, plan.num_steps):
            self._step(step)
            marks.append(time.monotonic())
        load = [asdict(before), asdict(Load.now(pids))] if before else []
        self._settle()
        crossed = link_bytes() - crossed
        self._check()
        return {"marks": marks, "load": load, "link_bytes": crossed / (plan.steps + 1)}

    def _step(self, step: int) -> None:
        """Look rows up as they are after the step before, wait for the other weights, push gradients."""
        kv, number = self._kv, step % SETS
        if self._tables:
            kv.row_sparse_pull(self._tables, out=self._found, row_ids=self._lookups[number])
        mx.nd.waitall()
        for place in reversed(range(len(self._dense))):
            key = len(self._tables) + place
            self._gradients[place][:] = 1
            kv.pushpull(key, self._gradients[place], out=self._dense[place], priority=-key)
        for key in reversed(self._tables):
            kv.push(key, self._rows[number][key], priority=-key)

    def _settle(self) -> None:
        mx.nd.waitall()
        self._barrier()

    def _barrier(self) -> None:
        self._kv._barrier()  # noqa: SLF001  MXNet's only name for it

    def _check(self) -> None:
        """Make sure that all gradients of all workers have been taken from the weights, once.

        Raises:
            ValueError: They have not.
        """
        steps, workers = self._plan.num_steps, self._kv.num_workers
        for array in self._dense:
            if not (array.asnumpy() == -steps * workers).all():
                raise ValueError(
                    f"worker {self._kv.rank}: got {array[0].asscalar()}, not {-steps * workers}"
                )
        times = [len(range(number, steps, SETS)) for number in range(SETS)]
        every = [[self._drawn(rank, number) for number in range(SETS)] for rank in range(workers)]
        for key, own in enumerate(self._ids[0]):
            ids = own[:CHECKED_ROWS]
            out = self._found[key]
            self._kv.row_sparse_pull(key, out=out, row_ids=mx.nd.array(ids, dtype="int64"))
            counts = sum(
                times[number] * np.isin(ids, drawn[number][key])
                for drawn in every
                for number in range(SETS)
            )
            if not (out.data.asnumpy() == -counts[:, None]).all():
                raise ValueError(f"worker {self._kv.rank}: rows of table {key} are wrong")


def link_bytes() -> int:
    """Return what has crossed this host's link so far, in both directions."""
    folder = Path("/sys/class/net") / LINK / "statistics"
    return sum(int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


def main() -> None:
    """Replay the plan and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv-store", default="dist_sync_mpi", help="name given to mx.kv.create")
    parser.add_argument("--compress", help="given to the store's set_optimizer")
    parser.add_argument("--results", type=Path, default=Path(), help="where plan.json is and results go")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if arguments.kv_store.endswith("_mpi"):
        import kvstore_mpi.mxnet  # noqa: F401, PLC0415  registers the store
    kv = mx.kv.create(arguments.kv_store)
    plan = Plan(**json.loads((arguments.results / "plan.json").read_text()))
    replay = Replay(kv, plan, **({"compress": arguments.compress} if arguments.compress else {}))
    if kv.rank == 0:
        (arguments.results / "created").write_text("created")  # pipes: links are limited in between
        (arguments.results / "go").read_text()
    measured = replay.run()
    (arguments.results / f"worker{kv.rank}.json").write_text(json.dumps(measured))
    kv._barrier()  # noqa: SLF001  MXNet's only name for it


if __name__ == "__main__":
    main()
