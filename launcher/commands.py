"""Runs the commands of ``mpilaunch``, modules that are loaded when they are asked for; and its streams."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kvstore_mpi.errors import KVStoreError
from mpilaunch.command_table import COMMANDS
from mpilaunch.outcome.root_cause import NO_RESOURCES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class OutputError(KVStoreError):
    """What a command has to say cannot be written."""

    exit_code = 74


_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def open_missing_streams() -> None:
    """Have all standard streams, also where one was closed (``>&-``): that one is nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Its number is the lowest that is free: that of the stream, which nothing else takes now.
            stream = Path(os.devnull).open(mode)  # noqa: SIM115  it stays open
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def run_command(name: str, arguments: Sequence[str], out: TextIO) -> int:
    """Run one of ``COMMANDS``; return its exit code."""
    with written(out):
        code: int = importlib.import_module(COMMANDS[name].module).run(arguments, out)
        return code


def told_as_code(error: KVStoreError | OSError) -> int:
    """Say what has ended the program; return its exit code.

    Raises:
        OSError: The one given, unless it says that there are no more descriptors.
    """
    if isinstance(error, KVStoreError):
        text, code = str(error), error.exit_code
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        text = f"{error.strerror}: raise the limit (ulimit -n), or start fewer processes on this host"
        code = NO_RESOURCES
    else:
        raise error
    for line in text.splitlines():
        sys.stderr.write(f"mpilaunch: {line}\n")
    return code


@contextlib.contextmanager
def written(out: TextIO) -> Iterator[None]:
    """Have written what the block writes to ``out``, also where it ends the program, as ``--help`` does.

    Raises:
        OutputError: It cannot be written, as on a disk that is full.
        SystemExit: Nobody reads on; with the code of SIGPIPE.
    """
    try:
        try:
            yield
        finally:
            out.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as ``head`` has
        _forget(out)
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        if error.errno not in _NOT_WRITTEN or error.filename is not None:
            raise
        _forget(out)
        raise OutputError(f"what there is to say cannot be written: {error.strerror}") from None


def _forget(out: TextIO) -> None:
    """Let what the stream still holds go nowhere: it must not fail once more at exit."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), out.fileno())
