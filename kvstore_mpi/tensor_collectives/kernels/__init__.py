"""CUDA kernels, as source: CuPy compiles them where they run."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).with_name("tensor.cuh")
