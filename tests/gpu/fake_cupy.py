"""As much of CuPy as the package uses, on the CPU: kernels are compiled by g++, streams are queues.

What is queued happens when somebody waits for it, as late as it can, so that a wait that is missing shows.
Pointers are real, types of kernels' arguments are checked, and every device has its own number.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
import threading
import time
import weakref
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

SHIM = Path(__file__).with_name("cpu_shim.h")
DEVICES = 2
COPY_KIND = 4
streams = weakref.WeakValueDictionary()
"""By their pointers."""
_local = threading.local()


class Stream:
    """Work in its order; nothing is done before somebody waits."""

    def __init__(self, *, non_blocking=False):
        self.queue, self.done, self.before = [], 0, []
        self.ptr = id(self)
        streams[self.ptr] = self

    def __enter__(self):
        self.before.append(getattr(_local, "stream", None))
        _local.stream = self

    def __exit__(self, *_):
        _local.stream = self.before.pop()

    def put(self, work):
        self.queue.append(work)

    def wait_event(self, event):
        self.put(event.synchronize)

    def record(self):
        event = Event()
        event.record(self)
        return event

    def synchronize(self, until=None):
        until = len(self.queue) if until is None else until
        while self.done < until:
            self.done += 1
            self.queue[self.done - 1]()


def get_current_stream():
    if getattr(_local, "stream", None) is None:
        _local.default = getattr(_local, "default", None) or Stream()
        return _local.default
    return _local.stream


class Event:
    """A place in a stream."""

    def record(self, stream=None):
        self.stream = stream or get_current_stream()
        self.place = len(self.stream.queue)

    def synchronize(self):
        self.stream.synchronize(self.place)
        self.time = time.perf_counter()


class UnownedMemory:
    """Memory that somebody else owns."""

    def __init__(self, ptr, size, owner, device_id):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    """A place in it."""

    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class Device:
    """One of several, which reach each other's memory."""

    def __init__(self, number=0):
        assert 0 <= number < DEVICES
        self.id = number
        self.attributes = {"MultiProcessorCount": 1}
        self.before = []

    def __enter__(self):
        self.before.append(getattr(_local, "device", 0))
        _local.device = self.id

    def __exit__(self, *_):
        _local.device = self.before.pop()


class _ArrayType(type):
    """Lets ``cupy.ndarray`` be called as CuPy's is."""

    def __call__(cls, values, *rest):
        if isinstance(values, int):
            dtype, pointer = rest
            assert values * np.dtype(dtype).itemsize <= pointer.mem.size
            raw = (ctypes.c_byte * pointer.mem.size).from_address(pointer.ptr)
            raw.owner = pointer.mem.owner
            rest, values = (Device(pointer.mem.device_id),), np.frombuffer(raw, dtype)
        return super().__call__(values, *rest)


class Array(metaclass=_ArrayType):
    """Memory of a device."""

    def __init__(self, values, device=None):
        self.values = values
        self.device = Device(getattr(_local, "device", 0)) if device is None else device
        self.data = SimpleNamespace(ptr=values.ctypes.data)
        for name in ("size", "dtype", "ndim", "shape", "strides", "nbytes", "itemsize"):
            setattr(self, name, getattr(values, name))
        self.flags = SimpleNamespace(c_contiguous=values.flags.c_contiguous)

    def __getitem__(self, part):
        return Array(self.values[part], self.device)

    def __setitem__(self, part, value):
        self.values[part] = value

    def __add__(self, other):
        return Array(self.values + other.values, self.device)

    def view(self, dtype):
        return Array(self.values.view(dtype), self.device)

    def set(self, values, stream=None):
        assert values.dtype == self.dtype
        copy = values.copy()
        (stream or get_current_stream()).put(lambda: np.copyto(self.values, copy))

    def get(self, stream=None, order="C", out=None, *, blocking=True):
        out = np.empty_like(self.values) if out is None else out
        stream = stream or get_current_stream()
        stream.put(lambda: np.copyto(out, self.values, casting="no"))
        if blocking:
            stream.synchronize()
        return out


