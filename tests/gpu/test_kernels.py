"""The kernels without a GPU: compiled for the CPU and compared with NumPy bit by bit, and compiled by
nvcc."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.made_once import made_once
from support.often import often_of

from kvstore_mpi.tensor_collectives.gpu import SOURCE
from kvstore_mpi.tensor_collectives.local_reduce import combine
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS

HERE = Path(__file__).parent
TYPES = {
    "float32": ("float", "float"),
    "float16": ("__half", "float"),
    "float64": ("double", "double"),
    "bfloat16": ("__nv_bfloat16", "float"),
    "int8": ("i8", "i8"),
    "uint8": ("u8", "u8"),
    "int32": ("i32", "i32"),
    "int64": ("i64", "i64"),
}
WIDE = {"float16": "float32", "bfloat16": "float32"}
"""In what the others are added, that is in themselves."""

COUNTS = range(1, 9)
SIZES = (0, 1, 7, 8, 9, 63, 1_000)
GUARD = 16
"""Elements before and after each array that must stay as they are."""


def instances():
    """Yield the C name and the template of every kernel under test."""
    for dtype, (element, wide) in TYPES.items():
        for count in COUNTS:
            for operation in ("Sum", "Max", "Min"):
                for incoming in ("false", "true"):
                    types = f"{element}, {wide}, {wide}"
                    template = f"tensor_reduce<{types}, {count}, {incoming}, {operation}>"
                    yield (
                        f"reduce_{dtype}_{count}_{operation.lower()}_{incoming}",
                        template,
                        "reduce",
                        dtype,
                    )
            yield f"share_{dtype}_{count}", f"tensor_share<{element}, {wide}, {count}>", "share", dtype


def wrapper(name, template, kind, dtype):
    """Return a C function that runs a kernel with a few blocks of a few threads."""
    element, wide = TYPES[dtype]
    vectors = ", ".join(f"({'const ' * (kind == 'reduce')}{element}*)v[{k}]" for k in range(8))
    arguments = f"{vectors}, (const {wide}*)in, ({wide}*)out" if kind == "reduce" else f"in, {vectors}"
    arguments = arguments.replace("in, (", f"(const {wide}*)in, (", 1) if kind == "share" else arguments
    return (
        f'extern "C" void {name}(void** v, void* in, void* out, long long packs, long long size) {{\n'
        f"  launch({template}, 3, 5, {arguments}, packs, size);\n}}\n"
    )


def narrow_wrapper(count):
    """Return C functions that reduce float16 into float16, and share it, as a store's buffers have it."""
    vectors = ", ".join(f"(const __half*)v[{k}]" for k in range(8))
    outs = vectors.replace("const ", "")
    reduce = f"tensor_reduce<__half, float, __half, {count}, false, Sum>"
    share = f"tensor_share<__half, __half, {count}>"
    head = "(void** v, void* in, void* out, long long packs, long long size)"
    return (
        f'extern "C" void reduce_narrow_{count}{head} {{\n'
        f"  launch({reduce}, 3, 5, {vectors}, (const float*)in, (__half*)out, packs, size);\n}}\n"
        f'extern "C" void share_narrow_{count}{head} {{\n'
        f"  launch({share}, 3, 5, (const __half*)in, {outs}, packs, size);\n}}\n"
    )


