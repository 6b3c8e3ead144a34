"""MXNet's arrays as tensors: the memory is theirs."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.errors import MismatchError
from kvstore_mpi.mxnet.tensors import tensor_of
from kvstore_mpi.tensor_group import TensorGroup

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


def test_arrays_on_gpus_are_given_away_by_dlpack(monkeypatch):
    """With the device they are on, flat; on a stand-in."""
    said = []

    class OnGpu:
        context = SimpleNamespace(device_type="gpu", device_id=3)

        def to_dlpack_for_write(self):
            said.append("given")
            return np.ones((2, 3), np.float32)

    def from_dlpack(exporter):
        assert exporter.__dlpack_device__() == (2, 3)
        return exporter.__dlpack__(stream=1)

    cupy = ModuleType("cupy")
    cupy.from_dlpack = from_dlpack
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    [vector] = tensor_of([OnGpu()]).vectors
    assert vector.shape == (6,)
    assert said == ["given"]
