"""The table of a long job tells what grows from what jumps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from harness import soak_summary


def looks(memory, seconds=lambda step: step / 100):
    return [
        {
            "step": step,
            "seconds": seconds(step),
            "memory": {"worker0.0": memory(step)},
            "descriptors": {"worker0.0": 5},
        }
        for step in range(0, 4_000, 10)
    ]


def test_a_leak_is_its_bytes_a_step():
    """Noise of a page does not hide it."""
    assert soak_summary.growth(looks(lambda step: 10**8 + 144 * step + step % 4_096), "worker0.0") == (
        pytest.approx(144, abs=2)
    )


def test_a_jump_is_no_leak():
    """A pool that grew once, before or after things have settled, is not growth."""
    for when in (100, 3_000):
        memory = looks(lambda step, when=when: 10**8 + (4_000_000 if step > when else 0))
        assert abs(soak_summary.growth(memory, "worker0.0")) < 1


def test_the_table_shows_how_long_a_step_takes_at_both_ends():
    """A job that becomes slower is seen."""
    text = soak_summary.table([{"mode": "sync", "looks": looks(lambda _: 10**8, lambda s: s**2 / 10**6)}])
    mode, process, steps, *_, begin, _, end = text.splitlines()[-1].split()
    assert (mode, process, steps) == ("sync", "worker0.0", "3,990")
    assert float(begin) < float(end)
