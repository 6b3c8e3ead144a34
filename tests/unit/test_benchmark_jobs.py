"""A measured job ends at once when one of its processes has failed, also while its start is awaited."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from harness.jobs import Job, JobError, Program  # noqa: E402

SLEEPER = Program("sleeper", ("sleep", "60"))
DEADLINE_S = 30.0


def _job_with(tmp_path: Path, *scripts: str) -> Job:
    job = Job(tmp_path)
    os.mkfifo(tmp_path / "created")
    for index, script in enumerate(scripts):
        job.start(Program(f"p{index}", ("sh", "-c", script)))
    return job


def test_a_word_ends_the_wait_while_processes_run(tmp_path: Path) -> None:
    """The writer and another one still run."""
    with _job_with(tmp_path, "echo created > created; exec sleep 60") as job:
        job.start(SLEEPER)
        job.wait_for_word(tmp_path / "created", DEADLINE_S)


def test_a_process_that_fails_first_is_named_at_once(tmp_path: Path) -> None:
    """Another one would run on for a minute."""
    begin = time.monotonic()
    with _job_with(tmp_path, "echo no such table; exit 3") as job:
        job.start(SLEEPER)
        with pytest.raises(JobError, match=r"p0 ended with code 3\n.*no such table"):
            job.wait_for_word(tmp_path / "created", DEADLINE_S)
    assert time.monotonic() - begin < DEADLINE_S / 2


def test_processes_that_end_well_without_a_word_are_an_error(tmp_path: Path) -> None:
    """Nobody is left who could write."""
    with _job_with(tmp_path, "exit 0") as job, pytest.raises(JobError, match="none wrote to created"):
        job.wait_for_word(tmp_path / "created", DEADLINE_S)


def test_no_word_in_time_is_an_error(tmp_path: Path) -> None:
    """What runs is named."""
    with _job_with(tmp_path) as job:
        job.start(SLEEPER)
        with pytest.raises(JobError, match="sleeper: no word within 0 s"):
            job.wait_for_word(tmp_path / "created", 0.1)
