"""Plain nouns and verbs: phrases that leave open who or how many is meant do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("kvstore_mpi", "launcher", "tests", "benchmarks", "examples")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]

INSTEAD = {
    "so many": "the number itself: '``count`` workers'",
    "in place of": "instead of",
    "who is away": "a noun: 'the servers that are down'",
    "those who": "a noun: 'the workers that wait'",
    "meeting point": "rendezvous",
    "meeting points": "rendezvous",
}


def texts():
    """Return the files that people read, but for this one, which has to name the phrases."""
    code = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted({*PAGES, *(ROOT / "docs").rglob("*.md"), *code} - {Path(__file__)})


def uses(phrase, text):
    """Return the numbers of the lines on which a phrase begins, also one that a line's end divides."""
    pattern = r"\b" + r"[\s#]+".join(map(re.escape, phrase.split())) + r"\b"
    return [text.count("\n", 0, found.start()) + 1 for found in re.finditer(pattern, text, re.IGNORECASE)]


def test_a_phrase_is_found_over_the_end_of_a_line():
    """In a comment as well; not as a part of other words."""
    assert uses("so many", "a\n# So\n    # many, also many; so manyfold") == [2]


@pytest.mark.parametrize("phrase", INSTEAD)
def test_phrases_that_have_a_plainer_word_are_not_used(phrase):
    """The message says where each stands, and what to write."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in texts()
        for line in uses(phrase, path.read_text(encoding="utf-8"))
    ]
    assert found == [], f"'{phrase}' -> {INSTEAD[phrase]}"
