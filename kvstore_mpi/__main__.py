"""``python -m kvstore_mpi``: the scheduler or a server, as the environment says; started by mpilaunch."""

from __future__ import annotations

import logging
import os
import sys

from kvstore_mpi.allocator import keep_freed_memory
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import KVStoreError
from kvstore_mpi.node import run_service
from kvstore_mpi.records import Role


def main() -> int:
    """Run until the job is over; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = NodeConfig.from_mapping(os.environ)
        if config.role is Role.WORKER:
            sys.stderr.write("kvstore_mpi: workers run your script; start the job with mpilaunch\n")
            return 64
        keep_freed_memory()
        run_service(config)
    except KVStoreError as error:
        sys.stderr.write(f"kvstore_mpi error {error.exit_code} {type(error).__name__}: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
