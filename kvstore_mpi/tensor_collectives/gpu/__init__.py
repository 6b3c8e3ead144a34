"""The vectors of a tensor on GPUs: CUDA kernels, and what launches them with CuPy."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).with_name("tensor.cuh")
"""The kernels, which CuPy compiles where they run."""
