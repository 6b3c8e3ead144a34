"""The planted changes of ``tests/mutants`` can be planted in the tree as it is."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from mutants.table import AREAS, all_mutants

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = all_mutants()


@cache
def names(path):
    """Return the names of all functions and classes of a file."""
    return set(re.findall(r"^ *(?:def|class) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def program(text):
    """Compile a file.

    Not by ``ast.parse``, of which Python 3.11 has one depth for all threads: it fails if a thread that
    another test has left shows a traceback just then.
    """
    return compile(text, "a mutant", "exec", dont_inherit=True)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_can_be_planted_and_its_tests_are_there(name):
    """Its line stands in its file once, another program comes out, and somebody is named who may notice."""
    mutant = MUTANTS[name]
    source = (ROOT / mutant.path).read_text(encoding="utf-8")
    assert "\n" not in mutant.line + mutant.instead
    assert program(mutant.planted(source)) != program(source)
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
