"""Which Python the scripts make their environment with, and what the extras install beside MXNet."""

from __future__ import annotations

import os
import runpy
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


def needs_numpy(name: str, seen: set[str]) -> bool:
    """Return whether an installed package, or one that it needs, needs NumPy."""
    if name in seen:
        return False
    seen.add(name)
    try:
        needed = [Requirement(each) for each in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:
        return False
    wanted = [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return "numpy" in wanted or any(needs_numpy(each, seen) for each in wanted)


def test_no_extra_takes_away_the_numpy_of_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an error says to install would break MXNet else; the newest pandas, say, wants NumPy 1.26."""
    setuptools = pytest.importorskip("setuptools")
    pytest.importorskip(
        "ortools", reason="what it needs is asked of ortools, which the extra planner installs"
    )
    told: dict[str, dict[str, list[str]]] = {}
    monkeypatch.setattr(setuptools, "setup", told.update)
    runpy.run_path(str(ROOT / "setup.py"))
    extras = told["extras_require"]
    [bound] = [each for each in extras["mxnet"] if each.startswith("numpy")]
    affected = {
        name
        for name, each in extras.items()
        if any(needs_numpy(Requirement(one).name, set()) for one in each)
    }
    assert affected >= {"sparse", "examples", "planner", "bench", "dev"}
    assert [name for name in affected if bound not in extras[name]] == []