@pytest.fixture(scope="session")
def library(request, tmp_path_factory):
    """The kernels, compiled for the CPU, and kept from run to run; -O1 takes three times as long."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to compile the kernels for the CPU")
    text = f'#include "{HERE}/cpu_shim.h"\n#include "{SOURCE}"\n'
    text += "".join(wrapper(*each) for each in instances())
    text += "".join(narrow_wrapper(count) for count in COUNTS)
    command = [compiler, "-O0", "-std=c++17", "-fno-strict-aliasing", "-shared", "-fPIC", "-x", "c++", "-"]
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    sources = [(HERE / "cpu_shim.h").read_bytes(), SOURCE.read_bytes(), text.encode()]
    made_of = hashlib.sha256(b"\0".join([*sources, " ".join(command).encode(), version])).hexdigest()

    def compile_to(file):
        subprocess.run([*command, "-o", file], input=text.encode(), check=True, timeout=100)

    cache = getattr(request.config, "cache", None)  # not with -p no:cacheprovider
    folder = cache.mkdir("kernels") if cache is not None else tmp_path_factory.mktemp("kernels")
    return ctypes.CDLL(str(made_once(folder / f"{made_of[:16]}.so", compile_to)))


class Guarded:
    """An array of which the surroundings are watched; aligned to 16 bytes, or on purpose not."""

    def __init__(self, size, dtype, *, aligned=True):
        item = np.dtype(dtype).itemsize
        raw = np.full((size + 2 * GUARD) * item + 32, 0xA5, np.uint8)
        start = -raw.ctypes.data % 16 + GUARD * item + (0 if aligned else item)
        self.raw, self.start, self.num_bytes = raw, start, size * item
        self.array = raw[start : start + self.num_bytes].view(dtype)

    def check(self):
        before, after = self.raw[: self.start], self.raw[self.start + self.num_bytes :]
        assert (before == 0xA5).all()
        assert (after == 0xA5).all()


def filled(source, size, dtype, *, aligned):
    guarded = Guarded(size, "uint16" if dtype == "bfloat16" else dtype, aligned=aligned)
    if "int" in dtype:
        guarded.array[:] = source.integers(0, 100, size)  # the sum of some does not fit into 8 bits
        return guarded
    values = source.standard_normal(size).astype(np.float32)
    guarded.array[:] = to_bfloat16(values) if dtype == "bfloat16" else values
    return guarded


def to_bfloat16(values):
    """Round to the nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(array, dtype):
    """Return an array in the type in which it is added."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype == "float16" else array


def packs(size, widest, *, aligned):
    return size * np.dtype(widest).itemsize // 16 if aligned else 0


def pointers(arrays):
    return (ctypes.c_void_p * 8)(*[each.array.ctypes.data for each in arrays])


def address(array):
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize(
    ("dtype", "aligned"),
    often_of([("float32", True), ("bfloat16", False)], TYPES, [True, False]),
)
def test_reductions_have_the_bits_of_numpy(library, dtype, aligned):
    source = np.random.default_rng(0)
    wide = WIDE.get(dtype, dtype)
    for count in COUNTS:
        for size in SIZES:
            for name in ("sum", "max", "min"):
                for incoming in (False, True):
                    vectors = [filled(source, size, dtype, aligned=aligned) for _ in range(count)]
                    come = filled(source, size, wide, aligned=aligned)
                    out = Guarded(size, wide, aligned=aligned)
                    sources = [come.array] * incoming + [widened(each.array, dtype) for each in vectors]
                    wanted = np.empty(size, wide)
                    combine([wanted], sources, OPERATIONS[name])
                    call = getattr(library, f"reduce_{dtype}_{count}_{name}_{str(incoming).lower()}")
                    number = ctypes.c_longlong(packs(size, wide, aligned=aligned))
                    call(
                        pointers(vectors),
                        address(come.array),
                        address(out.array),
                        number,
                        ctypes.c_longlong(size),
                    )
                    assert out.array.tobytes() == wanted.tobytes()
                    for each in (*vectors, come, out):
                        each.check()


@pytest.mark.parametrize(
    ("dtype", "aligned"),
    often_of([("float32", True), ("bfloat16", False)], TYPES, [True, False]),
)
def test_shared_values_have_the_bits_of_numpy(library, dtype, aligned):
    source = np.random.default_rng(1)
    wide = WIDE.get(dtype, dtype)
    for count in COUNTS:
        for size in SIZES:
            value = filled(source, size, wide, aligned=aligned)
            kind = "uint16" if dtype == "bfloat16" else dtype
            vectors = [Guarded(size, kind, aligned=aligned) for _ in range(count)]
            wanted = to_bfloat16(value.array) if dtype == "bfloat16" else value.array.astype(dtype)
            number = ctypes.c_longlong(packs(size, wide, aligned=aligned))
            getattr(library, f"share_{dtype}_{count}")(
                pointers(vectors), address(value.array), None, number, ctypes.c_longlong(size)
            )
            for each in (value, *vectors):
                each.check()
            assert all(each.array.tobytes() == wanted.tobytes() for each in vectors)


@pytest.mark.parametrize("aligned", [True, False])
def test_buffers_may_be_of_the_vectors_own_type(library, aligned):
    """A sum is formed in float32 and rounded once; what is shared keeps its bits."""
    source = np.random.default_rng(2)
    for count, size in itertools.product(COUNTS, SIZES):
        vectors = [filled(source, size, "float16", aligned=aligned) for _ in range(count)]
        out, wanted = Guarded(size, "float16", aligned=aligned), np.empty(size, np.float16)
        combine([wanted], [each.array for each in vectors], OPERATIONS["sum"])
        sizes = [ctypes.c_longlong(each) for each in (packs(size, "float16", aligned=aligned), size)]
        getattr(library, f"reduce_narrow_{count}")(pointers(vectors), None, address(out.array), *sizes)
        assert out.array.tobytes() == wanted.tobytes()
        getattr(library, f"share_narrow_{count}")(pointers(vectors), address(out.array), None, *sizes)
        assert all(each.array.tobytes() == wanted.tobytes() for each in vectors)
        for each in (*vectors, out):
            each.check()


@pytest.mark.thorough  # a quarter of a minute, and NVRTC compiles them in the ordinary run
def test_nvcc_compiles_all_kernels_without_spills(tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    signature = {
        "reduce": "void(" + "const {0}*, " * 8 + "const {1}*, {1}*, long long, long long)",
        "share": "void(const {1}*, " + "{0}*, " * 8 + "long long, long long)",
    }
    text = f'#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include "{SOURCE}"\n'
    for number, (_, template, kind, dtype) in enumerate(instances()):
        kernel_type = signature[kind].format(*TYPES[dtype]).replace("void(", "void (*)(", 1)
        text += f"auto use{number} = static_cast<{kernel_type}>(&{template});\n"
    (tmp_path / "kernels.cu").write_text(text)
    command = [nvcc, "-Werror", "all-warnings", "-std=c++17", "-arch=sm_90", "-Xptxas", "-v", "-cubin"]
    done = subprocess.run(
        [*command, "-o", tmp_path / "kernels.cubin", tmp_path / "kernels.cu"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spills = [line for line in done.stderr.splitlines() if "spill" in line]
    assert len(spills) == len(list(instances()))
    assert all(" 0 bytes spill stores, 0 bytes spill loads" in line for line in spills)
