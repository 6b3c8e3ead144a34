"""One rank of an allreduce measurement: every variant of a size, in turns; rank 0 writes the result.

Started by ``allreduce.py`` under mpiexec.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvstore_mpi.comm.mpi import MpiCommunicator, load_mpi
from kvstore_mpi.tensor_collectives.choice import Algorithm
from kvstore_mpi.tensor_collectives.group import Group
from kvstore_mpi.transport.shared_memory import Arena

Array = np.ndarray[Any, Any]
Reduce = Callable[[Array], None]

WITHOUT_GLOO = (
    "no gloo in these jobs: PyTorch is not installed in their environment; "
    "pip install '.[bench-peers]' --extra-index-url https://download.pytorch.org/whl/cpu"
)

WITHOUT_DEEPSPEED = (
    "no deepspeed in these jobs: it is not installed in their environment; beside PyTorch, pip install "
    "'setuptools<81' ninja, then pip install --no-build-isolation deepspeed; its first job compiles"
)
DEEPSPEED_MEMORY = "deepspeed_allreduce_buffer_{uid}_{address}_{port}_{rank}"

SECONDS_OF_A_CELL = 0.1
MOST_ITERATIONS = 2_000
LEAST_ITERATIONS = 5
TURNS = 5
"""In these the iterations of each variant are dealt. With all of one variant after those of another, what
makes the same call twice differed by a quarter within a job."""


class Bench:
    """The ways to reduce a buffer, and how long they take."""

    def __init__(self, meet: Path) -> None:
        """Meet the other ranks; gloo's do so in a file."""
        self.mpi = load_mpi()
        self.world = self.mpi.COMM_WORLD
        self.rank: int = self.world.Get_rank()
        self.size: int = self.world.Get_size()
        communicator = MpiCommunicator()
        self.arena = Arena()
        self.in_shared_memory = {Algorithm.SHM.value, Algorithm.AUTO.value, "mpi shared"}
        self.missing: list[str] = []
        self.close: Callable[[], None] = lambda: None
        self.variants: dict[str, Reduce] = {
            "mpi plain": lambda buffer: self.world.Allreduce(self.mpi.IN_PLACE, buffer),
            "mpi pieces": communicator.allreduce,
            "mpi shared": lambda buffer: self.world.Allreduce(self.mpi.IN_PLACE, buffer),
        }
        for algorithm in (Algorithm.RING, Algorithm.MULTIRING, Algorithm.SHM, Algorithm.AUTO):
            group = Group(communicator, locate=self.arena.place, algorithm=algorithm)
            self.variants[algorithm.value] = partial(_whole, group)
        self._add_gloo(meet)
        self._add_deepspeed(meet)
        # Two ranks that spin on one core would measure that. Gloo's own threads may run on any.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[self.rank % len(cores)]})

    def _add_gloo(self, meet: Path) -> None:
        """Let PyTorch take part where it is installed; over the loopback interface, as within any host."""
        try:
            import torch  # noqa: PLC0415  a peer, and large
            from torch import distributed  # noqa: PLC0415  only gloo needs torch
        except ImportError:
            self.missing.append(WITHOUT_GLOO)
            return
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        where = f"file://{meet}"
        distributed.init_process_group("gloo", init_method=where, rank=self.rank, world_size=self.size)
        self.variants["gloo"] = lambda buffer: distributed.all_reduce(torch.from_numpy(buffer))
        # Its threads let go of their tensors late: one that does so while Python ends aborts the process.
        self.close = distributed.destroy_process_group

    def _add_deepspeed(self, meet: Path) -> None:
        """Let DeepSpeed's sum in shared memory take part where it is installed; its ranks spin."""
        try:
            import torch  # noqa: PLC0415  a peer, and large
            from deepspeed.ops.op_builder.cpu import (  # noqa: PLC0415  a peer
                ShareMemCommBuilder,
            )
        except ImportError:
            self.missing.append(WITHOUT_DEEPSPEED)
            return
        # Its memory is called after these, and need not be an address. It is left behind: see ``tidy``.
        told = {"LOCAL_SIZE": str(self.size), "MASTER_ADDR": "host", "MASTER_PORT": meet.parent.name}
        os.environ.update(told)
        if self.rank == 0:
            ShareMemCommBuilder().load(verbose=False)  # compiled once, by one
        self.world.Barrier()
        ShareMemCommBuilder().load(verbose=False).initialize(self.size, self.rank)
        add = torch.ops.deepspeed.inference_all_reduce_
        self.variants["deepspeed"] = lambda buffer: add(torch.from_numpy(buffer))

    def tidy(self) -> None:
        """Leave nothing behind, neither here nor in shared memory."""
        self.close()
        if "deepspeed" in self.variants:
            port = os.environ["MASTER_PORT"]
            name = DEEPSPEED_MEMORY.format(uid=os.getuid(), address="host", port=port, rank=self.rank)
            Path("/dev/shm", name).unlink()  # noqa: S108  its name is the peer's

    def buffer(self, variant: str, size: int) -> Array:
        """Allocate a buffer where the variant wants it; MPI is faster in ordinary memory."""
        if variant in self.in_shared_memory:
            return self.arena.allocate(size, np.dtype(np.float32))
        return np.empty(size, np.float32)

    def check(self, reduce: Reduce, buffer: Array) -> int:
        """Return how many elements come out wrong, on all ranks together; the buffer is zero afterwards."""
        numbers = (np.arange(buffer.size) % 1_000).astype(buffer.dtype)
        buffer[:] = numbers + self.rank
        reduce(buffer)
        wanted = numbers * self.size + sum(range(self.size))
        wrong = int(np.count_nonzero(buffer != wanted))
        buffer[:] = 0
        return int(self.world.allreduce(wrong))

    def iteration(self, reduce: Reduce, buffer: Array) -> float:
        """Return the seconds from when all have come until the last one has the result."""
        self.world.Barrier()
        begin = time.perf_counter()
        reduce(buffer)
        seconds = np.array([time.perf_counter() - begin])
        self.world.Allreduce(self.mpi.IN_PLACE, seconds, op=self.mpi.MAX)
        return float(seconds[0])

    def cells(self, buffers: dict[str, Array]) -> dict[str, tuple[list[float], float]]:
        """Measure variants in turns: for each, as many iterations as fit into a fixed time.

        Returns:
            The times of its iterations, and the processor time of one: of all ranks together, with their
            waiting in barriers, where MPI may spin.
        """
        counts = {name: self._iterations(self.variants[name], buffer) for name, buffer in buffers.items()}
        times: dict[str, list[float]] = {name: [] for name in buffers}
        spent = dict.fromkeys(buffers, 0.0)
        for turn in range(TURNS):
            for name, buffer in buffers.items():
                begin = time.process_time()
                share = range(turn, counts[name], TURNS)
                times[name] += [self.iteration(self.variants[name], buffer) for _ in share]
                spent[name] += time.process_time() - begin
        return {
            name: (times[name], float(self.world.allreduce(spent[name])) / counts[name]) for name in buffers
        }

    def _iterations(self, reduce: Reduce, buffer: Array) -> int:
        """Return how many iterations fit; all ranks come to the same."""
        first = min(self.iteration(reduce, buffer) for _ in range(3))
        fitting = int(SECONDS_OF_A_CELL / max(first, 1e-7))
        return int(self.world.bcast(max(LEAST_ITERATIONS, min(MOST_ITERATIONS, fitting))))


