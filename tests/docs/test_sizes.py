"""Files that one can read: none is longer than 400 lines, no function than 60; the protocol says why."""

from __future__ import annotations

import ast
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES = 400
FUNCTION_LINES = 60
FOLDERS = ("kvstore_mpi", "launcher", "tests", "benchmarks", "examples")
PROTOCOL = ("wire", "worker", "server")
COMMENTS = (0.2, 0.3)
"""Lines with comments for each line of code."""

LAYOUT = {
    *(tokenize.ENCODING, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
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


def lines_of(path):
    """Return the numbers of the lines with comments, and of those with code, docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, node.end_lineno + 1)
    }
    comments, code = set(), set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            lines = range(token.start[0], token.end[0] + 1)
            if token.type == tokenize.COMMENT:
                comments.update(lines)
            elif token.type not in LAYOUT:
                code.update(lines)
    return comments, code - docs


@pytest.mark.parametrize("package", PROTOCOL)
def test_the_protocol_says_why(package):
    """And what would go wrong otherwise: where it is subtle, and not on every line."""
    counted = [lines_of(path) for path in sorted((ROOT / "kvstore_mpi" / package).rglob("*.py"))]
    comments, code = (sum(len(each[kind]) for each in counted) for kind in (0, 1))
    assert COMMENTS[0] <= comments / code <= COMMENTS[1], f"{comments} comments, {code} lines of code"
