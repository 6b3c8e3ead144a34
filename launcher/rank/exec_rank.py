"""``python -m mpilaunch.rank.exec_rank PROGRAM ARGS``: connects a rank to the launcher, then is PROGRAM.

For executables that are not ours to wrap: same process, same signals, no record of the end.
"""

from __future__ import annotations

import os
import sys

from mpilaunch.rank.guard import lead_group
from mpilaunch.rank.reporter import Reporter


def main() -> None:
    """Connect the streams and turn into the program on the command line."""
    lead_group()
    reporter = Reporter.from_mapping(os.environ)
    reporter.connect_streams()
    reporter.take_variables()
    reporter.announce_start()
    program = sys.argv[1:]
    os.execvp(program[0], program)  # noqa: S606  the user's own program; there is no shell to inject into


if __name__ == "__main__":
    main()
