"""No process grows with what has been exchanged: not its memory, and not its descriptors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import soak  # noqa: E402
from harness import soak_summary  # noqa: E402

KEYS = 4
PUSHES = 5_000
NOISE = 40
"""Bytes a push. With the hooks of UCX it was 144 to 172; what the interpreter and the allocator do by
themselves is some pages in all."""


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["sync", "async", "elastic"])
def test_five_thousand_pushes_leave_nothing_behind(mode, monkeypatch):
    """Workers, server and scheduler hold at the end what they held when they had settled."""
    monkeypatch.delenv("UCX_MEM_EVENTS", raising=False)
    looks = soak.measure(mode, 0.0, steps=PUSHES // KEYS, clients=1)["looks"]
    first, last = soak_summary.settled(looks)[0], looks[-1]
    assert len(first["memory"]) == 4
    growth = {name: soak_summary.growth(looks, name) / KEYS for name in first["memory"]}
    assert all(each < NOISE for each in growth.values()), growth
    assert first["descriptors"] == last["descriptors"]
