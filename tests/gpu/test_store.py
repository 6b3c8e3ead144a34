"""The MXNet store with arrays on GPUs: arrays of the host that say so, over a CuPy of the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from functools import partial

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from mxnet.base import _LIB  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine, native  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.devices import DeviceTensors  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.pinned_memory import CudaRuntime  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.tensors import tensor_of  # noqa: E402
from kvstore_mpi.errors import ConfigurationError, PeerLostError  # noqa: E402
from kvstore_mpi.testing import mxnet_training as training  # noqa: E402
from kvstore_mpi.testing.fake_worker import LocalGroup, local_groups  # noqa: E402
from kvstore_mpi.testing.mxnet_contract import CHECKS, run_together  # noqa: E402

pytestmark = pytest.mark.mxnet


def device_of(array):
    """Say of an array on the n-th device of the host that it is on the n-th GPU."""
    kind, number = ctypes.c_int(), ctypes.c_int()
    _LIB.MXNDArrayGetContext(array.handle, ctypes.byref(kind), ctypes.byref(number))
    return number.value


@pytest.fixture
def pinned():
    """Sizes of the memory that is registered, by address."""
    registered = sys.modules["fake_cupy"].pinned
    registered.clear()
    yield registered
    registered.clear()


class FakeRuntime:
    """A CUDA runtime that knows what is pinned, and which GPUs it has woken up for that."""

    def __init__(self, pinned):
        self.pinned, self.current, self.woken, self.status, self.error = pinned, 0, set(), 0, 0

    def cudaGetDevice(self, number):  # noqa: N802
        number._obj.value = self.current

    def cudaSetDevice(self, number):  # noqa: N802
        self.current = getattr(number, "value", number)

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        assert flags == 1
        assert address.value not in self.pinned, "memory is registered once"
        self.woken.add(self.current)
        self.error = self.status
        if not self.status:
            self.pinned[address.value] = size.value
        return self.status

    def cudaHostUnregister(self, address):  # noqa: N802
        self.woken.add(self.current)
        self.pinned.pop(address.value, None)  # of tests before this one, too

    def cudaGetLastError(self):  # noqa: N802
        self.error = 0


@pytest.fixture
def runtime(pinned, monkeypatch):
    """The CUDA runtime of an MXNet that is built with it; arrays of all sizes are pinned for it."""
    made = FakeRuntime(pinned)
    monkeypatch.setattr(CudaRuntime, "of_mxnet", lambda: CudaRuntime(made))
    monkeypatch.setattr(native, "gpu_of", device_of)
    monkeypatch.setattr(DeviceTensors, "least_bytes", 1)
    return made


@pytest.fixture
def cupy(stand_in, runtime):
    """A CuPy that works on the CPU."""
    return stand_in


def with_kernels(group):
    """Let a group be one of a job that asks for kernels."""
    for worker in group.workers:
        worker.gpu_kernels = True
    return group


@pytest.fixture
def make_group(cupy):
    """Make groups of fake workers, whose job asks for kernels, and stop them afterwards."""
    with local_groups() as make:
        yield lambda *shape, **options: with_kernels(make(*shape, **options))
    assert engine.wait_until_idle(10)
    with contextlib.suppress(Exception):  # errors that nobody has read
        mx.nd.waitall()


@pytest.fixture
def launched(cupy, monkeypatch):
    """The names of the kernels that are compiled."""
    names, module = [], cupy.RawModule

    def note(**arguments):
        names.extend(arguments["name_expressions"])
        return module(**arguments)

    monkeypatch.setattr(cupy, "RawModule", note)
    return names


def on_gpus(count, value, shape=(50,), dtype="float32"):
    return [mx.nd.full(shape, value + k, dtype=dtype, ctx=mx.cpu(k)) for k in range(count)]


@pytest.mark.parametrize("num_servers", [0, 1])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_values(make_group, check, num_servers):
    """Every check of the adapter contract holds; arrays of one GPU given twice are left to MXNet."""
    group = make_group(2, num_servers=num_servers)
    run_together(check, [partial(KVStoreMPI, "sync", worker) for worker in group.workers])


@pytest.mark.parametrize(
    "check",
    [check for check in training.TRAINING_CHECKS if "several_devices" in check.__name__],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("num_servers", [0, 1])
def test_training(make_group, check, num_servers):
    """Training on two of them equals training in one process."""
    group = make_group(1, num_servers=num_servers)
    run_together(check, [partial(KVStoreMPI, "sync", worker) for worker in group.workers])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
def test_one_kernel_reads_and_one_writes_all(make_group, launched, dtype):
    """Whatever the type of the key, which is that of the staging array, too."""
    kv = KVStoreMPI("sync", make_group().workers[0])
    kv.init("w", mx.nd.zeros((50,), dtype=dtype))
    outs = on_gpus(2, 0, dtype=dtype)
    kv.pushpull("w", on_gpus(2, 3, dtype=dtype), out=outs)
    for out in outs:
        np.testing.assert_array_equal(out.asnumpy(), np.full(50, 7, dtype))
    element = sys.modules["kvstore_mpi.tensor_collectives.gpu.device_memory"]._TYPES[dtype]
    wide = "float" if dtype == "float16" else element
    assert launched == [
        f"tensor_reduce<{element}, {wide}, {element}, 2, false, Sum>",
        f"tensor_share<{element}, {element}, 2>",
    ]


def test_staging_arrays_are_pinned_once(make_group, pinned):
    """Pulls alone pin them, too."""
    kv = KVStoreMPI("sync", make_group().workers[0])
    for key in range(3):
        kv.init(key, mx.nd.full((50,), key))
    for _ in range(2):
        for key in range(3):
            outs = on_gpus(2, 0)
            kv.pull(key, out=outs)
            kv.pull(key, out=on_gpus(1, 0))
            kv.pushpull(key, on_gpus(2, 1), out=outs)
    mx.nd.waitall()
    buffers = [staging.buffer for staging in kv._exchange.stagings.values()]
    assert pinned == {buffer.ctypes.data: buffer.nbytes for buffer in buffers}


def test_a_staging_array_is_let_go_with_its_memory(cupy, pinned):
    """Before somebody else has that."""
    staging = Staging((50,), "float32", np.empty)
    address = staging.buffer.ctypes.data
    assert not DeviceTensors(wanted=False).are_for(staging, on_gpus(2, 1))
    assert address in pinned
    del staging
    gc.collect()
    assert address not in pinned


def train_two_keys(group, count):
    """Sum two keys over ``count`` GPUs."""
    kv = KVStoreMPI("sync", group.workers[0])
    for key in ("w", "v"):
        kv.init(key, mx.nd.zeros((50,)))
        outs = on_gpus(count, 0)
        kv.pushpull(key, on_gpus(count, 0), out=outs)
        for out in outs:
            assert out.asnumpy().tolist() == [sum(range(count))] * 50


@pytest.mark.parametrize("why", ["no peer access", "too many", "switched off"])
def test_what_there_are_no_kernels_for_is_left_to_mxnet(make_group, cupy, monkeypatch, launched, why):
    """It says so as little as of arrays on the host."""
    if why == "no peer access":
        monkeypatch.setattr(cupy.cuda.runtime, "deviceCanAccessPeer", lambda _one, _other: False)
    elif why == "switched off":
        monkeypatch.setenv("MXNET_ENABLE_GPU_P2P", "0")
    train_two_keys(make_group(), 9 if why == "too many" else 2)
    assert not launched


def test_what_a_compiler_refuses_is_left_to_mxnet(make_group, cupy, monkeypatch, caplog):
    """That is logged once, and not tried again."""

    def refuse(**_):
        raise cupy.cuda.runtime.CUDARuntimeError("cudaErrorInvalidPtx")

    monkeypatch.setattr(cupy, "RawModule", refuse)
    train_two_keys(make_group(), 2)
    assert caplog.text.count("kernels fail: cudaErrorInvalidPtx") == 1


def test_memory_that_cannot_be_pinned_is_copied_slowly(make_group, runtime, launched, caplog):
    """Which is logged once and leaves no error for MXNet to find; there are no kernels on it."""
    runtime.status = 71
    train_two_keys(make_group(), 2)
    assert caplog.text.count("cudaHostRegister ended with error 71 for 200 bytes") == 1
    assert runtime.error == 0
    assert not launched


@pytest.mark.parametrize("gpu", [0, 1])
def test_arrays_of_one_gpu_are_copied_by_mxnet(make_group, runtime, launched, gpu):
    """To and from pinned memory, with kernels or without; no other GPU is woken up for that."""
    group = make_group()
    group.workers[0].gpu_kernels = bool(gpu)
    kv = KVStoreMPI("sync", group.workers[0])
    kv.init("w", mx.nd.zeros((50,)))
    out = on_gpus(2, 0)[gpu]
    kv.pushpull("w", on_gpus(2, 3)[gpu], out=out)
    assert out.asnumpy().tolist() == [3 + gpu] * 50
    assert list(runtime.pinned.values()) == [200]
    assert (runtime.woken, runtime.current) == ({gpu}, 0)
    assert not launched


def test_arrays_of_the_host_are_not_pinned(make_group, runtime, monkeypatch):
    """Nor is anything asked of a runtime where MXNet has none."""
    monkeypatch.setattr(native, "gpu_of", lambda _array: None)
    train_two_keys(make_group(), 2)
    assert not runtime.pinned
    assert not runtime.woken


def test_a_gradient_that_failed_is_not_summed(make_group, launched):
    """Its error is the result's, and nothing hangs."""
    kv = KVStoreMPI("sync", make_group().workers[0])
    kv.init("w", mx.nd.zeros((1,)))
    broken = mx.nd.take(mx.nd.ones((2,)), mx.nd.array([5]), mode="raise")
    whole, out = mx.nd.ones((1,), ctx=mx.cpu(1)), on_gpus(2, 7, shape=(1,))
    kv.pushpull("w", [broken, whole], out=out)
    with pytest.raises((mx.MXNetError, IndexError)):
        out[0].wait_to_read()
    assert out[0].asnumpy().tolist() == [7]
    assert launched


