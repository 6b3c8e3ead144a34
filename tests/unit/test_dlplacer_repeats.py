"""The same question has the same answer, also in processes that hash names differently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.placement_questions import QUESTIONS, answers

TESTS = Path(__file__).parents[1]


def start(method, seed):
    """Start a process that prints its answers, and hashes names as this seed has it."""
    return subprocess.Popen(
        [sys.executable, "-m", "support.placement_questions", method],
        cwd=TESTS,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("method", ["search", pytest.param("cp", marks=pytest.mark.thorough)])
def test_the_same_question_has_the_same_answer(method):
    """To the byte, here and in two other processes: pieces, short memory, wishes, contention, halves."""
    if method == "cp":
        pytest.importorskip("ortools", reason="the extra planner installs it")
    with start(method, 1) as one, start(method, 2) as other:
        here = "\n".join(answers(method))
        assert here.count('"predicted_seconds"') == len(QUESTIONS) + (method == "cp")
        assert [each.communicate(timeout=300)[0] for each in (one, other)] == [here, here]
        assert (one.returncode, other.returncode) == (0, 0)
