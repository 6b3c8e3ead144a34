"""What makes the examples with tables parallel: three lines each, and the documents show them."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from support.doc_blocks import ALL, ROOT

FOLDER = ROOT / "examples/sparse"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*_parallel.py"))


def difference(name: str) -> list[str]:
    """Return the lines that differ between the script for one process and the other one."""
    scripts = (Path(FOLDER / f"{each}.py") for each in (name.removesuffix("_parallel"), name))
    lines = (path.read_text(encoding="utf-8").splitlines() for path in scripts)
    return [
        line
        for line in difflib.unified_diff(*lines, n=0, lineterm="")
        if line[:2] not in {"--", "++", "@@"}
    ]


def test_there_are_three_examples():
    """Or the other tests would say nothing."""
    assert SCRIPTS == ["knowledge_graph_parallel", "language_model_parallel", "recommender_parallel"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_three_lines_make_a_script_parallel(name):
    """One of them makes the store."""
    changed = difference(name)
    assert len([line for line in changed if line[0] == "+"]) <= 3
    assert '+kv = mx.kv.create("sync-mpi")' in changed


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_for_one_process_knows_no_store(name):
    """It is what one would write without this project."""
    text = (FOLDER / f"{name.removesuffix('_parallel')}.py").read_text(encoding="utf-8")
    assert "kv" not in text


def test_the_documents_show_the_difference():
    """As it is: of the recommender."""
    [shown] = [
        block.text for block in ALL if block.document == "docs/sparse.md" and block.language == "diff"
    ]
    assert [line for line in shown.splitlines() if line[0] in "+-"] == difference("recommender_parallel")