def push_and_meet(kv, values):
    """What goes wrong meanwhile is told by the first of the two calls that knows."""
    kv.push("w", values)
    kv.barrier()


def test_no_memory_on_a_gpu_is_not_taken_for_a_layout(make_group, cupy, monkeypatch):
    """MXNet says what is wrong; only the host has layouts."""

    def refuse(_array):
        raise mx.MXNetError("out of memory")

    monkeypatch.setattr(native, "address_of", refuse)
    kv = KVStoreMPI("sync", make_group().workers[0])
    kv.init("w", mx.nd.zeros((50,)))

    with pytest.raises(mx.MXNetError, match="out of memory"):
        push_and_meet(kv, on_gpus(2, 1))


def test_a_tensor_on_their_memory(cupy):
    """For who calls collectives directly; of any size, flat, where it lies."""
    values = on_gpus(2, 1, shape=(5, 3))
    tensor = tensor_of(values)
    assert [vector.device.id for vector in tensor.vectors] == [0, 1]
    tensor.vectors[0].set(np.full(15, 9, np.float32))
    cupy.cuda.get_current_stream().synchronize()
    assert values[0].asnumpy().tolist() == [[9] * 3] * 5
    assert values[1].asnumpy().tolist() == [[2] * 3] * 5
    with mx.util.np_shape(True):
        assert tensor_of([mx.nd.zeros((0, 3))]).size == 0


