"""What all benchmarks share: options, when they refuse to measure, and the one schema of their results.

A result is made from a committed tree on a quiet machine. ``--dirty`` and ``--allow-load`` overrule that;
then the JSON file, the table and the picture say so. This file must not know what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .jobs import THREADS, JobError, Meter
from .machine import Tree, describe, tree
from .table import marked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

BENCHMARKS = Path(__file__).resolve().parent.parent
IMAGES = BENCHMARKS.parent / "docs" / "images"
SCHEMA = 2
MOST_FOREIGN_CORES = 0.25
"""More than this kept busy by others makes a measurement doubtful."""

PROBE_S = 2.0
FILES_NAMED = 5


def make_parser(
    what: str, description: str, *, repeats: str, quick: str = "", plot: bool = True
) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have.

    Args:
        what: Names the files of results and the picture.
        description: For ``--help``.
        repeats: Says what ``--repeats`` is by default.
        quick: Says what ``--quick`` does; there is none if empty.
        plot: Whether it can draw.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--repeats", type=int, help=f"fresh jobs for each figure (default: {repeats})")
    if quick:
        add("--quick", action="store_true", help=quick)
    if plot:
        place = IMAGES / f"{what}.png"
        add("--plot", type=Path, nargs="?", const=place, help=f"draw a PNG (default place: {place})")
    add("--json", type=Path, help=f"where to write (default: benchmarks/results/{what}-<date>.json)")
    add("--load", type=Path, nargs="+", metavar="JSON", help="show earlier results instead of measuring")
    add("--dirty", action="store_true", help="measure a tree that is not committed; the result says so")
    add("--allow-load", action="store_true", help="measure though others use the processors; likewise")
    add("--realtime", action="store_true", help="run in the real-time class, as chrt --rr 1; likewise")
    return parser


def by_names(parser: argparse.ArgumentParser, names: str, known: Sequence[str]) -> list[str]:
    """Return the names in a comma-separated list; end with a message if one is unknown."""
    chosen = names.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    return chosen


def report(line: str) -> None:
    """Tell the user how far it is."""
    print(line, file=sys.stderr, flush=True)


@dataclass
class Results:
    """All runs of one benchmark, with where and how they were made.

    Attributes:
        head: Date, command, machine, commit, and ``facts`` of the benchmark.
        noted: What makes the figures doubtful, in words, as far as it is not seen in ``runs``.
        runs: One flat record for each job, in the order of the jobs; no job that ended well is left out.
        failures: What failed, in words.
        path: The file, written anew after every run; ``None`` for results that were loaded.
    """

    head: dict[str, Any]
    noted: list[str] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    path: Path | None = None

    @property
    def marks(self) -> list[str]:
        """What makes the figures doubtful, in words; the file and every table and picture have it."""
        busy = [
            run["foreign_cores"] for run in self.runs if run.get("foreign_cores", 0) > MOST_FOREIGN_CORES
        ]
        if not busy:
            return self.noted
        during = f"up to {max(busy):.2f} cores busy during {len(busy)} of {len(self.runs)} runs"
        return [*self.noted, f"DOUBTFUL: others kept {during}"]

    @property
    def facts(self) -> dict[str, Any]:
        """What a benchmark noted beside its runs."""
        facts: dict[str, Any] = self.head.setdefault("facts", {})
        return facts

    def add(self, run: Mapping[str, Any]) -> None:
        """Take a run and write the file."""
        self.runs.append(dict(run))
        self.write()

    def attempt(self, name: str, job: Callable[[], Mapping[str, Any]], **where: Any) -> None:
        """Run a job and take what it measured, and what others took of the machine meanwhile.

        Args:
            name: What the user is told of it.
            job: Returns the measurements; one that raises ``JobError`` is noted as failed.
            where: Said in its record, too.
        """
        meter = Meter()
        try:
            found = job()
        except JobError as error:
            self.fail(f"{name}: {error}")
            return
        self.add({**where, **found, "foreign_cores": meter.read().foreign_cores})
        report(f"{name}: {', '.join(f'{key} {each}' for key, each in found.items())}")

    def fail(self, text: str) -> None:
        """Note a run that failed, and tell the user at once."""
        self.failures.append(text)
        report(f"!! {text[:300]}")
        self.write()

    def write(self) -> None:
        """Write all that has been measured so far."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        measured = {"noted": self.noted, "marks": self.marks, "runs": self.runs, "failures": self.failures}
        self.path.write_text(json.dumps({**self.head, **measured}) + "\n")

    def show(self, *texts: str) -> None:
        """Print a table, and what is said about it, below the marks; a tree that changed is one."""
        if self.path is not None:
            now = tree()
            if (now.commit, list(now.changed)) != (self.head["commit"], self.head["changed"]):
                self.noted.append("DIRTY tree: it was changed while it was measured")
            self.write()
        print(marked("\n".join(texts), self.marks))

    def close(self) -> None:
        """Say where the file is; end with an error if a run failed."""
        if self.path is not None:
            report(f"written: {self.path}")
        if self.failures:
            sys.exit(f"{len(self.failures)} runs failed; the file of results says how")


