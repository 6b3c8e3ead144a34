"""What all tests share: the environment of their processes, and how long an example may take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

TESTS = Path(__file__).parent

os.environ["PYTHONPATH"] = os.pathsep.join(
    [
        str(TESTS / "support/quick_imports"),
        str(TESTS),  # for support/
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
)
# MXNet takes distutils from the standard library; setuptools would put its own, and all of itself, there.
os.environ["SETUPTOOLS_USE_DISTUTILS"] = "stdlib"

# Several tests run at once, each of them jobs of several processes: more threads would only spin.
os.environ["OMP_NUM_THREADS"] = "1"

# Ranks that poll keep the cores from the jobs of other tests. In a test alone they wait as a user's do.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")

# How long an example takes depends on what else the machine does; a test that hangs meets pytest's timeout.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long tests where several run at once: one that begins last is waited for alone."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
