"""Tensors of devices against their twins on the host, bit by bit, in every type, operation and design.

Each test runs on a GPU where there is one, and everywhere on the CuPy of the CPU, so that it is known to be
right itself. Ranks are threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import ml_dtypes
import numpy as np
import pytest
from support.often import ONE_OF_MANY, often_of

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.tensor import Tensor
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup

SIZES = (0, 1, 9, 50_003)
"""Nothing, less than a pack of 16 bytes, a pack and a rest, and several segments and a rest."""

SEGMENT_BYTES = 40_000
EXTREMES = ("max", "min")
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int32", "int64")
OFTEN = ("bfloat16", "float32")
"""Types that every change is tried with, each design with one: the stand-in compiles kernels for each."""


@pytest.fixture(params=[pytest.param("on_gpu", marks=pytest.mark.gpu), "stand_in"])
def cupy(request):
    """The CuPy of a GPU, and that of the CPU."""
    return request.getfixturevalue(request.param)


def on_all(size, call):
    """Call on each rank, in a thread of its own."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, memory_communicators(size)))


def type_of(name):
    """Return the element type of a name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def numbers(source, size, dtype):
    """Return numbers of both signs, a part of them smaller than normal; of integers, sums that overflow."""
    if dtype.name in INTEGERS:
        return source.integers(0, 100, size).astype(dtype)
    values = source.standard_normal(size)
    values[::3] *= float(ml_dtypes.finfo(dtype).tiny)
    return values.astype(dtype)


def on_devices(cupy, host):
    """Copy arrays to devices in turn, as words: CuPy copies no bfloat16."""
    vectors, count = [], cupy.cuda.runtime.getDeviceCount()
    for index, values in enumerate(host):
        with cupy.cuda.Device(index % count):
            vectors.append(cupy.asarray(values.view(f"u{values.itemsize}")).view(values.dtype))
    return Tensor(vectors)


def bits(cupy, vector):
    """Return what a vector of a device holds."""
    return cupy.asnumpy(vector.view(f"u{vector.dtype.itemsize}")).tobytes()


def operations(design, dtype):
    """Return what a design does with a type: integers have no mean, and the library adds alone."""
    extremes = () if design.library else EXTREMES
    return ("sum", *extremes) if dtype.name in INTEGERS else ("sum", "mean", *extremes)


class Pair:
    """One rank's group on devices and its twin on the host."""

    def __init__(self, cupy, communicator, design):
        self._cupy, self.rank = cupy, communicator.rank
        self._devices = TensorGroup(communicator, design=design)
        self._host = TensorGroup(communicator, design=design)

    def check(self, host, operation):
        """Compare an allreduce; the tensor stays as it is, and becomes the result when it is to."""
        tensor = on_devices(self._cupy, host)
        before = [bits(self._cupy, vector) for vector in tensor.vectors]
        out = on_devices(self._cupy, [np.zeros_like(values) for values in host])
        self._host.allreduce(Tensor(host), operation, timeout=60)
        self._devices.allreduce(tensor, operation, out=out, timeout=60)
        assert [bits(self._cupy, vector) for vector in tensor.vectors] == before
        self._devices.allreduce(tensor, operation, timeout=60)
        for values, vector, other in zip(host, tensor.vectors, out.vectors):
            what = (operation, values.size)
            assert values.tobytes() == bits(self._cupy, vector) == bits(self._cupy, other), what

    def close(self):
        self._devices.close()
        self._host.close()


@pytest.mark.parametrize(
    ("name", "dtype"), often_of([*zip(DESIGNS, cycle(OFTEN))], DESIGNS, FLOATS + INTEGERS)
)
def test_an_allreduce_has_the_bits_of_the_host(cupy, name, dtype):
    """Of two ranks with two vectors, in place and not."""
    design, dtype = DESIGNS[name]._replace(segment_bytes=SEGMENT_BYTES), type_of(dtype)

    def check(communicator):
        pair = Pair(cupy, communicator, design)
        source = np.random.default_rng(pair.rank)
        for size in SIZES:
            for operation in operations(design, dtype):
                pair.check([numbers(source, size, dtype) for _ in range(2)], operation)
        pair.close()

    on_all(2, check)


@pytest.mark.parametrize("count", [1, *(pytest.param(each, marks=ONE_OF_MANY) for each in (3, 8))])
@pytest.mark.parametrize("dtype", OFTEN)
def test_any_number_of_vectors_has_the_bits_of_the_host(cupy, dtype, count):
    """Each number has kernels of its own."""
    design, dtype = DESIGNS["multiring"]._replace(segment_bytes=SEGMENT_BYTES), type_of(dtype)

    def check(communicator):
        pair = Pair(cupy, communicator, design)
        source = np.random.default_rng(pair.rank)
        for operation in operations(design, dtype):
            pair.check([numbers(source, 30_011, dtype) for _ in range(count)], operation)
        pair.close()

    on_all(2, check)


@pytest.mark.parametrize("dtype", OFTEN)
def test_nan_passes_through_everything(cupy, dtype):
    """From any vector of any rank, into a sum, a mean and extremes; which NaN it is is left open."""
    design, dtype = DESIGNS["multiring"], type_of(dtype)

    def check(communicator):
        group = TensorGroup(communicator, design=design)
        for operation in operations(design, dtype):
            host = [np.arange(20).astype(dtype) for _ in range(2)]
            for index, values in enumerate(host):
                values[2 * group.rank + index] = np.nan
            tensor = on_devices(cupy, host)
            group.allreduce(tensor, operation, timeout=60)
            for vector in tensor.vectors:
                found = np.frombuffer(bits(cupy, vector), dtype)
                assert np.flatnonzero(np.isnan(found.astype(np.float32))).tolist() == [0, 1, 2, 3], (
                    operation
                )
        group.close()

    on_all(2, check)
