"""On PYTHONPATH, spares a test's processes a fifth of `import mxnet`, which no test needs.

Where scikit-learn is installed, MXNet takes a base class from it for one class that is deprecated, and
scikit-learn takes SciPy. A script that imports scikit-learn on its own account gets it.
"""

from __future__ import annotations

import sys
from typing import Any


class _WithoutScikitLearn:
    """Finds no scikit-learn for as long as MXNet is being imported."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> None:
        """See ``importlib.abc.MetaPathFinder``."""
        mxnet = getattr(sys.modules.get("mxnet"), "__spec__", None)
        if name == "sklearn" and getattr(mxnet, "_initializing", False):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, _WithoutScikitLearn)
