"""One worker that sends the keys of a case, and reads what has crossed its host's link meanwhile.

Started by ``sparse_bytes.py``. Writes ``worker<rank>.json``: bytes sent and received by its host in a step.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from harness.netns import LINK
from harness.sparse_bytes_cases import CASES, DENSE_ELEMENTS, STEPS, WARMUP, WIDTH, Case
from harness.sparse_ids import times_drawn

from kvstore_mpi.hybrid.cost import Pull

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

SGD = {"name": "sgd", "hyper": {"lr": 1.0}}
"""With it a table's row says how often it was pushed."""


class Sends(Protocol):
    """A way to send."""

    rank: int
    ranks: int
    has_tables: bool
    """What comes back are rows of a table, from which an optimizer has taken all that was pushed so far."""

    def begin(self, case: Case, /) -> None:
        """Create the keys of a case."""
        ...

    def dense(self) -> list[Array]:
        """Add ones up; return the sums."""
        ...

    def rows(self, ids: list[Array]) -> list[tuple[Array, Array]]:
        """Push ones for rows of each key; return rows that came back, with their ids."""
        ...

    def barrier(self) -> None:
        """Wait for all."""
        ...

    def close(self) -> None:
        """Leave the others."""
        ...


class Ended:
    """Waits for operations of a worker."""

    def __init__(self) -> None:
        """Wait for none."""
        self._errors: list[BaseException | None] = []
        self._one = threading.Semaphore(0)
        self._begun = 0

    def __call__(self, error: BaseException | None) -> None:
        """Note that one has ended."""
        self._errors.append(error)
        self._one.release()

    def one(self) -> Ended:
        """Expect one more."""
        self._begun += 1
        return self

    def wait(self) -> None:
        """Wait for all that were begun."""
        for _ in range(self._begun):
            self._one.acquire()
        self._begun = 0
        for error in filter(None, self._errors):
            raise error
        self._errors.clear()


class Ours:
    """This project's worker, without any framework."""

    def __init__(self) -> None:
        """Meet the others."""
        from kvstore_mpi.node import process_worker  # noqa: PLC0415  other ways need no job

        self._worker: Any = process_worker("the benchmark", "sync")
        self.rank, self.ranks = self._worker.rank, self._worker.num_workers
        self.has_tables = self._worker.num_servers > 0
        self._ended = Ended()

    def begin(self, case: Case) -> None:
        """See ``Sends``; a store of tables has an optimizer."""
        worker = self._worker
        self._case, self._store = case, worker.open_store("sync")
        if case.rows and self.has_tables:
            worker.set_optimizer(self._store, SGD)
        self._buffers = []
        for key in range(case.keys):
            if not case.rows:
                self._buffers.append(worker.exchange_buffer(DENSE_ELEMENTS, "float32"))
                self._buffers[-1].fill(0)
                worker.init(self._store, key, (DENSE_ELEMENTS,), self._buffers[-1], self._ended.one())
                continue
            shape = (case.rows, WIDTH)
            has_table = self.rank == 0 or not self.has_tables
            table = np.zeros(shape, np.float32) if has_table else None
            pieces = worker.num_servers if case.in_pieces else 1
            worker.init_rows(
                self._store, key, shape, "float32", table, self._ended.one(), partitions=pieces
            )
        self._ended.wait()

    def dense(self) -> list[Array]:
        """See ``Sends``."""
        for key, buffer in enumerate(self._buffers):
            buffer.fill(1)
            self._worker.pushpull(self._store, key, -key, self._ended.one())
        self._ended.wait()
        return self._buffers

    def rows(self, ids: list[Array]) -> list[tuple[Array, Array]]:
        """See ``Sends``; what is asked for by ids is as in a lookup, by itself."""
        from kvstore_mpi.records import Rows  # noqa: PLC0415  see above

        came: list[list[Any]] = [[] for _ in ids]
        together = self._case.pull is Pull.CHANGED or not self.has_tables
        for key, own in enumerate(ids):
            ones = Rows(own, np.ones((own.size, WIDTH), np.float32))
            if together:
                self._worker.pushpull_rows(self._store, key, ones, -key, self._ended.one(), came[key])
            else:
                self._worker.push_rows(self._store, key, ones, -key, self._ended.one())
        if not together:
            for key, own in enumerate(ids):
                self._worker.pull_rows(
                    self._store, key, -key, self._ended.one(), came[key], own, together=True
                )
        self._ended.wait()
        return [_one(parts) for parts in came]

    def barrier(self) -> None:
        """See ``Sends``."""
        self._worker.barrier()

    def close(self) -> None:
        """See ``Sends``."""
        self._worker.close()


def _one(parts: list[Any]) -> tuple[Array, Array]:
    """Put parts together, in the order of ids."""
    ids = np.concatenate([part.ids for part in parts])
    order = np.argsort(ids)
    return ids[order], np.concatenate([part.values for part in parts])[order]


