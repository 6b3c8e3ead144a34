"""Times the kernels for tensors on a GPU beside what the card copies, and beside how others add vectors."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from kvstore_mpi.tensor_collectives.gpu.device_memory import CupyReducer, DeviceMemory
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, Tensor, accumulator

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 15
COUNTS = (2, 4, 8)
LEAST = {"to host": 0.85, "from host": 0.85}
"""Shares of what the bus copies that are asked for; no design has a sum that stays on the card."""


def seconds(call: Callable[[], object]) -> float:
    """Return the median time of a call on the device, by its own clock."""
    times = []
    for _ in range(REPEATS):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e-3)
    return statistics.median(times[2:])


def wall(call: Callable[[], object]) -> float:
    """Return the median time of a call that waits for the device."""
    times = []
    for _ in range(REPEATS):
        cupy.cuda.runtime.deviceSynchronize()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def limits(num_bytes: int) -> dict[str, float]:
    """Return bytes per second: read and written by a copy on the card, sent to the host, got from it."""
    one, other = cupy.ones(num_bytes, cupy.uint8), cupy.empty(num_bytes, cupy.uint8)
    host = cupy.cuda.alloc_pinned_memory(num_bytes)
    view = np.frombuffer(host, np.uint8, num_bytes)
    return {
        "device": 2 * num_bytes / seconds(lambda: cupy.copyto(other, one)),
        "to host": num_bytes / seconds(lambda: one.get(out=view, blocking=False)),
        "from host": num_bytes / seconds(lambda: one.set(view)),
    }


def rows(num_bytes: int, dtype: str, known: dict[str, float]) -> list[dict[str, Any]]:
    """Measure one size and type."""
    found = []
    size = num_bytes // np.dtype(dtype).itemsize
    wide = accumulator(np.dtype(dtype))
    for count in COUNTS:
        tensor = Tensor([cupy.ones(size, dtype) for _ in range(count)])
        reducer = CupyReducer(tensor, OPERATIONS["sum"])
        host = DeviceMemory.allocate(size, wide)
        out = cupy.empty(size, wide)
        out_bytes = size * wide.itemsize
        moved = count * num_bytes + out_bytes
        for what, taken, moves, limit in (
            ("reduce", wall(partial(_staged, reducer, out, size)), moved, "device"),
            *((name, seconds(call), moved, "device") for name, call in peers(tensor, out).items()),
            ("to host", wall(partial(_staged, reducer, host, size)), out_bytes, "to host"),
            ("from host", wall(partial(_shared, reducer, host, size)), out_bytes, "from host"),
        ):
            share = moves / taken / known[limit]
            head = {"bytes": num_bytes, "dtype": dtype, "vectors": count}
            found.append({**head, "what": what, "s": taken, "of": share})
    return found


def peers(tensor: Tensor, out: Any) -> dict[str, Callable[[], object]]:
    """Return how others add up vectors into ``out``; PyTorch only where it is there and has a GPU."""
    vectors: list[Any] = tensor.vectors
    names = [f"v{number}" for number in range(len(vectors))]
    added = " + ".join(f"W({name})" for name in names)
    fused = cupy.ElementwiseKernel(
        ", ".join(f"T {name}" for name in names), "W out", f"out = {added}", "added"
    )
    stacked = cupy.stack(vectors)
    calls = {
        "cupy +": partial(sum, vectors[1:], vectors[0]),
        "cupy.sum": partial(cupy.sum, stacked, axis=0, dtype=out.dtype, out=out),
        "Elementwise": partial(fused, *vectors, out),
    }
    try:
        import torch  # noqa: PLC0415  a peer where it is installed
    except ImportError:
        return calls
    if torch.cuda.is_available():
        block, target = torch.as_tensor(stacked, device="cuda"), torch.as_tensor(out, device="cuda")
        calls["torch.sum"] = partial(torch.sum, block, 0, dtype=target.dtype, out=target)
    return calls


def _staged(reducer: Any, host: Any, size: int) -> None:
    reducer.reduce(host, 0, size, None)
    reducer.wait(0, size)


def _shared(reducer: Any, host: Any, size: int) -> None:
    reducer.share(host, 0, size)
    reducer.wait(0, size)


def card() -> str:
    """Return the card's name."""
    name: str = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return name


def measure(sizes: list[int]) -> tuple[dict[int, dict[str, float]], list[dict[str, Any]]]:
    """Return what the card copies, by size, and a row for each kernel, type and number of vectors."""
    known = {size: limits(size) for size in sizes}
    return known, [
        row for size in sizes for dtype in ("float32", "float16") for row in rows(size, dtype, known[size])
    ]


def table(known: dict[int, dict[str, float]], measured: list[dict[str, Any]]) -> str:
    """Return it as text."""
    copies = {size: {k: f"{v / 1e9:.0f} GB/s" for k, v in each.items()} for size, each in known.items()}
    lines = [str(copies), "    bytes    dtype  vectors        what        us  of the limit"]
    for row in measured:
        least = LEAST.get(row["what"])
        verdict = "" if least is None else f">= {least:.2f} {'met' if row['of'] >= least else 'MISSED'}"
        lines.append(
            f"{row['bytes']:9} {row['dtype']:>8} {row['vectors']:8} {row['what']:>11} "
            f"{row['s'] * 1e6:9.1f} {row['of']:8.2f}  {verdict}"
        )
    return "\n".join(lines)
