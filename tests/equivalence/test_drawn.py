"""Jobs drawn at random, with options that few combine: each equals one process with the same batches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mxnet")

from support.drawn_jobs import LAYOUTS, job

SCRIPT = Path(__file__).with_name("train_drawn.py")
JOBS = 96
TOLERANCE = 1e-5


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.sampled(group="drawn")
@pytest.mark.parametrize("seed", range(JOBS))
def test_a_drawn_job_equals_one_process(tmp_path, seed):
    """All of its cases, and all workers have the same bits."""
    drawn = job(seed)
    clients, ranks, servers = drawn.layout
    command = [
        str(Path(sys.executable).with_name("mpilaunch")),
        *("--clients", str(clients), "--workers", str(clients * ranks), "--servers", str(servers)),
        *("--log-dir", str(tmp_path), "--env", "OMP_NUM_THREADS=1", *drawn.options, str(SCRIPT), str(seed)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{drawn}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    records = [
        json.loads(line.partition("RESULT ")[2]) for line in done.stdout.splitlines() if "RESULT " in line
    ]
    assert len(records) == clients * ranks * len(drawn.cases)
    for number, case in enumerate(drawn.cases):
        of_case = [record for record in records if record["case"] == str(number)]
        assert {record["digest"] for record in of_case} == {of_case[0]["digest"]}, (drawn, case)
        assert max(record["distance"] for record in of_case) < TOLERANCE, (drawn, case)


def test_what_is_drawn_has_everything():
    """Each layout and each option comes up, and a seed gives one job."""
    drawn = [job(seed) for seed in range(JOBS)]
    assert {each.layout for each in drawn} == {*LAYOUTS}
    options = {option for each in drawn for option in each.options if option.startswith("--")}
    assert len(options) == 12
    assert job(5) == job(5) != job(6)