class RawModule:
    """Kernels that g++ compiles, one at a time."""

    def __init__(self, code, options, name_expressions):
        assert options == ("-std=c++17",)
        self.code, [self.name] = code, name_expressions

    def get_function(self, name):
        assert name == self.name
        call = _compiled(self.code, name)

        def kernel(blocks, threads, arguments):
            *pointers, packs, size = arguments
            assert all(type(each) is np.uint64 for each in pointers)
            assert type(packs) is type(size) is np.int64
            numbers = (ctypes.c_uint64 * len(pointers))(*map(int, pointers))
            lengths = ctypes.c_longlong(packs), ctypes.c_longlong(size)
            get_current_stream().put(lambda: call(blocks[0], threads[0], numbers, *lengths))

        return kernel


def _pointers(name):
    """Return the pointers that a kernel takes, as C has them."""
    element, *others = re.findall(r"\w+", name.partition("<")[2])
    eight = [f"({'const ' * ('reduce' in name)}{element}*)a[{{}}]"] * 8
    come = f"(const {others[0]}*)a[{{}}]"
    return [*eight, come, f"({others[1]}*)a[{{}}]"] if "reduce" in name else [come, *eight]


@cache
def _compiled(code, name):
    arguments = ", ".join(kind.format(number) for number, kind in enumerate(_pointers(name)))
    source = re.sub(r"#include <cuda_\w+\.h>\n", "", code)
    run = 'extern "C" void run(unsigned b, unsigned t, unsigned long long* a, long long p, long long n)'
    text = f'#include "{SHIM}"\n{source}\n{run} {{ launch({name}, b, t, {arguments}, p, n); }}\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cpp"
        path.write_text(text)
        command = ["g++", "-O1", "-std=c++17", "-fno-strict-aliasing", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", path.with_suffix(".so"), path], check=True, timeout=60)
        return ctypes.CDLL(str(path.with_suffix(".so"))).run


class ElementwiseKernel:
    """A kernel that adds its arguments, which is the one that is measured."""

    def __init__(self, inputs, output, operation, _name):
        added = " + ".join(f"W({each.split()[1]})" for each in inputs.split(", "))
        assert (output, operation) == ("W out", f"out = {added}")

    def __call__(self, *arrays):
        *sources, out = arrays
        values = [source.values for source in sources]
        get_current_stream().put(lambda: np.sum(values, axis=0, dtype=out.dtype, out=out.values))


def _sum(stacked, axis, dtype, out):
    get_current_stream().put(lambda: np.sum(stacked.values, axis=axis, dtype=dtype, out=out.values))


pinned = {}
"""Sizes of what was registered, by address."""


def _copy_memory(to, source, num_bytes, kind, stream):
    assert kind == COPY_KIND
    streams[stream].put(lambda: ctypes.memmove(to, source, num_bytes))


def _pin(address, size, flags):
    assert flags == 0
    assert address not in pinned, "memory is registered once"
    pinned[address] = size


def modules():
    """Return what is to stand in ``sys.modules``."""
    runtime = SimpleNamespace(
        CUDARuntimeError=RuntimeError,
        getDeviceCount=lambda: DEVICES,
        getDeviceProperties=lambda number: {"name": f"no card {number}".encode()},
        deviceCanAccessPeer=lambda _one, _other: True,
        deviceEnablePeerAccess=lambda _other: None,
        deviceSynchronize=lambda: None,
        hostRegister=_pin,
        hostUnregister=pinned.pop,
        memcpyAsync=_copy_memory,
        memcpyDefault=COPY_KIND,
    )
    cupy, cupyx = ModuleType("cupy"), ModuleType("cupyx")
    cupy.cuda = SimpleNamespace(
        runtime=runtime,
        Device=Device,
        Stream=Stream,
        Event=Event,
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
        get_current_stream=get_current_stream,
        get_elapsed_time=lambda begin, end: 1e3 * max(1e-9, end.time - getattr(begin, "time", end.time)),
        alloc_pinned_memory=bytearray,
    )
    cupy.RawModule = RawModule
    cupy.ndarray, cupy.uint8 = Array, np.uint8
    cupy.empty = lambda size, dtype: Array(np.empty(size, dtype))
    cupy.ones = lambda size, dtype: Array(np.ones(size, dtype))
    cupy.stack = lambda arrays: Array(np.stack([array.values for array in arrays]))
    cupy.sum, cupy.ElementwiseKernel = _sum, ElementwiseKernel
    cupy.asarray = lambda values: Array(values.copy())
    cupy.asnumpy = lambda array: array.get()
    cupy.copyto = lambda to, values: get_current_stream().put(lambda: np.copyto(to.values, values.values))
    cupyx.empty_pinned = np.empty
    return {"cupy": cupy, "cupyx": cupyx}
