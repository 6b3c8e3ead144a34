"""Measures what slices and their bytes cost the store's processes, for ``mpilaunch measure-links``.

A job with a client and a server on each host pushes and pulls the same values in many slices or in few, as
``slice_elements`` says, and measures its steps; each host then needs longer for the many by what a slice
costs there. The launcher runs several such jobs in turn, and computes that. A ping between two sockets
would not tell: it takes microseconds, and of a slice workers and servers find the place, add, update and
answer.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.node import process_worker
from kvstore_mpi.planner.row_costs import dense_byte_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.worker.worker import Worker

MANY, FEW = 12_500, 400_000
"""Elements of a slice: the smallest and the largest size that plans compare."""

ITEM_BYTES = 4
MOST_BYTES = 32 << 20
"""That a host sends in a step, at most."""

STEP_S = 0.25
"""A step sends what a link carries in this time, but at least a large slice to each server."""

JOB_S, LEAST_STEPS, MOST_STEPS = 3.0, 6, 30
WARM_UP = 3


class Load(NamedTuple):
    """What a job sends in each step.

    Attributes:
        hosts: With a client and a server each.
        keys: Of as many elements that each server has a large slice of each.
        steps: That are measured.
    """

    hosts: int
    keys: int
    steps: int

    @property
    def elements(self) -> int:
        """Elements of one key."""
        return self.hosts * FEW

    @property
    def more_messages(self) -> float:
        """By how many more messages a host sends in a step of many slices, as plans count them."""
        return self.crossing * (1 / MANY - 1 / FEW)

    @property
    def crossing(self) -> float:
        """Elements that cross a host's link in either direction: there and back, as many to each server."""
        return 2 * self.keys * self.elements * (self.hosts - 1) / self.hosts


def load_for(hosts: int, bytes_per_s: float) -> Load:
    """Return what to send over links of this rate: enough to be seen, and not for minutes."""
    of_a_key = 2 * (hosts - 1) * FEW * ITEM_BYTES
    keys = max(1, int(min(MOST_BYTES, STEP_S * bytes_per_s) // of_a_key))
    steps = int(JOB_S * bytes_per_s / (keys * of_a_key))
    return Load(hosts, keys, min(MOST_STEPS, max(LEAST_STEPS, steps)))


def slice_seconds(few: Sequence[float], many: Sequence[float], load: Load) -> float | None:
    """Return what one more slice costs; ``None`` if that is less than what one job differs from another.

    Args:
        few: Seconds of a step with large slices, of each job.
        many: The same with small ones.
        load: What a step has sent.
    """
    if min(many) <= max(few):
        return None
    return float(f"{(median(many) - median(few)) / load.more_messages:.2g}")


def byte_seconds(few: Sequence[float], many: Sequence[float], load: Load, cluster: Cluster) -> float:
    """Return what processors take for a byte besides slices; 0 if that cannot be told from links.

    The faster of both kinds tells: over slow links steps of large slices are the longer ones, since the
    first sums come back when most has been sent.

    Args:
        few: Seconds of a step with large slices, of each job.
        many: The same with small ones.
        load: What a step has sent.
        cluster: Of which links and slices are known.
    """
    seconds, elements = min((median(few), FEW), (median(many), MANY))
    num_bytes = ITEM_BYTES * load.crossing
    links = num_bytes / cluster.between_hosts.bytes_per_s + load.crossing / elements * cluster.slice_s
    return dense_byte_seconds(seconds, links, num_bytes)


def main() -> None:
    """Measure steps with the workers of this job; the first writes the seconds of the one in the middle."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="where the seconds go")
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--elements", type=int, required=True, help="of each key")
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    worker = process_worker("mpilaunch measure-links", "sync")
    store = worker.open_store("sync")
    keys = range(options.keys)
    buffers = [worker.exchange_buffer(options.elements, "float32") for _ in keys]
    for buffer in buffers:
        buffer.fill(0)
    for key in keys:
        worker.init(store, key, (options.elements,), buffers[key], _ended)
    _settle(worker)
    seconds = []
    for _ in range(WARM_UP + options.steps):
        began = time.perf_counter()
        for key in keys:
            worker.pushpull(store, key, -key, _ended)
        _settle(worker)
        seconds.append(time.perf_counter() - began)
    if worker.rank == 0:
        options.output.write_text(f"{median(seconds[WARM_UP:])!r}\n", encoding="ascii")
    worker.close()


def _ended(_error: BaseException | None) -> None:
    """Leave it to ``_settle``, which asks for all operations at once."""


def _settle(worker: Worker) -> None:
    """Wait until all operations have ended.

    Raises:
        BaseException: What has ended them.
    """
    worker.flush(worker.step_timeout)
    error = worker.failure()
    if error is not None:
        raise error


if __name__ == "__main__":
    main()
