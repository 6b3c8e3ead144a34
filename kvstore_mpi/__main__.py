"""``python -m kvstore_mpi``: the scheduler or a server, as the environment says; started by mpilaunch."""

from __future__ import annotations

import errno
import gc
import logging
import os
import sys

from kvstore_mpi.allocator import keep_freed_memory
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import KVStoreError, ToldToEndError, lacks_thread
from kvstore_mpi.node import run_service
from kvstore_mpi.records import Role

NO_RESOURCES = 71
IO_FAILED = 74
"""Exit codes after what the host has refused; as ``sysexits.h`` has them, like those of our errors."""


def exit_code_of(error: Exception) -> int | None:
    """Return the exit code that stands for an error; ``None`` if it is a defect."""
    if isinstance(error, KVStoreError):
        return error.exit_code
    if isinstance(error, MemoryError) or lacks_thread(error):
        return NO_RESOURCES
    if not isinstance(error, OSError):
        return None
    return NO_RESOURCES if error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE) else IO_FAILED


def main() -> int:
    """Run until the job is over; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = NodeConfig.from_mapping(os.environ)
        if config.role is Role.WORKER:
            sys.stderr.write("kvstore_mpi: workers run your script; start the job with mpilaunch\n")
            return 64
        keep_freed_memory(os.environ)
        gc.freeze()  # what the imports have made stays: collections need not look at it
        run_service(config)
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        # Whoever has told the job to end says so; a line of the scheduler's would look like a fault.
        if not isinstance(error, ToldToEndError):
            text = str(error) or "no memory"
            sys.stderr.write(f"kvstore_mpi error {code} {type(error).__name__}: {text}\n")
        return code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
