"""Starts jobs whose workers have several ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "mpi"

CLIENTS = ("--clients", "2", "--servers", "1")


def launch(
    folder: Path, script: str | Path, *arguments: str, options: tuple[str, ...] = (), steps_wait: int = 120
) -> tuple[int, str]:
    """Run a job to its end; return its exit code and all that it has said."""
    words = ["--model-parallel", "2", *options, "--log-dir", str(folder), str(SCRIPTS / script), *arguments]
    return launch_words(*words, steps_wait=steps_wait)


def launch_words(*words: str, steps_wait: int = 120) -> tuple[int, str]:
    """Run mpilaunch with these arguments; return its exit code and all that it has said."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("mpilaunch")), *words],
        env={**os.environ, "KVMPI_STEP_TIMEOUT": str(steps_wait), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
