"""Runs the tests of a mutant and says what has become of it."""

from __future__ import annotations

import contextlib
import enum
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mutants.table import Mutant
    from mutants.tree import Tree

LIMIT_S = 180.0
"""A mutant that makes its tests hang for so long is noticed, too."""

PASSED, FAILED = 0, 1
"""pytest's exit codes when tests have run; higher ones say that none have, which proves nothing, and
negative ones that a signal has ended it, as a mutant of code that calls C may do."""

HUNG = -1000


class Fate(enum.Enum):
    """What has become of a mutant: ``BROKEN`` is one that does not let any test run."""

    KILLED = "killed"
    SURVIVED = "survived"
    STALE = "stale"
    BROKEN = "broken"


class Judged(NamedTuple):
    """A mutant's fate, and for people the test that has noticed it, or what is wrong with the mutant."""

    fate: Fate
    detail: str


def judge(tree: Tree, mutant: Mutant) -> Judged:
    """Plant a mutant in a copy of the tree and run its tests."""
    try:
        with tree.planted(mutant):
            code, output = run_tests(tree, mutant.tests)
    except LookupError as error:
        return Judged(Fate.STALE, str(error))
    if code == HUNG:
        return Judged(Fate.KILLED, "its tests hang")
    if code == PASSED:
        return Judged(Fate.SURVIVED, "its tests pass: " + " ".join(mutant.tests))
    found = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", output, re.MULTILINE)
    if code == FAILED or code < 0:
        return Judged(Fate.KILLED, found[1] if found else "a test has ended the process")
    return Judged(Fate.BROKEN, output[-2000:])


def run_tests(tree: Tree, tests: Sequence[str], limit: float = LIMIT_S) -> tuple[int, str]:
    """Run tests in a copy of the tree until one fails; return pytest's exit code, or ``HUNG``, and text."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=line", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, *(f"tests/{each}" for each in tests)],
        cwd=tree.folder,
        env=tree.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # what a test has started and left behind can then be ended with it
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return HUNG, ""
    else:
        return process.returncode, output
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
