"""Tensors on a GPU against their twins on the host; left out where there is no GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.tensor import Tensor
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy(on_gpu):
    """The CuPy of a GPU."""
    return on_gpu


def on_all(size, call):
    def run(communicator):
        group = TensorGroup(communicator, design=DESIGNS["multiring"])
        try:
            return call(group)
        finally:
            group.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, memory_communicators(size)))


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [1, 7, 1_000, 100_003, 3_000_000])
def test_an_allreduce_has_the_bits_of_the_host(cupy, size, dtype, count):
    def reduce(group):
        source = np.random.default_rng(group.rank)
        host = [source.standard_normal(size).astype(dtype) for _ in range(count)]
        devices = Tensor([cupy.asarray(each) for each in host])
        group.allreduce(Tensor(host))
        group.allreduce(devices)
        for one, other in zip(host, devices.vectors):
            assert one.tobytes() == cupy.asnumpy(other).tobytes()

    on_all(2, reduce)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_reduce_scatter_allgather_and_broadcast(cupy, dtype):
    def check(group):
        vectors = [cupy.full(10_001, group.rank + index, dtype) for index in range(2)]
        tensor = Tensor(vectors)
        lo, hi = group.chunk(tensor.size)
        chunk = np.empty(hi - lo, dtype)
        group.reduce_scatter(tensor, chunk)
        wanted = sum(rank + index for rank in range(group.size) for index in range(2))
        np.testing.assert_array_equal(chunk, np.full(hi - lo, wanted, dtype))
        group.allgather(chunk, tensor)
        for vector in vectors:
            np.testing.assert_array_equal(cupy.asnumpy(vector), np.full(10_001, wanted, dtype))
        vectors[0][:] = group.rank
        group.broadcast(tensor, 1)
        for vector in vectors:
            np.testing.assert_array_equal(cupy.asnumpy(vector), np.ones(10_001, dtype))

    on_all(2, check)
