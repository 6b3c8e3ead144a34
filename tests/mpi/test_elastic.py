"""Loosely coupled training over real processes: the contract of trainer and callback, and the modes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.often import ONE_OF_MANY

MODES = Path(__file__).parents[2] / "examples/modes.py"
MPILAUNCH = str(Path(sys.executable).with_name("mpilaunch"))

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(300)]


def run(tmp_path, options, *command):
    """Run a job to its end; return it."""
    return subprocess.run(
        [MPILAUNCH, *options.split(), *command],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(
    "options",
    [
        "--clients 2 --servers 1",
        pytest.param("--clients 2 --workers 4 --servers 2", marks=ONE_OF_MANY),
        pytest.param(
            "--clients 2 --workers 4 --servers 2 --transport tcp --leaders all", marks=ONE_OF_MANY
        ),
        pytest.param("--clients 1 --workers 3 --servers 2", marks=ONE_OF_MANY),
    ],
)
def test_contract(tmp_path, options):
    """Every check passes on every worker, in both modes."""
    done = run(tmp_path, options, "-m", "support.elastic_training")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    workers = int(options.split("--workers")[1].split()[0]) if "--workers" in options else 2
    for mode in ("sync", "async"):
        assert done.stdout.count(f"passed: mistakes_are_refused ({mode})") == workers


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        pytest.param("dist-esgd", "--clients 3 --servers 1", marks=ONE_OF_MANY),
        pytest.param("mpi-diloco", "--clients 2 --workers 4 --servers 2", marks=ONE_OF_MANY),
        pytest.param("dist-sgd", "--clients 3 --servers 1", marks=ONE_OF_MANY),
        pytest.param("dist-asgd", "--clients 3 --servers 1", marks=ONE_OF_MANY),
        pytest.param("mpi-sgd", "--clients 2 --workers 4 --servers 2", marks=ONE_OF_MANY),
        pytest.param("mpi-asgd", "--clients 2 --workers 4 --servers 2", marks=ONE_OF_MANY),
        pytest.param("mpi-esgd", "--clients 2 --workers 4 --servers 2", marks=ONE_OF_MANY),
        pytest.param("pure-mpi", "--clients 1 --workers 4", marks=ONE_OF_MANY),
    ],
)
def test_modes(tmp_path, mode, options):
    """A short training reaches what it should."""
    done = run(tmp_path, options, str(MODES), "--mode", mode, "--epochs", "12", "--target", "0.94")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{mode}: worker 0 ends with test accuracy" in done.stdout


@pytest.mark.thorough
def test_a_mode_on_a_layout_of_another(tmp_path):
    """The script says which layout the mode needs."""
    done = run(tmp_path, "--clients 2 --workers 4 --servers 1", str(MODES), "--mode", "dist-esgd")
    assert done.returncode != 0
    assert "as many --clients as --workers" in done.stdout + done.stderr
