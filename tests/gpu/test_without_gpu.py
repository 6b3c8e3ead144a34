"""What launches kernels and calls NCCL, on a CuPy of the CPU: the same code, bits and waits, no GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kvstore_mpi.comm import mpi
from kvstore_mpi.comm.delegating import DelegatingCommunicator
from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.comm.nccl import NcclCommunicator
from kvstore_mpi.errors import ConfigurationError, MismatchError, UsageError
from kvstore_mpi.records import ITEMSIZES
from kvstore_mpi.tensor_collectives.choice import Algorithm
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.group import ClientGroup
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
    @pytest.mark.parametrize("name", [name for name, design in DESIGNS.items() if not design.needs_gpus])
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

    def test_nccl_reduces_within_a_worker(self, cupy):
        """Each vector on a device of its own, a host ring between workers; else it says what it needs."""

        def reduce(communicator):
            group = TensorGroup(communicator, design=DESIGNS["nccl"])
            host = [np.arange(9_001, dtype=np.float32) + group.rank + number for number in range(2)]
            vectors = []
            for number, values in enumerate(host):
                with cupy.cuda.Device(number):
                    vectors.append(cupy.asarray(values))
            group.allreduce(Tensor(vectors), timeout=60)
            wanted = 4 * np.arange(9_001) + 4
            for vector in vectors:
                np.testing.assert_array_equal(cupy.asnumpy(vector), wanted)
            with pytest.raises(UsageError, match="every vector on a GPU of its own"):
                group.allreduce(Tensor([cupy.asarray(each) for each in host]), timeout=60)
            group.close()

        on_all(2, reduce)


@pytest.fixture
def ipc(cupy):
    """What makes a communicator whose ranks exchange memory of devices by CUDA's handles."""
    from kvstore_mpi.comm.cuda_ipc import CudaIpcCommunicator  # noqa: PLC0415  imports CuPy

    allocation_of = sys.modules["fake_cupy"].allocation_of
    return lambda communicator: CudaIpcCommunicator(communicator, allocation_of=allocation_of)


class AwareCommunicator(DelegatingCommunicator):
    """Sends what memory of devices holds now, as an MPI that is aware of GPUs does."""

    def gpu_aware(self):
        return True

    def exchange(self, sends, receives):
        assert not any(isinstance(array, np.ndarray) for _, array in (*sends, *receives))
        for peer_and_array in (sends, receives):
            peer_and_array[:] = [(peer, array.values) for peer, array in peer_and_array]
        super().exchange(sends, receives)


@pytest.fixture(params=["handles", "mpi"])
def direct(request, ipc):
    """Both ways from device to device."""
    return ipc if request.param == "handles" else AwareCommunicator


def vectors_of(cupy, host):
    """Copy arrays to devices of their own."""
    vectors = []
    for number, values in enumerate(host):
        with cupy.cuda.Device(number):
            vectors.append(cupy.asarray(values))
    return vectors


class TestDirect:
    """From device to device."""

    @pytest.mark.parametrize("ranks", [1, 2, 3])
    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    @pytest.mark.parametrize("name", ["ring", "multiring", "flat-ring"])
    def test_an_allreduce_has_the_bits_of_the_host(self, cupy, direct, ranks, dtype, name):
        """Small ones by recursive doubling, others around rings; sums, means and extremes."""
        design = DESIGNS[name]._replace(segment_bytes=40_000)

        def reduce(communicator):
            through_host = TensorGroup(communicator, design=design)
            on_devices = TensorGroup(direct(communicator), design=design._replace(direct=True))
            source = np.random.default_rng(communicator.rank)
            for size in (0, 1, 5_000, 50_003):
                for operation in ("sum", "mean", "max", "min"):
                    host = [source.standard_normal(size).astype(dtype) for _ in range(2)]
                    vectors = vectors_of(cupy, host)
                    through_host.allreduce(Tensor(host), operation, timeout=60)
                    on_devices.allreduce(Tensor(vectors), operation, timeout=60)
                    for one, other in zip(host, vectors):
                        assert one.tobytes() == cupy.asnumpy(other).tobytes()
            on_devices.close()

        on_all(ranks, reduce)
        assert sys.modules["fake_cupy"].opened == []  # all were closed

    def test_the_other_collectives(self, cupy, direct):
        """Blocks are the caller's, on the host."""

        def check(communicator):
            group = TensorGroup(direct(communicator), design=DESIGNS["direct"])
            host = [np.full(10_001, group.rank + number, np.float16) for number in range(2)]
            tensor = Tensor(vectors_of(cupy, host))
            lo, hi = group.block(tensor.size)
            block = np.empty(hi - lo, np.float16)
            group.reduce_scatter(tensor, block, timeout=60)
            np.testing.assert_array_equal(block, np.full(hi - lo, 4))
            group.allgather(block, tensor, timeout=60)
            for vector in tensor.vectors:
                np.testing.assert_array_equal(cupy.asnumpy(vector), np.full(10_001, 4))
            cupy.copyto(tensor.vectors[0], cupy.asarray(np.full(10_001, group.rank, np.float16)))
            cupy.cuda.get_current_stream().synchronize()
            group.broadcast(tensor, 1, timeout=60)
            for vector in tensor.vectors:
                np.testing.assert_array_equal(cupy.asnumpy(vector), np.ones(10_001))
            group.close()

        on_all(2, check)

    def test_nothing_of_a_tensor_is_sent_over_the_host(self, cupy, ipc):
        """Only offers and answers are."""
        sizes = []

        def check(communicator):
            exchange = communicator.exchange

            def noting(sends, receives):
                sizes.extend(array.nbytes for _, array in sends)
                exchange(sends, receives)

            communicator.exchange = noting
            group = TensorGroup(ipc(communicator), design=DESIGNS["direct"])
            vector = cupy.asarray(np.ones(100_000, np.float32))
            group.allreduce(Tensor([vector]), timeout=60)
            np.testing.assert_array_equal(cupy.asnumpy(vector), np.full(100_000, 2))
            group.close()

        on_all(2, check)
        assert sizes
        assert max(sizes) < 100

    def test_a_communicator_must_take_memory_of_gpus(self, ipc):
        """And a design must not need the host."""
        [alone] = memory_communicators(1)
        with pytest.raises(UsageError, match="design direct needs a communicator that takes memory"):
            TensorGroup(alone, design=DESIGNS["direct"])
        with pytest.raises(UsageError, match="never meets the host"):
            TensorGroup(ipc(alone), design=DESIGNS["library"]._replace(direct=True))

    def test_ranks_must_be_on_one_host(self, ipc):
        """All of them are told."""

        def refused(communicator):
            with pytest.raises(ConfigurationError, match="of one host, and these 2 ranks are on 2"):
                ipc(communicator)

        on_all(2, refused, [[0], [1]])

    def test_sizes_that_differ_are_an_error(self, cupy, ipc):
        """Which names both; nobody waits for the other."""

        def refused(communicator):
            arrays = [cupy.empty(1 + communicator.rank, np.float32) for _ in range(2)]
            peer = 1 - communicator.rank
            says = f"rank {peer} sends {4 + 4 * peer} bytes, and rank {1 - peer} expects {8 - 4 * peer}"
            with pytest.raises(MismatchError, match=says):
                ipc(communicator).exchange([(peer, arrays[0])], [(peer, arrays[1])])

        on_all(2, refused)

    @pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a driver")
    def test_without_a_driver_the_error_says_so(self, cupy):
        """Handles are of whole allocations, and the driver alone knows them."""
        from kvstore_mpi.comm.cuda_ipc import CudaIpcCommunicator  # noqa: PLC0415  imports CuPy

        with pytest.raises(ConfigurationError, match="without a CUDA driver"):
            CudaIpcCommunicator(memory_communicators(1)[0])


