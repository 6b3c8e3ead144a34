"""What all tests share: the environment of the processes that they start."""

from __future__ import annotations

import os
from pathlib import Path

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
