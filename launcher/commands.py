"""What ``mpilaunch`` does besides running a job: each command is a module, loaded when it is asked for."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

COMMANDS: Mapping[str, str] = {
    "compare": "mpilaunch.seeing.compare",
    "doctor": "mpilaunch.doctor",
    "inspect": "mpilaunch.seeing.inspect_job",
    "measure-epochs": "mpilaunch.measure_epochs",
    "measure-links": "mpilaunch.measure_links",
    "plan": "mpilaunch.plan_command",
    "render": "mpilaunch.render",
    "top": "mpilaunch.seeing.top",
}
"""The module of each command, with ``run(arguments, out) -> exit code``, which raises ``KVStoreError``."""


def run_command(name: str, arguments: Sequence[str], out: TextIO) -> int:
    """Run one of ``COMMANDS``; return its exit code."""
    return for_reader(out, lambda: importlib.import_module(COMMANDS[name]).run(arguments, out))


def for_reader(out: TextIO, tell: Callable[[], int]) -> int:
    """Call what writes to ``out``, and return its exit code, or that of SIGPIPE if nobody reads on."""
    try:
        code = tell()
        out.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as ``head`` has
        with Path(os.devnull).open("wb") as nowhere:  # what the stream still holds must not fail at exit
            os.dup2(nowhere.fileno(), out.fileno())
        return 128 + signal.SIGPIPE
    return code
