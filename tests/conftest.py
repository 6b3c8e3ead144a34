"""What all tests share: the environment of their processes, and how long an example may take."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from support.often import left_out

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent

GROUP_SHARE = 6
"""How many times fewer of a group of combinations are run than of a test's."""

WHOLE_SHARE = 2
"""Of a folder's thorough tests that are no combinations a sample has one in this number: with all of them
``.ci/run`` took 24 to 26 minutes on two cores, and may take 20."""

pytest_plugins = ["support.places"]

os.environ["PYTHONPATH"] = os.pathsep.join(
    [
        str(TESTS / "support/quick_imports"),
        str(TESTS),  # for support/
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
)
# MXNet takes distutils from the standard library; setuptools would put its own, and all of itself, there.
os.environ["SETUPTOOLS_USE_DISTUTILS"] = "stdlib"

importlib.import_module("support.quick_imports.sitecustomize")  # for this process, too

# Several tests run at once, each of them jobs of several processes: more threads would only spin.
os.environ["OMP_NUM_THREADS"] = "1"

# Ranks that poll keep the cores from the jobs of other tests. In a test alone they wait as a user's do.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")

# How long an example takes depends on what else the machine does; a test that hangs meets pytest's timeout.
# Each run has other examples, so that each may have half as many as usual.
settings.register_profile(
    "any machine", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of this run that all of pytest's processes have in common."""
    folder: Path = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what ``.ci/run`` asks for, which has not the time for all combinations of everything."""
    text = "of the combinations marked sampled run one in N of each test, others for each commit, and of "
    text += f"each group, which repeats what other tests run, one in {GROUP_SHARE} N; of what else is "
    text += f"thorough one in {WHOLE_SHARE} of each folder (all)"
    parser.addoption("--one-in", type=int, default=1, metavar="N", help=text)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage: what this makes stays, and no collection later looks at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.freeze = lambda: None  # what tests call in here would keep garbage of other tests, and its files


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take a sample, if it is asked for; begin with the long tests where several run at once.

    One that begins last is waited for alone.
    """
    if config.getoption("--one-in") > 1:
        _take_sample(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _take_sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    of_tests, of_groups, of_folders = defaultdict(list), defaultdict(list), defaultdict(list)
    for item in items:
        markers = list(item.iter_markers("sampled"))
        groups = [marker.kwargs["group"] for marker in markers if marker.kwargs]
        if groups:
            of_groups[groups[0]].append(item.nodeid)
        elif markers:
            of_tests[item.nodeid.partition("[")[0]].append(item.nodeid)
        elif item.get_closest_marker("thorough") is not None:
            of_folders[item.path.parent.name].append(item.nodeid)
    head = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(head, cwd=TESTS, capture_output=True, text=True, check=True).stdout.strip()
    one_in = config.getoption("--one-in")
    out = left_out(of_tests, one_in, commit) | left_out(of_groups, GROUP_SHARE * one_in, commit)
    out |= left_out(of_folders, WHOLE_SHARE, commit)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
    items[:] = [item for item in items if item.nodeid not in out]
