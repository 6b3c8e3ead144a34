"""One rank of an allreduce over a slow link, with a stand-in for a device; says what it did when.

Started by ``ring_overlap.py``, in a host of its own. Writes ``rank<rank>.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.comm.mpi import MpiCommunicator
from kvstore_mpi.tensor_collectives import rings
from kvstore_mpi.tensor_collectives.background_reducer import BackgroundMemory, BackgroundReducer
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.local_reduce import NumpyReducer
from kvstore_mpi.tensor_collectives.runner import Runner
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = np.ndarray[Any, Any]
Interval = tuple[float, float]

VECTORS = 2
SEGMENT = DESIGNS["multiring"].segment_bytes // 4
SENT = Path("/sys/class/net")


class NotingCommunicator(MpiCommunicator):
    """Notes when it transfers."""

    def __init__(self) -> None:
        """Take all ranks."""
        super().__init__()
        self.transfers: list[Interval] = []

    def exchange(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """See ``interfaces.Communicator``."""
        begin = time.monotonic()
        super().exchange(sends, receives)
        self.transfers.append((begin, time.monotonic()))


class Device:
    """Reduces as NumPy does, but takes as long as it is told, without the processor, as a GPU would."""

    def __init__(self, tensor: Tensor, seconds: float) -> None:
        """Take ``seconds`` for the whole tensor."""
        self.reductions: list[Interval] = []
        self._reducer = NumpyReducer(tensor, OPERATIONS["sum"])
        self._seconds_of_an_element = seconds / tensor.size

    def reduce(self, buffer: Array, lo: int, hi: int, incoming: Array | None) -> None:
        """Reduce, and be done when the time is up."""
        begin = time.monotonic()
        self._reducer.reduce(buffer, lo, hi, incoming)
        left = begin + self._seconds_of_an_element * (hi - lo) - time.monotonic()
        time.sleep(max(0.0, left))
        self.reductions.append((begin, time.monotonic()))

    def share(self, buffer: Array, lo: int, hi: int) -> None:
        """Copy to the vectors."""
        self._reducer.share(buffer, lo, hi)

    def wait(self, lo: int, hi: int) -> None:
        """Everything is done when a call returns."""


class Bench:
    """One rank with its tensor."""

    def __init__(self, elements: int, device: str) -> None:
        """Allocate the tensor; every page is touched."""
        self._communicator = NotingCommunicator()
        self.rank = self._communicator.rank
        self._counter = SENT / device / "statistics" / "tx_bytes"
        self._numbers = (np.arange(elements) % 1_000).astype(np.float32)
        self._vectors = [np.zeros(elements, np.float32) for _ in range(VECTORS)]
        self._thread = BackgroundMemory()

    def transfer_alone(self) -> dict[str, Any]:
        """Allreduce of one vector in place: nothing to reduce but what comes."""
        runner = Runner(self._communicator)
        vector = self._vectors[0]
        return self._timed(lambda: runner.run(rings.pipelined, vector, None, OPERATIONS["sum"], 1, SEGMENT))

    def with_rings(self, num_rings: int, seconds: float) -> dict[str, Any]:
        """Allreduce of the tensor on a device that takes ``seconds`` to reduce it."""
        for vector in self._vectors:
            vector[:] = self._numbers + self.rank
        tensor = Tensor(self._vectors)
        device = Device(tensor, seconds)
        reducer = BackgroundReducer(device, self._thread.thread)
        runner = Runner(self._communicator)
        buffer = np.zeros(tensor.size, np.float32)
        measured = self._timed(
            lambda: runner.run(rings.pipelined, buffer, reducer, OPERATIONS["sum"], num_rings, SEGMENT)
        )
        size = self._communicator.size
        wanted = VECTORS * (size * self._numbers + size * (size - 1) // 2)
        if not all(np.array_equal(vector, wanted) for vector in self._vectors):
            raise ValueError(f"wrong sums with {num_rings} rings on rank {self.rank}")
        return {**measured, "reductions": device.reductions}

    def slowest(self, seconds: float) -> float:
        """Return the longest time of all ranks."""
        return -self._communicator.minimum(-int(seconds * 1e9)) / 1e9

    def _timed(self, call: Callable[[], None]) -> dict[str, Any]:
        """Return when all had come, how long the slowest rank took, and what left this host."""
        self._communicator.barrier(tuple(range(self._communicator.size)))
        self._communicator.transfers = []
        before, begin = int(self._counter.read_text()), time.monotonic()
        call()
        seconds = time.monotonic() - begin
        sent = int(self._counter.read_text()) - before
        transfers = self._communicator.transfers
        return {"begin": begin, "seconds": self.slowest(seconds), "sent": sent, "transfers": transfers}


def main() -> None:
    """Measure the parts, then both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--device", required=True, help="the link, to read its counter")
    parser.add_argument("--results", type=Path, required=True)
    arguments = parser.parse_args()
    bench = Bench(arguments.elements, arguments.device)
    bench.transfer_alone()  # TCP finds its window
    alone = bench.transfer_alone()
    both = {num_rings: bench.with_rings(num_rings, alone["seconds"]) for num_rings in (1, 2)}
    content = {"alone": alone, "one": both[1], "two": both[2]}
    (arguments.results / f"rank{bench.rank}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    main()
