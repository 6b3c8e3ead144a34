"""``python -m mpilaunch.library_runner FD``: runs the job that ``mpilaunch.launch`` asks for.

The job comes in one line on standard input, whose end is the end of who has asked; how the job has ended
goes to the descriptor.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from kvstore_mpi import __version__
from kvstore_mpi.errors import KVStoreError
from mpilaunch.cli import checked_spec, run_job
from mpilaunch.jobfile import understand
from mpilaunch.jobspec import Target
from mpilaunch.library import SOURCE
from mpilaunch.options import make_parser
from mpilaunch.outcome.result import Result, write


def main() -> int:
    """Run the job; return its exit code."""
    told = int(sys.argv[1])
    os.set_inheritable(told, False)
    outcome: Result | KVStoreError
    try:
        file = understand(json.loads(sys.stdin.buffer.readline()), SOURCE)
        threading.Thread(target=_end_with_asker, daemon=True).start()
        options = make_parser(__version__).parse_args([])
        spec = checked_spec(options, Target.SCRIPT, (), file)
        outcome = run_job(spec)
    except KVStoreError as error:
        outcome = error
    with os.fdopen(told, "wb") as pipe:
        pipe.write(write(outcome))
    return outcome.exit_code if isinstance(outcome, KVStoreError) else outcome.code


def _end_with_asker() -> None:
    """When who has asked for the job is gone, let it save and end."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
