"""Runs one job with a table in some number of pieces. It must not know how figures are compared."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from .jobs import Program, run

WORKER = Path(__file__).resolve().parent.parent / "partitions_worker.py"

STEPS, LAST = 1250, 100
"""Also where nothing is searched, so that memory and caches are as warm: a search has 61 steps for each of
at most nine numbers, and for the first again after each other, and keeps one from then on."""

DEADLINE_S = 200.0


def run_job(pieces: int | str, rows: int, touched: int) -> dict[str, Any]:
    """Run a job; return the median of its last steps, and into how many pieces its table is cut then.

    Args:
        pieces: Into how many it is to be cut, or ``auto``.
        rows: Of the table.
        touched: By a worker in a step.

    Raises:
        JobError: It failed.
    """
    plan = {"pieces": pieces, "rows": rows, "touched": touched, "steps": STEPS, "last": LAST}
    with tempfile.TemporaryDirectory(prefix="partitions-") as name:
        (Path(name) / "plan.json").write_text(json.dumps(plan))
        launch = (str(Path(sys.executable).with_name("mpilaunch")), "--clients", "2", "--workers", "2")
        command = (*launch, "--servers", "2", "--env", "OMP_NUM_THREADS=1", str(WORKER), "--results", name)
        run([Program("mpilaunch", command)], Path(name), DEADLINE_S)
        measured: dict[str, Any] = json.loads((Path(name) / "worker0.json").read_text())
        return measured
