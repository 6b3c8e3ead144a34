"""Plants mutants and says which of them no test has noticed; see ``scripts/mutants --help``."""

from __future__ import annotations

import argparse
import queue
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mutants.judge import HUNG, PASSED, Fate, Judged, judge, run_tests
from mutants.table import Mutant, all_mutants
from mutants.tree import ROOT, Tree

if TYPE_CHECKING:
    from collections.abc import Iterator


ALL_TESTS_LIMIT_S = 600.0
"""The tests of all chosen mutants together end within this time where nothing is planted."""


class Trees:
    """Copies of the tree, of which each judges one mutant at a time."""

    def __init__(self, folder: Path, number: int) -> None:
        """Make ``number`` copies in a folder."""
        self._free: queue.Queue[Tree] = queue.Queue()
        for index in range(number):
            copy = folder / str(index)
            copy.mkdir()
            self._free.put(Tree(copy))

    @contextmanager
    def one(self) -> Iterator[Tree]:
        """Lend a copy."""
        tree = self._free.get()
        try:
            yield tree
        finally:
            self._free.put(tree)

    def judge(self, mutant: Mutant) -> tuple[Judged, float]:
        """Judge a mutant; return how long it took as well."""
        with self.one() as tree:
            begun = time.monotonic()
            return judge(tree, mutant), time.monotonic() - begun

    def failing(self, tests: list[str]) -> str:
        """Return what is told of tests that fail without a mutant: then their failing proves nothing."""
        with self.one() as tree:
            code, output = run_tests(tree, tests, ALL_TESTS_LIMIT_S)
        if code == HUNG:
            return f"These have not ended within {ALL_TESTS_LIMIT_S:g} s: {' '.join(tests)}"
        return "" if code == PASSED else output


def main() -> int:
    """Run the command; return its exit code."""
    arguments = _parse()
    chosen = _chosen(arguments.names, arguments.sample)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = Trees(Path(folder), arguments.parallel)
        with ThreadPoolExecutor(arguments.parallel) as pool:
            failing = _fail_anyway(trees, pool, arguments.parallel, chosen)
            if failing:
                sys.stdout.write(f"{failing}\nThese tests fail without a mutant, too.\n")
                return 1
            fates = Counter(_judged(trees, pool, chosen))
    told = ", ".join(f"{fates[fate]} {fate.value}" for fate in Fate)
    sys.stdout.write(f"{len(chosen)} mutants: {told}\n")
    return 0 if fates[Fate.KILLED] == len(chosen) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="a part of the names of the mutants; all if none is given")
    parser.add_argument("--sample", type=int, default=0, help="number of mutants, others for each commit")
    parser.add_argument("--parallel", type=int, default=2, help="number at a time (2)")
    return parser.parse_args()


def _chosen(names: list[str], sample: int) -> dict[str, Mutant]:
    """Return the mutants that are meant; a sample follows from the commit."""
    mutants = {
        name: each
        for name, each in all_mutants().items()
        if not names or any(part in name for part in names)
    }
    if not mutants:
        sys.exit(f"no mutant has any of {', '.join(names)} in its name")
    if not 0 < sample < len(mutants):
        return mutants
    head = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return {name: mutants[name] for name in random.Random(commit).sample(sorted(mutants), sample)}


def _fail_anyway(trees: Trees, pool: ThreadPoolExecutor, parts: int, chosen: dict[str, Mutant]) -> str:
    tests = sorted({test for each in chosen.values() for test in each.tests})
    return "\n".join(
        filter(None, pool.map(trees.failing, filter(None, (tests[n::parts] for n in range(parts)))))
    )


def _judged(trees: Trees, pool: ThreadPoolExecutor, chosen: dict[str, Mutant]) -> Iterator[Fate]:
    """Judge mutants, and print what becomes of each."""
    running = {pool.submit(trees.judge, mutant): name for name, mutant in chosen.items()}
    for future in as_completed(running):
        judged, seconds = future.result()
        line = f"{judged.fate.value:8} {seconds:5.1f} s  {running[future]}  [{judged.detail}]\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        yield judged.fate


if __name__ == "__main__":
    sys.exit(main())
