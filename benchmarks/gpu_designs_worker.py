"""One rank of a comparison of the paper's designs on tensors: each once a size, in turn; rank 0 writes.

Started by ``gpu_tensor.py`` under mpiexec. On a machine without a GPU ``--on host`` takes the NumPy twins.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.comm.mpi import MpiCommunicator
from kvstore_mpi.errors import KVStoreError
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.local_reduce import HostMemory
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, Tensor, accumulator
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup

if TYPE_CHECKING:
    from collections.abc import Callable


REPEATS = 7
WARMUP = 2
DEADLINE_S = 120.0


class Vectors:
    """The vectors of one rank, on the GPUs of its host in turn, or on the host."""

    def __init__(self, on: str, rank: int, local_rank: int) -> None:
        """Choose the GPUs; the vectors of a rank follow each other on them, as do the ranks."""
        self._rank, self._first = rank, local_rank
        self._cupy: Any = None
        self.memory: Any = HostMemory
        if on == "gpu":
            import cupy  # noqa: PLC0415  not for the host

            from kvstore_mpi.tensor_collectives.gpu.device_memory import DeviceMemory  # noqa: PLC0415  needs a GPU

            self._cupy, self.memory = cupy, DeviceMemory
            self._gpus = cupy.cuda.runtime.getDeviceCount()

    def make(self, count: int, size: int, dtype: str) -> Tensor:
        """Return the tensor of this rank, of small whole numbers."""
        numbers = [self.numbers(self._rank, count, index, size, dtype) for index in range(count)]
        if self._cupy is None:
            return Tensor(numbers)
        vectors = []
        for index, values in enumerate(numbers):
            with self._cupy.cuda.Device((self._first * count + index) % self._gpus):
                vectors.append(self._cupy.asarray(values))
        return Tensor(vectors)

    @staticmethod
    def numbers(rank: int, count: int, index: int, size: int, dtype: str) -> np.ndarray[Any, Any]:
        """Return what one vector of one rank holds."""
        values: np.ndarray[Any, Any] = ((np.arange(size) + rank * count + index) % 3).astype(dtype)
        return values

    def on_host(self, vector: Any) -> np.ndarray[Any, Any]:
        """Return a vector's values."""
        values: np.ndarray[Any, Any] = vector if self._cupy is None else self._cupy.asnumpy(vector)
        return values


class Bench:
    """The ranks of one job."""

    def __init__(self, on: str) -> None:
        """Meet the others."""
        self.communicator = MpiCommunicator()
        self.rank, self.size = self.communicator.rank, self.communicator.size
        self.vectors = Vectors(on, self.rank, self.communicator.local_rank())

    def seconds(self, call: Callable[[], object]) -> dict[str, Any]:
        """Return the median time from when all ranks have come until the last one has done it.

        Beside it that of each repeat, and the processor time of this rank for one, with its waits.
        """
        times = []
        spent = 0.0
        for repeat in range(WARMUP + REPEATS):
            spent = time.process_time() if repeat == WARMUP else spent
            self.communicator.barrier(tuple(range(self.size)))
            begin = time.perf_counter()
            call()
            taken = int((time.perf_counter() - begin) * 1e9)
            times.append(-self.communicator.minimum(-taken) / 1e9)
        cpu_s = (time.process_time() - spent) / REPEATS
        return {"s": statistics.median(times[WARMUP:]), "cpu_s": cpu_s, "each_s": times[WARMUP:]}

    def parts(self, count: int, size: int, dtype: str) -> dict[str, dict[str, Any]]:
        """Return the times of the local reduction, of the ring on the host, and of the spread."""
        tensor = self.vectors.make(count, size, dtype)
        memory = self.vectors.memory
        buffer = memory.allocate(size, accumulator(tensor.dtype))
        reducer = memory.reducer(tensor, OPERATIONS["sum"], tensor)
        group = TensorGroup(MpiCommunicator(), design=DESIGNS["ring"])
        host = np.zeros(size, dtype)
        try:
            return {
                "local reduce": self.seconds(
                    lambda: _do(reducer.reduce(buffer, 0, size, None), reducer, size)
                ),
                "host ring": self.seconds(partial(group.allreduce, Tensor([host]), timeout=DEADLINE_S)),
                "local share": self.seconds(lambda: _do(reducer.share(buffer, 0, size), reducer, size)),
            }
        finally:
            group.close()

    def design(self, name: str, count: int, size: int, dtype: str) -> dict[str, Any]:
        """Time one design and check it; where it cannot be used the row says why."""
        tensor = self.vectors.make(count, size, dtype)
        out = self.vectors.make(count, size, dtype)
        try:
            group = TensorGroup(MpiCommunicator(), design=DESIGNS[name])
        except KVStoreError as error:
            return {"missing": str(error)}
        try:
            group.allreduce(tensor, out=out, timeout=DEADLINE_S)
            every = [(rank, index) for rank in range(self.size) for index in range(count)]
            wanted = sum(
                self.vectors.numbers(rank, count, index, size, dtype).astype(np.float64)
                for rank, index in every
            )
            values = [self.vectors.on_host(vector) for vector in out.vectors]
            wrong = sum(int(np.count_nonzero(each != wanted)) for each in values)
            taken = self.seconds(partial(group.allreduce, tensor, out=out, timeout=DEADLINE_S))
        except KVStoreError as error:  # the same on all ranks: what a design asks for does not differ
            return {"missing": str(error)}
        finally:
            group.close()
        return {**taken, "wrong": -self.communicator.minimum(-wrong)}


def _do(_started: None, reducer: Any, size: int) -> None:
    reducer.wait(0, size)


def main() -> None:
    """Measure every size with every design."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=("gpu", "host"), required=True)
    parser.add_argument("--sizes", required=True, help="bytes of a vector, comma-separated")
    parser.add_argument("--vectors", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--designs", required=True, help="comma-separated")
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    bench = Bench(arguments.on)
    rows: list[dict[str, Any]] = []
    for num_bytes in map(int, arguments.sizes.split(",")):
        size = num_bytes // np.dtype(arguments.dtype).itemsize
        shape = (arguments.vectors, size, arguments.dtype)
        head = {"ranks": bench.size, "bytes": num_bytes, "vectors": arguments.vectors}
        head |= {"dtype": arguments.dtype, "on": arguments.on}
        rows += [{**head, "what": what, **taken} for what, taken in bench.parts(*shape).items()]
        for name in arguments.designs.split(","):
            rows.append({**head, "what": name, **bench.design(name, *shape)})
    if bench.rank == 0:
        arguments.result.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