@pytest.mark.parametrize("status", [704, 2])
def test_a_device_that_is_reached_already_is_no_error(make_group, cupy, monkeypatch, status):
    """MXNet may have seen to it; what else goes wrong is told."""

    def refuse(_other):
        error = cupy.cuda.runtime.CUDARuntimeError(f"error {status}")
        error.status = status
        raise error

    monkeypatch.setattr(cupy.cuda.runtime, "deviceEnablePeerAccess", refuse)
    kv = KVStoreMPI("sync", make_group().workers[0])
    kv.init("w", mx.nd.zeros((50,)))
    already = status == 704
    with contextlib.nullcontext() if already else pytest.raises(RuntimeError, match="error 2"):
        push_and_meet(kv, on_gpus(2, 1))


def test_weights_stay_when_an_exchange_fails(make_group):
    """What has not come is not written to a GPU."""
    group = make_group(num_servers=1)
    kv = KVStoreMPI("sync", group.workers[0])
    kv.init("w", mx.nd.zeros((50,)))
    group.fail(lambda call: call.name != "init", PeerLostError("worker 1 on node7 has died"))
    group.hold(lambda _call: True)
    outs = on_gpus(2, 7)
    kv.pushpull("w", on_gpus(2, 1), out=outs)
    group.release()
    with pytest.raises(PeerLostError, match="worker 1 on node7 has died"):
        outs[0].wait_to_read()
    for number, out in enumerate(outs):
        assert out.asnumpy().tolist() == [7 + number] * 50


