"""MXNet's arrays as tensors: the memory is theirs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest

from kvstore_mpi.adapters.mxnet.bridge.tensors import tensor_of
from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.errors import MismatchError
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup

pytestmark = pytest.mark.mxnet


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_a_collective_writes_the_arrays_themselves(dtype):
    """Also when MXNet is still about to compute them."""

    def reduce(communicator):
        group = TensorGroup(communicator)
        vectors = [mx.nd.full((30, 7), communicator.rank + number, dtype=dtype) + 1 for number in range(2)]
        group.allreduce(tensor_of(vectors), timeout=60)
        group.close()
        return [vector.asnumpy() for vector in vectors]

    with ThreadPoolExecutor(2) as pool:
        for vectors in pool.map(reduce, memory_communicators(2)):
            for vector in vectors:
                np.testing.assert_array_equal(vector, np.full((30, 7), 8, dtype))


def test_they_must_be_alike():
    """As with any tensor."""
    with pytest.raises(MismatchError, match="must be equal"):
        tensor_of([mx.nd.zeros(3), mx.nd.zeros(4)])
