"""What the benchmark of the examples with tables makes of what they print."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import sparse_examples  # noqa: E402
from harness.jobs import JobError  # noqa: E402

PATTERN, _ = sparse_examples.EXAMPLES["recommender"]


def test_all_processes_print_the_same():
    """Or there is no one figure."""
    line = "client0.0| HR@10 0.5, AUC 0.75\n"
    assert sparse_examples.figures(2 * line, PATTERN) == [0.5, 0.75]
    for text in (line + line.replace("0.75", "0.76"), "epoch 1: loss 0.5"):
        with pytest.raises(JobError, match="different lines"):
            sparse_examples.figures(text, PATTERN)


def test_figures_are_compared_with_those_of_one_process():
    """Two of them, of which the one that is farther off counts."""
    figures = {"alone": [0.5, 0.75], "2": [0.5004, 0.75], "4": [0.5, 0.7512]}
    runs = [{"example": "recommender", "layout": key, "figures": found} for key, found in figures.items()]
    lines = [line.split() for line in sparse_examples.table(runs).splitlines()[-3:]]
    assert [line[-2:] for line in lines] == [["the", "same"], ["the", "same"], ["by", "0.2%"]]
    assert lines[2][4:6] == ["1.0000,", "1.0016"]


def test_the_documents_have_the_figures_of_the_kept_runs():
    """In the order of the columns: alone, and with 1, 2 and 4 workers."""
    runs = json.loads((BENCHMARKS / "results/sparse-examples.json").read_text())["runs"]
    text = (BENCHMARKS.parent / "docs/sparse.md").read_text(encoding="utf-8")
    for example in sparse_examples.EXAMPLES:
        found = [one["figures"] for one in runs if one["example"] == example]
        digits = 2 if example.startswith("language_model") else 4
        cells = (", ".join(f"{each:.{digits}f}" for each in figures) for figures in found)
        assert f" | {' | '.join(cells)} |" in text
