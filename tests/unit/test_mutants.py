"""The planted changes of ``tests/mutants`` can be planted in the tree as it is."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from mutants.table import AREAS, all_mutants

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = all_mutants()


@cache
def names(path):
    """Return the names of all functions and classes of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_can_be_planted_and_its_tests_are_there(name):
    """Its line stands in its file once, another program comes out, and somebody is named who may notice."""
    mutant = MUTANTS[name]
    source = (ROOT / mutant.path).read_text(encoding="utf-8")
    assert "\n" not in mutant.line + mutant.instead
    assert ast.dump(ast.parse(mutant.planted(source))) != ast.dump(ast.parse(source))
    assert mutant.tests
    for each in mutant.tests:
        path, _, test = each.partition("::")
        assert not test or test.rpartition("::")[2] in names(ROOT / "tests" / path)
        assert (ROOT / "tests" / path).is_file()


def test_there_are_mutants_of_all_parts():
    """Two or three of a part would be no sample of it, and one name stands for one mutant."""
    named = [name.partition(":")[0] for name in MUTANTS]
    assert len(MUTANTS) >= 60
    assert all(named.count(area) >= 5 for area in AREAS)
