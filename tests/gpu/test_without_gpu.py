"""What launches kernels, on a CuPy of the CPU: the same code, bits and waits, no GPU."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.tensor import Tensor
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup


@pytest.fixture
def cupy(stand_in):
    """A CuPy that works on the CPU."""
    return stand_in


def on_all(size, call, hosts=None):
    """Call on each rank, in a thread of its own."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, memory_communicators(size, hosts)))


class TestDesigns:
    @pytest.mark.parametrize("name", DESIGNS)
    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    def test_vectors_of_devices_get_the_bits_of_the_host(self, cupy, name, dtype):
        """Of one device and of two; more than a segment, and sizes that are no multiple of a pack."""
        design = DESIGNS[name]._replace(segment_bytes=40_000)

        def reduce(communicator):
            group = TensorGroup(communicator, design=design)
            source = np.random.default_rng(group.rank)
            for size in (1, 50_003):
                host = [source.standard_normal(size).astype(dtype) for _ in range(2)]
                vectors = []
                for number, values in enumerate(host):
                    with cupy.cuda.Device(number):
                        vectors.append(cupy.asarray(values))
                group.allreduce(Tensor(host), "mean", timeout=60)
                group.allreduce(Tensor(vectors), "mean", timeout=60)
                for one, other in zip(host, vectors):
                    assert one.tobytes() == cupy.asnumpy(other).tobytes()
            group.close()

        on_all(2, reduce)

    def test_one_vector_that_stays_as_it_is_needs_no_kernel(self, cupy, monkeypatch):
        """A copy engine takes it to the memory that ranks share, and brings the sum."""

        def refuse(**_):
            raise AssertionError("a kernel is compiled")

        monkeypatch.setattr(cupy, "RawModule", refuse)

        def reduce(communicator):
            group = TensorGroup(communicator, design=DESIGNS["shared"]._replace(segment_bytes=4_096))
            vector = cupy.asarray(np.full(3_000, group.rank + 1, np.float32))
            group.allreduce(Tensor([vector]), timeout=60)
            group.close()
            return set(cupy.asnumpy(vector).tolist())

        assert on_all(2, reduce) == [{3}] * 2

    def test_memory_that_ranks_share_is_pinned_once_and_let_go(self, cupy):
        """Kernels write to it; nothing is copied from other memory of the host."""
        pinned = sys.modules["fake_cupy"].pinned

        def reduce(communicator):
            group = TensorGroup(communicator, design=DESIGNS["shared"]._replace(segment_bytes=4_096))
            for _ in range(2):
                vector = cupy.asarray(np.ones(3_000, np.float32))
                group.allreduce(Tensor([vector]), timeout=60)
                np.testing.assert_array_equal(cupy.asnumpy(vector), np.full(3_000, 2))
            communicator.barrier((0, 1))
            sizes = sorted(pinned.values())
            communicator.barrier((0, 1))
            group.close()
            return sizes

        assert on_all(2, reduce) == [[4_096] * 2] * 2
        assert pinned == {}
