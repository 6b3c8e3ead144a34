"""What the benchmark of the scheduler says of its runs, and that a small crowd goes through all phases."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import crowd


def test_the_table_has_medians_and_targets():
    """Seconds of the scheduler decide about joining, cores about heartbeats."""

    def run(seconds):
        cost = {"seconds": 20.0, "scheduler_s": seconds, "bytes": 4_000_000}
        return {"workers": 1_000, "phases": dict.fromkeys(("join", "heartbeats"), cost)}

    head, _, join, heartbeats = crowd.table([run(9.0), run(10.0), run(30.0)]).splitlines()
    assert head.split()[0] == "workers"
    assert {"10.000", "10000", "0.50", "4.0", "met"} <= set(join.split())
    assert {"10.000", "500", "0.50", "met"} <= set(heartbeats.split())
    assert "MISSED" in crowd.table([run(21.0)]).splitlines()[2]
    assert "MISSED" in crowd.table([run(21.0)]).splitlines()[3]


@pytest.mark.slow
def test_a_crowd_goes_through_a_job(monkeypatch):
    """The scheduler ends well, and each phase has cost it something."""
    monkeypatch.setattr(crowd, "LIVE_S", 0.5)
    run = crowd.measure(20)
    assert list(run["phases"]) == ["join", "barrier", "heartbeats", "leave"]
    assert all(phase["scheduler_s"] > 0 for phase in run["phases"].values())
