"""Files that one can read: none is longer than 400 lines, no function than 60."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES = 400
FUNCTION_LINES = 60
FOLDERS = ("kvstore_mpi", "launcher", "tests", "benchmarks", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def test_files_are_found():
    """In every folder, or the other tests would say nothing."""
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_are_short(folder):
    """What is longer has more than one responsibility."""
    lines = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py")
    }
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > FILE_LINES} == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_functions_are_short(folder):
    """Docstrings and comments counted."""
    long = []
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = node.end_lineno - node.lineno + 1
                if count > FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {count}")
    assert long == []
