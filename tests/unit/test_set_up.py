"""Which Python the scripts make their environment with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = Path("/usr/bin/python3.11")


def common(call: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    """Call a function of ``scripts/common.sh``."""
    command = ("bash", "-c", f"source scripts/common.sh && {call}")
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_distributions_python_comes_before_another_of_its_version(tmp_path: Path) -> None:
    """Another one lies first in the path, as pyenv's does."""
    if common(f"is_python {DISTRIBUTIONS} 11").returncode:
        pytest.skip(f"{DISTRIBUTIONS} is not there, or makes no environments")
    (tmp_path / "python3.11").symlink_to(DISTRIBUTIONS)
    assert common("find_python", f"{tmp_path}:{os.environ['PATH']}").stdout.strip() == str(DISTRIBUTIONS)
