"""What the benchmark of old rows makes of its runs, and from what its workers learn."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import staleness  # noqa: E402
from harness.hidden_pairs import pairs  # noqa: E402

RUNS = [
    {"staleness": age, "seed": seed, "right": right}
    for age, seed, right in ((0, 0, 0.80), (8, 0, 0.79), (0, 1, 0.90), (8, 1, 0.86))
]


def test_what_old_rows_cost_is_told_seed_by_seed():
    """What seeds differ by among themselves does not count."""
    fresh, old = (line.split() for line in staleness.table(RUNS).splitlines()[-2:])
    assert fresh == ["0", "80.0", "90.0", "85.0", "0.00", "+-", "0.00"]
    assert old == ["8", "79.0", "86.0", "82.5", "2.50", "+-", "2.12"]
    assert staleness.table(RUNS[1:2]).split()[-1] == "79.0"


def test_the_documents_have_the_figures_of_the_kept_runs():
    """What old rows cost, and its spread."""
    runs = json.loads((BENCHMARKS / "results/staleness.json").read_text())["runs"]
    text = (BENCHMARKS.parent / "docs/large-tables.md").read_text(encoding="utf-8")
    for line in staleness.table(runs).splitlines()[-3:]:
        age, *right, mean, cost, _, spread = line.split()
        least, most = min(right), max(right)
        assert f"| {age} | {mean} % | {least} - {most} | {cost} ± {spread} |" in text


def test_workers_learn_the_same_from_other_pairs():
    """Frequent ids are drawn often; of one seed a pair goes together for all workers or for none."""
    batches = [next(pairs(3, rank, 2000)) for rank in (0, 1)]
    assert not np.array_equal(batches[0][0], batches[1][0])
    known = [{tuple(pair): is_so for *pair, is_so in zip(*batch)} for batch in batches]
    both = known[0].keys() & known[1].keys()
    assert len(both) > 20
    assert all(known[0][pair] == known[1][pair] for pair in both)
    assert np.mean(batches[0][0] < 100) > 0.4
    first, second = islice(pairs(3, 0, 5), 2)
    assert not np.array_equal(first[0], second[0])