def _whole(group: Group, buffer: Array) -> None:
    group.allreduce(buffer, 0, buffer.size)


def copy_bytes_per_s(bench: Bench, num_bytes: int) -> float:
    """Return how many bytes all ranks together copy per second when each copies ``num_bytes``, at best."""
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    times = [bench.iteration(lambda _: np.copyto(target, source), source) for _ in range(10)]
    return bench.size * num_bytes / min(times)


def main() -> None:
    """Measure every size with every variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", required=True, help="bytes, comma-separated")
    parser.add_argument("--variants", default="", help="comma-separated; all if empty")
    parser.add_argument("--meet", type=Path, required=True, help="a file, not there yet, for gloo's ranks")
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    bench = Bench(arguments.meet)
    names = arguments.variants.split(",") if arguments.variants else list(bench.variants)
    cells: list[dict[str, Any]] = []
    for num_bytes in map(int, arguments.sizes.split(",")):
        buffers = {name: bench.buffer(name, num_bytes // 4) for name in names}
        wrong = {name: bench.check(bench.variants[name], buffers[name]) for name in names}
        times = bench.cells(buffers)
        copied = copy_bytes_per_s(bench, num_bytes)
        cells += [
            {
                "bytes": num_bytes,
                "variant": name,
                "wrong": wrong[name],
                "seconds": float(np.median(times[name][0])),
                "cpu_s": times[name][1],
                "copy_bytes_per_s": copied,
            }
            for name in names
        ]
    if bench.rank == 0:
        library = bench.mpi.Get_library_version().splitlines()[0].strip("\0 ")
        result = {"ranks": bench.size, "library": library, "missing": bench.missing, "cells": cells}
        arguments.result.write_text(json.dumps(result))
    bench.tidy()


if __name__ == "__main__":
    main()
