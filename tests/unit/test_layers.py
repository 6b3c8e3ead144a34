"""Who imports whom at run time; the contracts in pyproject.toml say the same of the source."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import kvstore_mpi

PACKAGE = Path(kvstore_mpi.__file__).parent
ROOT = Path(__file__).parents[2]
MOST_SIBLINGS = 8
"""Modules of one layer, none of which may import another: a layer of many is no order."""

LIBRARIES = ("mxnet", "mpi4py", "cupy")
IMPURE = (*LIBRARIES, "os", "socket", "subprocess", "threading", "time")
PURE = [
    *("records", "errors", "config", "interfaces"),
    *(
        f"{folder}.{file.stem}"
        for folder in ("wire", "values", "p3", "esgd", "hybrid", "planner")
        for file in sorted((PACKAGE / folder).glob("*.py"))
        if file.stem not in {"__init__", "io_loop"}
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
        ("mpilaunch.cli", {*LIBRARIES, "numpy"}),
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
    assert len(used) == len(PURE) >= 50


@pytest.fixture(scope="module")
def listed():
    """Return the contracts that lint-imports checks."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text)["tool"]["importlinter"]["contracts"]


@pytest.fixture(scope="module")
def contracts(listed):
    """Return the layers of each contract that has any, by its name."""
    return {each["name"]: [layer.split(" | ") for layer in each.get("layers", [])] for each in listed}


def test_what_calls_itself_pure_is_held_to_it(listed):
    """By a contract that forbids what acts: a word in a docstring alone holds nobody."""
    acting = [each for each in listed if "threading" in each.get("forbidden_modules", ())]
    held = tuple(f"{name}." for each in acting for name in each["source_modules"])
    said = [name for name, docstring in _modules() if re.search(r"\bPure\b(?! but)", docstring)]
    assert len(said) >= 50
    assert [name for name in said if not f"{name}.".startswith(held)] == []


def _modules():
    """Yield each module of both packages, and what its docstring says."""
    for folder, package in (("kvstore_mpi", "kvstore_mpi"), ("launcher", "mpilaunch")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder).with_suffix("")
            tree = ast.parse(path.read_text(encoding="utf-8"))
            yield ".".join([package, *inside.parts]), ast.get_docstring(tree) or ""


def test_no_layer_has_many_siblings(contracts):
    """And worker, server and scheduler are siblings: none of them knows another."""
    layers = [layer for each in contracts.values() for layer in each]
    assert {len(layer) <= MOST_SIBLINGS for layer in layers} == {True}
    assert [f"kvstore_mpi.{role}" for role in ("worker", "server", "scheduler")] in layers


def test_every_module_of_the_package_has_its_layer(contracts):
    """What is in no layer may import anything, and lint-imports would not say a word."""
    listed = [name for layer in contracts["Every layer knows only the ones below it"] for name in layer]
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    names = {f"kvstore_mpi.{name}" for name in found - {"__init__", "__pycache__"}}
    assert sorted(listed) == sorted({*names, "mpilaunch"})
