"""``mpilaunch inspect JOB``: who holds up a running job, and the stacks and last lines of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpilaunch.options import make_command_parser
from mpilaunch.seeing.control import ask_job, find_job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO


def run(arguments: Sequence[str], out: TextIO) -> int:
    """Have the launcher write an inspection; show it, and return the exit code."""
    parser = make_command_parser("inspect")
    parser.add_argument(
        "job", nargs="?", default="", help="beginning of its name, or its mpilaunch's number"
    )
    answer = ask_job(find_job(parser.parse_args(arguments).job), {"do": "inspect"})
    out.write(f"{answer['text']}\nwritten to {answer['path']}\n")
    return 0
