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
def text_of(path):
    """Return what is in a file."""
    return path.read_text(encoding="utf-8")


@cache
def names(path):
    """Return the names of all functions and classes of a file."""
    return set(re.findall(r"^ *(?:def|class) (\w+)", text_of(path), re.MULTILINE))


def program(text):
    """Compile a file.

    Not by ``ast.parse``, of which Python 3.11 has one depth for all threads: it fails if a thread that
    another test has left shows a traceback just then.
    """
    return compile(text, "a mutant", "exec", dont_inherit=True)


@pytest.mark.parametrize("path", sorted({mutant.path for mutant in MUTANTS.values()}))
def test_mutants_of_a_file_can_be_planted_and_their_tests_are_there(path):
    """A line stands in its file once, another program comes out, and somebody is named who may notice."""
    source = (ROOT / path).read_text(encoding="utf-8")
    original = program(source)
    for name, mutant in MUTANTS.items():
        if mutant.path == path:
            assert "\n" not in mutant.line + mutant.instead, name
            assert program(mutant.planted(source)) != original, name
            assert mutant.tests, name
            assert [each for each in mutant.tests if not is_there(each)] == [], name
            assert not all(is_thorough(each) for each in mutant.tests), f"{name}: not noticed in every run"


def is_there(test):
    """Return whether there is a test file, or a test of a file."""
    path, _, name = test.partition("::")
    file = ROOT / "tests" / path
    return file.is_file() and (not name or name.rpartition("::")[2] in names(file))


def is_thorough(test):
    """Return whether every run leaves out a test, or all of a file, by a mark of its own."""
    path, _, name = test.partition("::")
    text = text_of(ROOT / "tests" / path)
    of_file = re.search(r"^pytestmark = .*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    if of_file is not None and "mark.thorough" in of_file[0]:
        return True
    one = name.rpartition("::")[2] or r"test_\w+"
    decorated = re.findall(rf"((?:^[ @)\]].*\n)*)^ *def {one}\b", text, re.MULTILINE)
    return bool(decorated) and all(
        re.search(r"^ *@pytest\.mark\.thorough\b", each, re.MULTILINE) for each in decorated
    )


def test_there_are_mutants_of_all_parts():
    """Two or three of a part would be no sample of it, and one name stands for one mutant."""
    named = [name.partition(":")[0] for name in MUTANTS]
    assert len(MUTANTS) >= 60
    assert all(named.count(area) >= 5 for area in AREAS)
