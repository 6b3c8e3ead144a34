"""What the benchmarks of starts and of metrics say of their runs, and when a process began."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import metrics
import start
from harness.procfs import began_at
from harness.results import Results

CLOCK_TICK_S = 0.02
"""The kernel counts in steps of 10 ms."""


def test_when_a_process_began():
    """On the clock that the ranks of a job note their moments on."""
    before = time.monotonic()
    with subprocess.Popen(["sleep", "60"]) as child:
        after = time.monotonic()
        began = began_at(child.pid)
        child.kill()
    assert before - CLOCK_TICK_S <= began <= after + CLOCK_TICK_S


def test_the_table_of_starts_compares_jobs_of_the_same_turn():
    """By the moment at which all have met."""

    def run(repeat, variant, met):
        stages = dict.fromkeys((*start.STAGES, "end"), met - 1.0)
        return {"repeat": repeat, "variant": variant, "cpu_s": 3.0, **stages, "barrier": met}

    results = Results({"facts": {"hosts": 8, "per_host": 8}})
    for repeat, (alone, ours) in enumerate([(10.0, 15.0), (12.0, 30.0), (8.0, 12.0)]):
        results.runs += [run(repeat, start.ALONE, alone), run(repeat, start.OURS, ours)]
    said = start.table(results)
    assert "64 ranks on 8 hosts" in said
    assert "1.50 (1.50 - 2.50) times as long as mpiexec alone, at most 2: met" in said
    assert "mpilaunch" in said.splitlines()[4]
    assert said.splitlines()[4].split()[-3:] == ["15.0", "30.0", "12.0"]
    for each in results.runs:
        each["barrier"] *= 3 if each["variant"] == start.OURS else 1
    assert "MISSED" in start.table(results)


def test_the_table_of_metrics_compares_blocks_of_the_same_turn():
    """With the block that tells nothing, in time and in processor time."""

    def block(turn, kind, seconds):
        return {
            "repeat": 0,
            "turn": turn,
            "case": "4KB",
            "kind": kind,
            "seconds": seconds,
            "cpu": 2 * seconds,
        }

    runs = [
        *(block(turn, metrics.NOTHING, 1e-3 * (turn + 1)) for turn in range(3)),
        *(block(turn, metrics.TOLD, 1.005e-3 * (turn + 1)) for turn in range(3)),
        *(block(turn, metrics.SCRAPED, 1.02e-3 * (turn + 1)) for turn in range(3)),
    ]
    _, _, nothing, told, scraped = metrics.table(runs).splitlines()
    assert {"4KB", "nothing", "2.000", "1.0000"} <= set(nothing.split())
    assert {"2.010", "1.0050", "4.020", "met"} <= set(told.split())
    assert {"1.0200", "MISSED"} <= set(scraped.split())