def test_kernels_are_used_only_when_asked_for(make_group, launched):
    """Otherwise MXNet copies and sums."""
    [worker] = make_group().workers
    worker.gpu_kernels = False
    kv = KVStoreMPI("sync", worker)
    kv.init("w", mx.nd.zeros((50,)))
    outs = on_gpus(2, 0)
    kv.pushpull("w", on_gpus(2, 1), out=outs)
    assert outs[1].asnumpy().tolist() == [3] * 50
    assert not launched


def test_kernels_without_cupy_are_an_error(make_group, monkeypatch):
    """What was asked for and cannot be had is no reason to go another way silently."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "kvstore_mpi.tensor_collectives.gpu.device_memory", raising=False)
    kv = KVStoreMPI("sync", make_group().workers[0])
    kv.init("w", mx.nd.zeros((50,)))
    with pytest.raises(ConfigurationError, match="--gpu-kernels needs CuPy, which cannot be imported"):
        kv.pushpull("w", on_gpus(2, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_on_gpus(on_gpu, dtype):
    """The same on all GPUs that MXNet and CuPy see; megabytes, so that nothing is left to MXNet.

    Arrays are made by copies, for which an MXNet that is older than the card needs no code of its own.
    """
    count = mx.context.num_gpus()
    if not count:
        pytest.skip("this MXNet is built without CUDA")
    group = with_kernels(LocalGroup())
    kv = KVStoreMPI("sync", group.workers[0])
    host = np.random.default_rng(0).integers(-8, 8, (count, 1 << 20)).astype(dtype)
    kv.init("w", mx.nd.zeros((1 << 20,), dtype=dtype))
    values = [mx.nd.array(each, dtype=dtype, ctx=mx.gpu(number)) for number, each in enumerate(host)]
    outs = [mx.nd.array(0 * host[0], dtype=dtype, ctx=mx.gpu(number)) for number in range(count)]
    wanted = host.sum(axis=0, dtype=dtype)
    for _ in range(3):
        kv.pushpull("w", values, out=outs)
        for out in outs:
            np.testing.assert_array_equal(out.asnumpy(), wanted)
    staging = kv._exchange.stagings["w"]
    devices, copied = kv._exchange._devices, mx.nd.array(0 * host[0], dtype=dtype, ctx=mx.gpu(0))
    assert staging.is_pinned
    assert devices.are_for(staging, values) == (count > 1)
    staging.buffer[:] = 0
    devices.reduce(staging, values)  # by which the store has summed them, if there are several
    np.testing.assert_array_equal(staging.buffer, wanted)
    devices.share(staging, [copied])
    np.testing.assert_array_equal(copied.asnumpy(), wanted)
    group.close()
