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
        cost = {"seconds": 20.0, "scheduler_s": seconds, "bytes": 4_000_000, "messages_a_second": 800.0}
        return {"workers": 1_000, "phases": dict.fromkeys(("join", "heartbeats"), cost)}

    head, _, join, heartbeats = crowd.table([run(9.0), run(10.0), run(30.0)]).splitlines()
    assert head.split()[0] == "workers"
    assert {"10.000", "10000", "0.50", "4.0", "met"} <= set(join.split())
    assert {"10.000", "500", "800", "625", "0.50", "met"} <= set(heartbeats.split())
    assert "MISSED" in crowd.table([run(21.0)]).splitlines()[2]
    assert "MISSED" in crowd.table([run(21.0)]).splitlines()[3]


def test_processes_are_compared_with_a_crowd_of_as_many():
    """In jobs of the same turn."""

    def run(repeat, seconds, processes):
        phases = {"join": {"seconds": 1.0, "scheduler_s": seconds, "bytes": 0}}
        return {"repeat": repeat, "workers": 8, "processes": processes, "phases": phases}

    runs = [run(1, 4.0, False), run(0, 1.0, False), run(0, 1.5, True), run(1, 4.0, True)]
    said = crowd.table(runs).splitlines()
    assert [line.split()[:3] for line in said[2:4]] == [["8", "join", "1.00"], ["8", "processes", "join"]]
    assert said[4] == "join, 8 processes over a crowd of as many: 1.25 (1.00 - 1.50)"


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.thorough
def test_processes_go_through_a_job(monkeypatch):
    """The scheduler ends well, and each phase has cost it something."""
    monkeypatch.setattr(crowd, "LIVE_S", 3.5)
    run = crowd.measure_processes(2, 0.1)
    assert 20 < run["phases"]["heartbeats"]["messages_a_second"] < 80
    assert list(run["phases"]) == ["join", "barrier", "heartbeats"]
    assert all(phase["scheduler_s"] > 0 for phase in run["phases"].values())


@pytest.mark.slow
def test_a_crowd_goes_through_a_job(monkeypatch):
    """The scheduler ends well, and each phase has cost it something."""
    monkeypatch.setattr(crowd, "LIVE_S", 0.5)
    run = crowd.measure(20, crowd.HEARTBEAT_S)
    assert list(run["phases"]) == ["join", "barrier", "heartbeats", "leave"]
    assert all(phase["scheduler_s"] > 0 for phase in run["phases"].values())
