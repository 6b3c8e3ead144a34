"""The same question has the same answer, also in processes that hash names differently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.placement_questions import QUESTIONS, answers

TESTS = Path(__file__).parents[1]


def said_by_processes(method):
    """Return what two processes print that run at the same time, each with a seed for hashes of its own."""
    command = [sys.executable, "-m", "support.placement_questions", method]
    processes = [
        subprocess.Popen(
            command,
            cwd=TESTS,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    said = [each.communicate(timeout=300)[0] for each in processes]
    assert [each.returncode for each in processes] == [0, 0]
    return said


@pytest.mark.parametrize("method", ["search", pytest.param("cp", marks=pytest.mark.thorough)])
def test_the_same_question_has_the_same_answer(method):
    """To the byte, here and in two other processes: pieces, short memory, wishes, contention, halves."""
    if method == "cp":
        pytest.importorskip("ortools", reason="the extra planner installs it")
    here = "\n".join(answers(method))
    assert here.count('"predicted_seconds"') == len(QUESTIONS) + (method == "cp")
    assert said_by_processes(method) == [here, here]
