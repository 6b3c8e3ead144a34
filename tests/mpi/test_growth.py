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

NOISE_OF_ROWS = 400
"""Of pushes of 4,000 bytes of rows, of which a worker that updates kept 9,300. With rows of another number
each time the allocator takes longer to settle: 23 to 61 in jobs of 1,250 steps, 5 after 14,000 updates."""


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.parametrize("mode", soak.MODES)
def test_five_thousand_pushes_leave_nothing_behind(mode, monkeypatch):
    """Workers, server and scheduler hold at the end what they held when they had settled."""
    monkeypatch.delenv("UCX_MEM_EVENTS", raising=False)
    looks = soak.measure(mode, 0.0, steps=PUSHES // KEYS, clients=1)["looks"]
    first, last = soak_summary.settled(looks)[0], looks[-1]
    assert len(first["memory"]) == (2 if mode == soak.WITHOUT_SERVERS else 4)
    workers = [memory for name, memory in last["memory"].items() if name.startswith("worker")]
    assert min(workers) > 50e6  # of ranks, and not of their guards, which have a tenth of it
    growth = {name: soak_summary.growth(looks, name) / KEYS for name in first["memory"]}
    noise = NOISE if mode in {"sync", "async", "elastic"} else NOISE_OF_ROWS
    assert all(each < noise for each in growth.values()), growth
    assert first["descriptors"] == last["descriptors"]
