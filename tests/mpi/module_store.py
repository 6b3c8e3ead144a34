"""Runs a script whose modules get the store that the first argument names, whichever it gives them.

For scripts that name a store of one process in their text.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import mxnet as mx

name, path, *arguments = sys.argv[1:]
init_optimizer = mx.mod.Module.init_optimizer


def with_store(self: mx.mod.Module, kvstore: object, **options: object) -> None:
    """Initialise the optimizer of a module with that store."""
    del kvstore
    init_optimizer(self, kvstore=mx.kv.create(name), **options)


mx.mod.Module.init_optimizer = with_store
sys.argv = [path, *arguments]
sys.path[0] = str(Path(path).parent)
runpy.run_path(path, run_name="__main__")
