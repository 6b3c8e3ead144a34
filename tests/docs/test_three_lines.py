"""What makes the examples with tables parallel: three lines each, and the documents show them."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
from support.doc_blocks import ALL, ROOT

FOLDER = ROOT / "examples/sparse"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*_parallel.py"))

STORES = {'+kv = mx.kv.create("sync-mpi")', "+kv = kvstore_mpi.mxnet.parallel(trainer)"}


def difference(name: str) -> list[str]:
    """Return the lines, but for empty ones, that differ between a script for one process and its twin."""
    scripts = (Path(FOLDER / f"{each}.py") for each in (name.removesuffix("_parallel"), name))
    lines = (path.read_text(encoding="utf-8").splitlines() for path in scripts)
    return [
        line
        for line in difflib.unified_diff(*lines, n=0, lineterm="")
        if line[:2] not in {"--", "++", "@@"} and line[1:].strip()
    ]


def words_of(line: str) -> set[str]:
    """Return the names in a line."""
    return set(re.findall(r"\w+", line))


def test_there_are_three_examples():
    """Or the other tests would say nothing."""
    assert SCRIPTS == ["knowledge_graph_parallel", "language_model_parallel", "recommender_parallel"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_three_lines_make_a_script_parallel(name):
    """One of them makes the store, and one deals out the data."""
    changed = difference(name)
    assert len([line for line in changed if line[0] == "+"]) <= 3
    assert len([line for line in changed if line in STORES]) == 1
    assert len([line for line in changed if {"rank", "num_workers"} <= words_of(line)]) == 1


def test_one_example_has_the_calls_that_are_for_this():
    """A Trainer that is made parallel, and a shard."""
    batch = "order[begin : begin + args.batch_size]"
    assert difference("knowledge_graph_parallel") == [
        "+import kvstore_mpi.mxnet",
        "+kv = kvstore_mpi.mxnet.parallel(trainer)",
        f"-        mine = {batch}",
        f"+        mine = kvstore_mpi.shard({batch}, kv.num_workers, kv.rank)",
    ]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_for_one_process_knows_no_store(name):
    """It is what one would write without this project."""
    text = (FOLDER / f"{name.removesuffix('_parallel')}.py").read_text(encoding="utf-8")
    assert "kv" not in text


def test_the_documents_show_the_differences():
    """As they are: of the recommender, and of the graph."""
    shown = [block.text for block in ALL if block.document == "docs/sparse.md" and block.language == "diff"]
    assert [[line for line in each.splitlines() if line[0] in "+-"] for each in shown] == [
        difference("recommender_parallel"),
        difference("knowledge_graph_parallel"),
    ]
