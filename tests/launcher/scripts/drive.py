"""mpilaunch with the fake services: the same command line, another program for scheduler and servers."""

import sys
from pathlib import Path

from kvstore_mpi.errors import KVStoreError
from mpilaunch import cli

if __name__ == "__main__":
    head, target, command = cli.split_command(sys.argv[1:])
    options = cli.make_parser("").parse_args(head)
    service = str(Path(__file__).with_name("fake_service.py"))
    try:
        sys.exit(cli.run_job(cli.make_spec(options, target, command), (sys.executable, service)).code)
    except KVStoreError as error:
        sys.exit(error.exit_code)
