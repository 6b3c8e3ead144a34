"""CuPy, that of a GPU or the one that stands in for it on the CPU."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

OURS = "kvstore_mpi.tensor_collectives.gpu.device_memory"
"""What imports CuPy, and is imported anew for each of the two."""


@pytest.fixture
def stand_in(monkeypatch):
    """A CuPy that works on the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile the kernels for the CPU")
    path = Path(__file__).with_name("fake_cupy.py")
    spec = importlib.util.spec_from_file_location("fake_cupy", path)
    fake = sys.modules.get("fake_cupy") or importlib.util.module_from_spec(spec)
    if "fake_cupy" not in sys.modules:
        sys.modules["fake_cupy"] = fake  # kept: it remembers what g++ has compiled
        spec.loader.exec_module(fake)
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, OURS, raising=False)
    monkeypatch.delattr(OURS, raising=False)  # what "from package import module" looks at first
    yield sys.modules["cupy"]
    sys.modules.pop(OURS, None)


@pytest.fixture
def on_gpu():
    """The CuPy of a GPU."""
    module = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no GPU: {error}")
    if not count:
        pytest.skip("no GPU")
    return module
