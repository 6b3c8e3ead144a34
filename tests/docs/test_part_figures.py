"""The tables of docs/model-parallel.md are what the benchmark has measured."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/model-parallel.md").read_text(encoding="utf-8")
RUNS = json.loads((ROOT / "benchmarks/results/hybrid-step.json").read_text(encoding="utf-8"))["runs"]
NETS = {
    "inception": "blocks of two branches",
    "towers": "two towers",
    "pipeline": "pipeline",
}


@pytest.mark.parametrize(
    ("net", "number", "part"),
    [(net, *each) for net in NETS for each in enumerate(next(r for r in RUNS if r["net"] == net)["parts"])],
)
def test_errors_by_segments(net, number, part):
    """Each line of the table: alone, in steps, and how far apart they are."""
    cells = []
    for way in ("forward_s", "backward_s"):
        alone, within = (
            median(run[name][number] for run in RUNS if run["net"] == net) for name in (way, f"run_{way}")
        )
        error = f"{100 * (alone - within) / within:+.0f} %".replace("+0 ", "0 ").replace("-0 ", "0 ")
        cells += [f"{1e3 * alone:.2f}", f"{1e3 * within:.2f}", error]
    assert f"| {NETS[net]} | {part} | {' | '.join(cells)} |" in PAGE