class TestStore:
    """``--collective nccl``."""

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_sums_and_values_of_all_types(self, cupy, ranks):
        """Those that NCCL does not add are left to MPI."""

        def check(communicator):
            group = ClientGroup(NcclCommunicator(communicator), algorithm=Algorithm.NCCL)
            for dtype in ITEMSIZES:
                for size in (0, 1, 1_001):
                    parts = [((np.arange(size) + rank) % 3).astype(dtype) for rank in range(ranks)]
                    wanted = np.sum(parts, axis=0, dtype=dtype)
                    buffer = parts[group.rank].copy()
                    group.allreduce(buffer, 0, size)
                    np.testing.assert_array_equal(buffer, wanted)
                    root = size % ranks
                    buffer = parts[group.rank].copy()
                    group.reduce(buffer, 0, size, root)
                    if group.rank == root:
                        np.testing.assert_array_equal(buffer, wanted)
                    group.broadcast(buffer, 0, size, root)
                    np.testing.assert_array_equal(buffer, wanted)
            group.close()

        on_all(ranks, check)

    def test_float16_is_rounded_once(self, cupy):
        """As by every other way."""

        def check(communicator):
            nccl = NcclCommunicator(communicator)
            buffer = np.full(9, 2048.0 if nccl.rank else 1.5, np.float16)
            nccl.allreduce(buffer)
            np.testing.assert_array_equal(buffer, np.float16(2049.5))

        on_all(2, check)

    def test_who_lacks_a_gpu_is_named_on_all_ranks(self, cupy, monkeypatch):
        """Three ranks on two GPUs; of two hosts the one that has too few; no CuPy, no NCCL, no driver."""

        def said(communicator):
            with pytest.raises(ConfigurationError) as caught:
                NcclCommunicator(communicator)
            return str(caught.value)

        expected = "collective nccl cannot be used: rank {}: {}. Choose another one, or auto"
        few = "3 ranks on this host and 2 GPUs; NCCL wants one for each"
        assert on_all(3, said) == [expected.format(0, few)] * 3
        assert on_all(4, said, [[0], [1, 2, 3]]) == [expected.format(1, few)] * 4
        monkeypatch.setattr(cupy.cuda, "nccl", None)
        assert "rank 0: this CuPy finds no NCCL" in on_all(2, said)[1]
        monkeypatch.undo()

    @pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
    def test_without_cupy_the_error_says_how_to_get_it(self):
        """On all ranks."""

        def said(communicator):
            with pytest.raises(ConfigurationError, match=r"rank 0: CuPy is not installed; pip install"):
                NcclCommunicator(communicator)

        on_all(2, said)


class TestDeviceMemory:
    """Whether MPI takes memory of a GPU is asked for."""

    @pytest.mark.parametrize("answer", [0, 1])
    def test_the_library_is_asked(self, answer):
        """Open MPI and MPICH have the same name for it."""
        library = SimpleNamespace(MPIX_Query_cuda_support=lambda: answer)
        assert mpi.takes_device_memory(library) is (answer == 1)

    def test_a_library_without_the_question_does_not(self):
        """Older ones, and those of other vendors."""
        assert not mpi.takes_device_memory(SimpleNamespace())

    @pytest.mark.mpi
    def test_the_installed_library_answers(self):
        """Alone, in a process of its own; no wheel of MPI takes memory of a GPU."""
        ask = "from kvstore_mpi.comm.mpi import MpiCommunicator as C; print(C().gpu_aware())"
        done = subprocess.run(
            [sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() in {"True", "False"}