class Stock:
    """MXNet's own parameter server."""

    has_tables = True

    def __init__(self) -> None:
        """Meet the others."""
        import mxnet as mx  # noqa: PLC0415  starts its own threads

        self._mx, self._kv = mx, mx.kv.create("dist_sync")
        self.rank, self.ranks = self._kv.rank, self._kv.num_workers

    def begin(self, case: Case) -> None:
        """See ``Sends``; rows come with an optimizer."""
        mx, kv = self._mx, self._kv
        if case.rows:
            kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, wd=0.0))
        self._keys = [*range(case.keys)]
        shape = (case.rows, WIDTH) if case.rows else (DENSE_ELEMENTS,)
        stype = "row_sparse" if case.rows else "default"
        self._shape = shape
        self._outs = [mx.nd.zeros(shape, stype=stype) for _ in self._keys]
        for key in self._keys:
            value = mx.nd.zeros(shape)
            if case.rows:  # the servers serve the rows that they were given at first
                value = mx.nd.sparse.row_sparse_array((value, np.arange(case.rows)), shape=shape)
            kv.init(key, value)
        mx.nd.waitall()

    def dense(self) -> list[Array]:
        """See ``Sends``."""
        for key, out in zip(self._keys, self._outs):
            self._kv.push(key, self._mx.nd.ones(self._shape), priority=-key)
            self._kv.pull(key, out, priority=-key)
        return [out.asnumpy() for out in self._outs]

    def rows(self, ids: list[Array]) -> list[tuple[Array, Array]]:
        """See ``Sends``."""
        nd = self._mx.nd
        for key, own in zip(self._keys, ids):
            ones = np.ones((own.size, WIDTH), np.float32)
            rows = nd.sparse.row_sparse_array((ones, own), shape=self._shape)
            self._kv.push(key, rows, priority=-key)
        for key, own, out in zip(self._keys, ids, self._outs):
            self._kv.row_sparse_pull(key, out=out, row_ids=nd.array(own, dtype="int64"), priority=-key)
        return [(out.indices.asnumpy(), out.data.asnumpy()) for out in self._outs]

    def barrier(self) -> None:
        """See ``Sends``."""
        self._kv._barrier()  # noqa: SLF001  MXNet's only name for it

    def close(self) -> None:
        """See ``Sends``; MXNet does it at the end of the process."""


class Mpi:
    """The library's own collectives: what Parallax takes for allreduce."""

    has_tables = False

    def __init__(self) -> None:
        """Meet the others."""
        from mpi4py import MPI  # noqa: PLC0415  initialises it

        self._comm = MPI.COMM_WORLD
        self.rank, self.ranks = self._comm.rank, self._comm.size

    def begin(self, case: Case) -> None:
        """See ``Sends``."""
        self._vectors = [np.empty(DENSE_ELEMENTS, np.float32) for _ in range(0 if case.rows else case.keys)]

    def dense(self) -> list[Array]:
        """See ``Sends``."""
        from mpi4py import MPI  # noqa: PLC0415  see above

        for vector in self._vectors:
            vector.fill(1)
            self._comm.Allreduce(MPI.IN_PLACE, vector)
        return self._vectors

    def rows(self, ids: list[Array]) -> list[tuple[Array, Array]]:
        """See ``Sends``; the rows are added up with ``add.at``."""
        sums = []
        for own in ids:
            every = np.empty(self.ranks * own.size, np.int64)
            values = np.empty((every.size, WIDTH), np.float32)
            self._comm.Allgather(own, every)
            self._comm.Allgather(np.ones((own.size, WIDTH), np.float32), values)
            names, places = np.unique(every, return_inverse=True)
            total = np.zeros((names.size, WIDTH), np.float32)
            np.add.at(total, places, values)
            sums.append((names, total))
        return sums

    def barrier(self) -> None:
        """See ``Sends``."""
        self._comm.Barrier()

    def close(self) -> None:
        """See ``Sends``; MPI does it at the end of the process."""


WAYS = {"ours": Ours, "stock": Stock, "mpi": Mpi}


def link_bytes() -> int:
    """Return what has crossed this host's link so far, in both directions."""
    folder = Path("/sys/class/net") / LINK / "statistics"
    return sum(int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


def measure(way: Sends, case: Case) -> float:
    """Return the bytes of a step; every sum is checked.

    Raises:
        ValueError: A sum is wrong.
    """
    way.begin(case)
    way.barrier()
    before = 0
    pushed = np.zeros((case.keys, case.rows), np.float32)
    for step in range(WARMUP + STEPS):
        if step == WARMUP:
            way.barrier()
            before = link_bytes()
            way.barrier()  # others begin when this one has read
        if case.rows:
            drawn = [[case.ids(rank, key, step) for rank in range(way.ranks)] for key in range(case.keys)]
            came = way.rows([every[way.rank] for every in drawn])
            for every, (ids, values), counts in zip(drawn, came, pushed):
                if way.has_tables:
                    for one in every:
                        counts[one] -= 1
                else:
                    counts[ids] = times_drawn(ids, every)
                _check(values, counts[ids, None], case, step)
        else:
            for array in way.dense():
                _check(array, way.ranks, case, step)
    way.barrier()
    return (link_bytes() - before) / STEPS


def _check(values: Array, expected: Any, case: Case, step: int) -> None:
    if not np.array_equal(values, np.broadcast_to(expected, values.shape)):
        raise ValueError(f"{case.name}, step {step}: wrong sums")


def main() -> None:
    """Measure the cases and write what they cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=list(WAYS), default="ours")
    parser.add_argument("--case", type=int, required=True, help="its number")
    parser.add_argument("--results", type=Path, default=Path(), help="directory for worker<rank>.json")
    arguments = parser.parse_args()
    way: Sends = WAYS[arguments.way]()
    measured = measure(way, CASES[arguments.case])
    (arguments.results / f"worker{way.rank}.json").write_text(json.dumps(measured))
    way.barrier()
    way.close()


if __name__ == "__main__":
    main()
