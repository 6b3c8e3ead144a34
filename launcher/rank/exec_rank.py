"""``python -m mpilaunch.rank.exec_rank PROGRAM ARGS``: connects a rank to the launcher, then is PROGRAM.

For executables that are not ours to wrap: same process, same signals, no record of the end.
"""

from __future__ import annotations

import os
import sys

from mpilaunch.rank.guard import lead_group
from mpilaunch.rank.reporter import Reporter

CANNOT_RUN = 126
"""The exit code of shells where a program is there and cannot be run."""


def main() -> None:
    """Connect the streams and turn into the program on the command line."""
    lead_group()
    reporter = Reporter.from_mapping(os.environ)
    reporter.connect_streams()
    reporter.take_variables()
    reporter.announce_start()
    program = sys.argv[1:]
    try:
        os.execvp(program[0], program)  # noqa: S606  the user's own program; there is no shell to inject into
    except OSError as error:
        sys.stderr.write(
            f"{program[0]} cannot be run: {error.strerror}; a script needs a first line that names its "
            "interpreter, such as #!/bin/sh\n"
        )
        sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main()
