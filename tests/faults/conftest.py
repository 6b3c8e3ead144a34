"""Starts whole jobs of small scripts that do one thing wrong, or to which something is done."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

import pytest
from support.places import Here
from support.whole_jobs import DEADLINE_S, PATIENT, Job, SpreadJob, command


@pytest.fixture
def run(tmp_path):
    """Run jobs to their end; return exit code, seconds and all that was said."""

    def run_job(fault, layout, **environment):
        start = time.monotonic()
        done = subprocess.run(
            command(tmp_path, fault, layout),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            env={**os.environ, **PATIENT, **environment},
        )
        return done.returncode, time.monotonic() - start, done.stdout + done.stderr

    return run_job


@pytest.fixture
def start_here(tmp_path):
    """Start jobs on this machine."""
    with _jobs(Here(), tmp_path) as start_job:
        yield start_job


@pytest.fixture
def start(place, tmp_path):
    """Start jobs on this machine; and once more with the processes on other hosts."""
    with _jobs(place, tmp_path) as start_job:
        yield start_job


@contextlib.contextmanager
def _jobs(place, folder):
    """Yield what starts jobs; one that a failed test leaves is killed, and its guard ends the rest."""
    jobs = []

    def start_job(fault, layout, *, environment=None, options=(), **how):
        options = (*place.options(layout), *options)
        argv = place.command(command(folder, fault, layout, options=options, **how))
        spread = place.hosts and SpreadJob(place.hosts, layout[1], argv, environment)
        jobs.append(spread or Job(argv, environment))
        return jobs[-1]

    yield start_job
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait(DEADLINE_S)
