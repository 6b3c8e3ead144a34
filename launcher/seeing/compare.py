"""``mpilaunch compare A B``: two runs beside each other, by their saved reports or traces."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.tracing.parts import TRACE
from kvstore_mpi.tracing.verdict import Summary
from mpilaunch.inputs import MOST_TEXT
from mpilaunch.options import finite, make_command_parser
from mpilaunch.trace import REPORT, summary_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from kvstore_mpi.tracing.verdict import Figures

SLOWER = 1
"""Exit code where the second run is slower by more than is allowed."""

_ROWS = (
    ("iteration ms", "time", 1.0),
    ("compute %", "compute", 100.0),
    ("hidden %", "hidden", 100.0),
    ("exposed %", "exposed", 100.0),
    ("other %", "other", 100.0),
    ("computing ms", "computing", 1.0),
    ("communication ms", "communication", 1.0),
)
_BOUNDS = tuple(row for row in _ROWS if row[1] not in ("hidden", "other", "computing"))
"""What is known of scripts without marks."""


def run(arguments: Sequence[str], out: TextIO) -> int:
    """Compare two runs; return 1 if the second is slower than allowed."""
    parser = make_command_parser("compare")
    parser.add_argument(
        "a", help="log folder of a run with --report, its report.json, a trace.json or its folder"
    )
    parser.add_argument("b", help="the same of the run that is judged")
    parser.add_argument("--fail-if-slower", metavar="PERCENT", help="exit with 1 if b is slower by more")
    options = parser.parse_args(arguments)
    allowed = None if options.fail_if_slower is None else _percent(options.fail_if_slower)
    first, second = (read(Path(path)) for path in (options.a, options.b))
    out.write(describe(first, second))
    slower = slower_by(_whole(first, options.a), _whole(second, options.b))
    if allowed is not None and slower > allowed:
        out.write(f"slower by {slower:.1%}, and {allowed:.1%} is allowed\n")
        return SLOWER
    return 0


def _percent(text: str) -> float:
    try:
        return finite(text.removesuffix("%")) / 100
    except argparse.ArgumentTypeError:
        raise UsageError(f"--fail-if-slower {text}: give a number of percent, such as 3%") from None


def _whole(summary: Summary, path: str) -> Figures:
    if summary.whole is None:
        raise UsageError(f"{path}: no worker has recorded a whole iteration")
    return summary.whole


def read(path: Path) -> Summary:
    """Read the report of a run.

    Raises:
        UsageError: There is none, or it is of another version of this package.
    """
    if path.name == TRACE:  # what it was merged of is beside it
        return summary_of(path.parent, str(path))
    file = path / REPORT if path.is_dir() else path
    if path.is_dir() and not file.exists():
        return summary_of(path, str(path))
    try:
        with file.open("rb") as report:
            return msgspec.json.decode(report.read(MOST_TEXT), type=Summary)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{file} is not the report of a run with mpilaunch --report: {error}") from error


def slower_by(first: Figures, second: Figures) -> float:
    """Return by which part of the first run's time the second one is slower; negative if it is faster."""
    return second.time / first.time - 1


def describe(first: Summary, second: Summary) -> str:
    """Return two runs beside each other."""
    lines = [f"a: {first.command}", f"b: {second.command}"]
    if first.whole and second.whole:
        lines.append(f"{'':18}{'a':>10}{'b':>10}{'b - a':>10}")
        is_marked = first.whole.marked and second.whole.marked
        for title, name, factor in _ROWS if is_marked else _BOUNDS:
            one, two = getattr(first.whole, name) * factor, getattr(second.whole, name) * factor
            lines.append(f"{title:18}{one:10.1f}{two:10.1f}{two - one:+10.1f}")
        lines += [
            f"{name}: half of its {each.iterations} iterations took {each.low:.1f} to {each.high:.1f} ms"
            for name, each in (("a", first.whole), ("b", second.whole))
        ]
        lines.append(f"b takes {1 + slower_by(first.whole, second.whole):.3f} times as long as a")
    lines += [f"a: {first.verdict}", f"b: {second.verdict}"]
    return "\n".join(lines) + "\n"
