"""Collectives on tensors with threads for ranks, and a rank that does not come."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.errors import DeadlineError, MismatchError, UsageError
from kvstore_mpi.tensor_collectives.tensor import Tensor
from kvstore_mpi.tensor_group import TensorGroup
from kvstore_mpi.testing.tensor_contract import run_checks


@pytest.mark.parametrize("num_rings", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_threads(size, num_rings):
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda each: run_checks(each, num_rings), memory_communicators(size)))


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
