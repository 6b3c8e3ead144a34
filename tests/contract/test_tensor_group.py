"""Collectives on tensors with threads for ranks, and a rank that does not come."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.errors import DeadlineError, MismatchError, UsageError
from kvstore_mpi.tensor_collectives.designs import DESIGNS, Design
from kvstore_mpi.tensor_collectives.local_reduce import combine
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, Tensor
from kvstore_mpi.tensor_collectives.threads import ThreadedCombine
from kvstore_mpi.tensor_group import TensorGroup
from kvstore_mpi.testing.tensor_contract import everything, run_checks, vectors


@pytest.mark.parametrize("num_rings", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_threads(size, num_rings):
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda each: run_checks(each, num_rings), memory_communicators(size)))


def on_all(size, design, call):
    """Call something with the group of each rank, in a thread of its own."""

    def run(communicator):
        group = TensorGroup(communicator, design=design)
        try:
            call(group)
        finally:
            group.close()

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(run, memory_communicators(size)))


@pytest.mark.paper("MXNET-MPI section 7.3")
@pytest.mark.parametrize("name", [name for name, design in DESIGNS.items() if not design.needs_gpus])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_designs_of_the_paper_agree(name, ranks, dtype):
    """MXNET-MPI, section 7.3: with small segments, so that large tensors are cut in all of them."""

    def check(group):
        for count in (1, 2, 3):
            for size in (0, 1, 1_000, 30_011):
                tensor = Tensor(vectors(group.rank, count, size, dtype))
                group.allreduce(tensor, timeout=60)
                wanted = everything(group, count, size, dtype).astype(np.float64).sum(axis=0)
                for vector in tensor.vectors:
                    np.testing.assert_array_equal(vector.astype(np.float64), wanted)
                source = Tensor(vectors(group.rank, count, size, dtype))
                out = Tensor([np.zeros(size, dtype) for _ in range(count)])
                group.allreduce(source, "mean", out=out, timeout=60)
                np.testing.assert_allclose(out.vectors[-1], wanted / (ranks * count), rtol=1e-3)
                for one, before in zip(source.vectors, vectors(group.rank, count, size, dtype)):
                    np.testing.assert_array_equal(one, before)

    on_all(ranks, DESIGNS[name]._replace(segment_bytes=16 << 10), check)


def test_adding_with_threads_has_the_bits_of_one():
    source = np.random.default_rng(5)
    arrays = [source.standard_normal(300_001).astype(np.float32) for _ in range(3)]
    one, other = np.empty_like(arrays[0]), np.empty_like(arrays[0])
    threads = ThreadedCombine(3)
    threads([one], arrays, OPERATIONS["mean"], 3)
    threads.close()
    combine([other], arrays, OPERATIONS["mean"], 3)
    assert one.tobytes() == other.tobytes()


def test_what_a_design_cannot_do_is_refused_before_anything_is_sent():
    [communicator] = memory_communicators(1)
    tensor = Tensor([np.zeros(8, np.float32)] * 2)
    for design, operation, words in (
        (DESIGNS["library"], "max", "library has sum and mean, not max"),
        (DESIGNS["nccl"], "sum", "needs CuPy vectors on several GPUs"),
    ):
        group = TensorGroup(communicator, design=design)
        with pytest.raises(UsageError, match=words):
            group.allreduce(tensor, operation)
        group.close()
    group = TensorGroup(communicator, design=DESIGNS["flat-ring"])
    with pytest.raises(UsageError, match="out must have 2 vectors, not 1"):
        group.allreduce(tensor, out=Tensor(tensor.vectors[:1]))
    group.close()
    for design in (
        Design(num_rings=0),
        Design(whole_first=True, library=True),
        Design(2, every_vector=True),
    ):
        with pytest.raises(UsageError):
            TensorGroup(communicator, design=design)


def test_a_rank_that_does_not_come_is_named():
    first, _missing = memory_communicators(2)
    group = TensorGroup(first)
    work = group.start_allreduce(Tensor([np.zeros(5, np.float32)]))
    with pytest.raises(DeadlineError, match=r"allreduce of 1 x 5 float32 on rank 0 .* waits for rank 1"):
        work.wait(0.2)
    assert not work.done()


def test_vectors_of_a_tensor_must_fit_together():
    with pytest.raises(UsageError, match="at least one"):
        Tensor([])
    with pytest.raises(MismatchError, match=r"vector 1 has 3 float32"):
        Tensor([np.zeros(2, np.float32), np.zeros(3, np.float32)])
    with pytest.raises(UsageError, match="contiguous"):
        Tensor([np.zeros((2, 2), np.float32)])
    with pytest.raises(UsageError, match="contiguous"):
        Tensor([np.zeros(4, np.float32)[::2]])
