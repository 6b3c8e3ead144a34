"""Which Python the scripts make their environment with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = Path("/usr/bin/python3.11")


def found(path: str) -> str:
    """Return the Python that ``find_python`` names with this ``PATH``."""
    command = ("bash", "-c", "source scripts/common.sh && find_python")
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def can_make_environments(python: Path) -> bool:
    """Tell whether this Python is there with what ``venv`` needs."""
    if not python.exists():
        return False
    done = subprocess.run((python, "-c", "import venv, ensurepip"), capture_output=True, check=False)
    return done.returncode == 0


def test_the_distributions_python_comes_before_another_of_its_version(tmp_path: Path) -> None:
    """Another one lies first in the path, as pyenv's does."""
    if not can_make_environments(DISTRIBUTIONS):
        pytest.skip(f"{DISTRIBUTIONS} is not there, or makes no environments")
    (tmp_path / "python3.11").symlink_to(DISTRIBUTIONS)
    assert found(f"{tmp_path}:{os.environ['PATH']}") == str(DISTRIBUTIONS)
