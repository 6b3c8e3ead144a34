"""Descriptions of optimizers are read by several threads of a process."""

from __future__ import annotations

import subprocess
import sys

READ = """
import typing
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
spec = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5)).to_dict()
typing._eval_type = None  # what msgspec looks up fields with
OptimizerSpec.from_dict(spec)
"""


def test_nothing_is_looked_up_when_the_first_description_is_read():
    """Two threads that did so at the same time ended the process with a segmentation fault (msgspec)."""
    subprocess.run([sys.executable, "-c", READ], check=True, timeout=100)
