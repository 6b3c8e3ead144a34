"""The kernels as CuPy gives them to NVRTC, which comes as a wheel: no GPU, driver or toolkit is needed."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import itertools
import locale
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.often import ONE_OF_MANY

from kvstore_mpi.tensor_collectives.tensor import accumulator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="setup.py asks for NVRTC on Linux alone")

OF_CUPY = ("--device-as-default-execution-space", "-ftz=true")
"""What CuPy 13 adds to the options of a module, beside the card's architecture and where headers are."""


def wheel(name):
    """Return the folder of one of NVIDIA's wheels."""
    [folder] = importlib.util.find_spec(f"nvidia.{name}").submodule_search_locations
    return Path(folder)


EVERY = tuple(range(1, 9))


@pytest.fixture
def modules(stand_in, monkeypatch, counts):
    """What production asks CuPy to compile for some numbers of vectors: the arguments of ``RawModule``."""
    asked = []

    def note(**arguments):
        asked.append(SimpleNamespace(**arguments))
        return SimpleNamespace(get_function=lambda _name: None)

    monkeypatch.setattr(stand_in, "RawModule", note)
    gpu = importlib.import_module("kvstore_mpi.tensor_collectives.gpu.device_memory")
    assert max(EVERY) == gpu.MOST_VECTORS
    for dtype, count in itertools.product(gpu._TYPES, counts):
        wide = accumulator(np.dtype(dtype) if dtype != "bfloat16" else np.dtype(np.float16)).name
        gpu._share_kernel(0, dtype, wide, count)
        for operation, has_incoming in itertools.product(gpu._OPERATIONS, (False, True)):
            gpu._reduce_kernel(0, dtype, wide, count, operation, has_incoming=has_incoming)
        if dtype != wide:  # in a store buffers are of the keys' type
            gpu._share_kernel(0, dtype, dtype, count)
            gpu._reduce_kernel(0, dtype, dtype, count, "sum", has_incoming=False)
    return asked


class Program:
    """A source and the instances of its templates that are wanted."""

    def __init__(self, code, names):
        [path] = (wheel("cuda_nvrtc") / "lib").glob("libnvrtc.so.*")
        self._nvrtc = ctypes.CDLL(str(path))
        self._program = ctypes.c_void_p()
        create = (ctypes.byref(self._program), code.encode(), b"tensor.cu", 0, None, None)
        assert self._nvrtc.nvrtcCreateProgram(*create) == 0
        for name in names:
            assert self._nvrtc.nvrtcAddNameExpression(self._program, name.encode()) == 0

    def compile(self, options):
        """Compile; what the compiler has to say fails the test."""
        options = (*options, f"-I{wheel('cuda_runtime') / 'include'}")
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        encoding = locale.nl_langinfo(locale.CODESET)
        # NVRTC leaves its caller's thread with the locale C, in which files are ASCII.
        with ThreadPoolExecutor() as other:
            compiled = other.submit(self._nvrtc.nvrtcCompileProgram, self._program, len(options), encoded)
        said = self.result("ProgramLog").rstrip(b"\0").decode()
        assert compiled.result() == 0, said
        assert locale.nl_langinfo(locale.CODESET) == encoding
        assert not said

    def result(self, kind):
        """Return the log, or the code for a card."""
        size = ctypes.c_size_t()
        assert getattr(self._nvrtc, f"nvrtcGet{kind}Size")(self._program, ctypes.byref(size)) == 0
        text = ctypes.create_string_buffer(size.value)
        assert getattr(self._nvrtc, f"nvrtcGet{kind}")(self._program, text) == 0
        return text.raw

    def lowered(self, name):
        """Return the symbol of an instance."""
        symbol = ctypes.c_char_p()
        found = self._nvrtc.nvrtcGetLoweredName(self._program, name.encode(), ctypes.byref(symbol))
        assert found == 0, name
        return symbol.value

    def close(self):
        self._nvrtc.nvrtcDestroyProgram(ctypes.byref(self._program))


def compiled(modules, *options):
    """Compile modules in one go: they differ in the instance alone, and the headers take longest."""
    [(code, own)] = {(module.code, module.options) for module in modules}
    names = sorted({name for module in modules for name in module.name_expressions})
    program = Program(code, names)
    program.compile((*own, *OF_CUPY, *options))
    return program, names


@pytest.mark.parametrize(
    ("architecture", "counts"),
    [
        ("sm_90", (1,)),
        *(pytest.param(each, EVERY, marks=ONE_OF_MANY) for each in ("sm_70", "sm_80", "sm_90")),
    ],
)
def test_nvrtc_compiles_every_kernel(modules, architecture, counts):
    """All types and operations, with the options that they are launched with."""
    program, names = compiled(modules, f"-arch={architecture}")
    machine_code = program.result("CUBIN")
    assert len(names) == len(counts) * (8 * (2 * 3 + 1) + 2 * 2)
    assert all(program.lowered(name) in machine_code for name in names)
    program.close()


@pytest.mark.thorough
@pytest.mark.parametrize("counts", [(2,)])
def test_numbers_that_are_smaller_than_normal_stay_what_they_are(modules):
    """No instruction takes them for 0, though CuPy asks for it, but the one that looks for NaN."""
    program, _ = compiled(modules, "-arch=compute_70")
    instructions = re.findall(rb"[\w.]+\.f32\b", program.result("PTX"))
    program.close()
    assert {each for each in instructions if b".ftz" in each} == {b"setp.nan.ftz.f32"}
