"""What the benchmark of two devices makes of its runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import crossover  # noqa: E402


def run_of(layout, epochs, *, steps, step_s):
    """Return what one job has measured."""
    found = {"epochs": epochs, "steps": steps, "batch_of_update": 128, "step_s": step_s}
    return {"layout": layout, "batch": 64, "seed": 0, **found}


RUNS = [
    run_of("2 workers of 1", 8.0, steps=10, step_s=0.5),
    run_of("2 workers of 1", 10.0, steps=10, step_s=0.1),
    run_of("2 workers of 1", None, steps=10, step_s=0.1),
    run_of("1 worker of 2", 4.0, steps=20, step_s=0.2),
]


def test_costs_are_steps_of_all_epochs_and_their_seconds():
    """Medians over the seeds; a run that has not reached the target took longer than all others."""
    two, one = (line.split() for line in crossover.table(RUNS).splitlines()[-2:])
    assert two[6:] == ["8.00", "10.00", "inf", "10.00", "10", "500.0", "100.0", "100.0", "10.00"]
    assert one[-4:] == ["4.00", "20", "200.0", "16.00"]


def test_it_is_said_from_which_step_on_one_worker_costs_less():
    """100 steps of two workers against 80 of one."""
    [said] = crossover.verdicts(RUNS)
    assert "100 steps of two workers, 80 of one" in said
    assert "less than 1.25 of theirs" in said
    assert crossover.verdicts(RUNS[:3]) == []
    [said] = crossover.verdicts([RUNS[2], RUNS[3]])
    assert "two workers get there 0 times, one 1" in said


def test_the_documents_have_the_epochs_of_the_kept_runs():
    """Each seed, and what follows from their medians: two workers win with 32 images, one with 128."""
    runs = json.loads((BENCHMARKS / "results/crossover.json").read_text())["runs"]
    text = (BENCHMARKS.parent / "docs/planner.md").read_text(encoding="utf-8")
    products = []
    for batch in (32, 128):
        for layout in crossover.LAYOUTS:
            found = [one for one in runs if (one["batch"], one["layout"]) == (batch, layout)]
            epochs = crossover.epochs_of(found)
            products.append(found[0]["steps"] * median(epochs))
            assert f"| {', '.join(f'{each:.2f}' for each in epochs)} | {median(epochs):.2f} |" in text
            assert f"{products[-1]:.0f}" in text
    assert products[1] > 2 * products[0]
    assert products[2] > products[3]