def begin(what: str, arguments: argparse.Namespace) -> Results:
    """Make sure that measuring makes sense, and choose the file; nothing is written yet.

    A tree that differs from its commit, or a machine that others keep busy, ends the program with a
    message, unless the options say otherwise.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    here = tree()
    marks = _tree_marks(here, allowed=arguments.dirty)
    other = tree(arguments.beside.resolve()) if getattr(arguments, "beside", None) else None
    marks += _tree_marks(other, allowed=arguments.dirty) if other else []
    if arguments.realtime:
        _push_others_aside()
        marks.append("ran in the real-time class")
    meter = Meter()
    time.sleep(PROBE_S)
    foreign = meter.read().foreign_cores
    report(f"others keep {foreign:.2f} cores busy")
    marks += _load_marks(foreign, allowed=arguments.allow_load or arguments.realtime)
    date = time.strftime("%Y-%m-%dT%H%M%S")
    head = {
        "schema": SCHEMA,
        "what": what,
        "date": date,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        **describe(),
        "commit": here.commit,
        "changed": list(here.changed),
        "beside": other.commit if other else "",
        "foreign_cores": foreign,
        "threads": dict(THREADS),
    }
    return Results(head, marks, path=arguments.json or BENCHMARKS / "results" / f"{what}-{date}.json")


def _tree_marks(here: Tree, *, allowed: bool) -> list[str]:
    """Return what a result says about its tree; end the program if that is not allowed."""
    if not here.changed:
        return []
    files = ", ".join(here.changed[:FILES_NAMED])
    more = f" and {len(here.changed) - FILES_NAMED} more" if len(here.changed) > FILES_NAMED else ""
    if not allowed:
        sys.exit(
            f"the tree is not what its commit says: {files}{more}. Commit that, or give --dirty, and the "
            "result is marked; benchmarks/results and docs/images may change"
        )
    return [f"DIRTY tree: {here.commit or 'no commit'}, but for {files}{more}"]


def _load_marks(foreign_cores: float, *, allowed: bool) -> list[str]:
    """Return what a result says about others on the machine; end the program if that is not allowed."""
    if foreign_cores <= MOST_FOREIGN_CORES:
        return []
    if not allowed:
        sys.exit(
            "the machine is busy: wait, or give --allow-load (the result is marked) or --realtime (pushes "
            "others aside)"
        )
    return [f"DOUBTFUL: others kept {foreign_cores:.2f} cores busy before it began"]


def _push_others_aside() -> None:
    """Move this process, and with it all that it starts, to the real-time class."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        sys.exit("--realtime needs root, or the capability CAP_SYS_NICE")


def load(paths: Sequence[Path]) -> Results:
    """Read what earlier commands have written, as one; marks name the file that they are of.

    Facts are those of the first file.
    """
    read = [(path, json.loads(path.read_text())) for path in paths]
    for path, whole in read:
        if whole.get("schema") != SCHEMA:
            sys.exit(
                f"{path}: not of schema {SCHEMA}; the tree of its commit, {whole.get('commit')}, reads it"
            )
    return Results(
        head=dict(read[0][1]),
        noted=[f"{path.name}: {mark}" for path, whole in read for mark in whole["noted"]],
        runs=[run for _, whole in read for run in whole["runs"]],
        failures=[],
    )
