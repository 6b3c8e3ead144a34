"""Who imports whom at run time; the contracts in pyproject.toml say the same of the source."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvstore_mpi

PACKAGE = Path(kvstore_mpi.__file__).parent
LIBRARIES = ("mxnet", "mpi4py", "cupy")
IMPURE = (*LIBRARIES, "os", "socket", "subprocess", "threading", "time")
PURE = [
    *("records", "errors", "config", "interfaces"),
    *(
        f"{folder}.{file.stem}"
        for folder in ("protocol", "p3", "esgd", "hybrid")
        for file in sorted((PACKAGE / folder).glob("*.py"))
        if file.stem != "__init__"
    ),
]

SHOW_LOADED = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(list(sys.modules)))
"""

SHOW_USED = """
import importlib, json, sys
used = {}
for name in sys.argv[1:]:
    values = vars(importlib.import_module(name)).values()
    used[name] = [getattr(value, "__module__", getattr(value, "__name__", None)) for value in values]
print(json.dumps(used))
"""


def run_python(program: str, *names: str):
    """Run a program in a fresh interpreter and return what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, *names], capture_output=True, text=True, timeout=280, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("kvstore_mpi", set(LIBRARIES)),
        ("kvstore_mpi.server_optimizers", set(LIBRARIES)),
        ("kvstore_mpi.node", {"mxnet", "mpi4py", "cupy"}),
        ("mpilaunch.cli", set(LIBRARIES)),
    ],
)
def test_importing_a_module_loads_no_library_that_it_may_not_need(name, forbidden):
    """A process pays for, and depends on, only what it uses; importing mpi4py would even start MPI."""
    loaded = {module.partition(".")[0] for module in run_python(SHOW_LOADED, name)}
    assert loaded & forbidden == set()


def test_pure_files_use_nothing_that_acts():
    """No file that decides holds a library, a thread, a socket, a clock or the environment."""
    used = run_python(SHOW_USED, *(f"kvstore_mpi.{name}" for name in PURE))
    impure = {
        name: found
        for name, modules in used.items()
        if (found := {str(module).partition(".")[0] for module in modules} & set(IMPURE))
    }
    assert impure == {}
    assert len(used) == len(PURE) >= 8
