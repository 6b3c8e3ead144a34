"""Files that the user names: read, or told what is wrong with them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi.errors import UsageError
from kvstore_mpi.tensor_collectives.profile import MEASURE, decode
from mpilaunch.hosts.hostlist import parse_hostfile, parse_hosts

if TYPE_CHECKING:
    from mpilaunch.hosts.hostlist import Slots


MOST_TEXT = 1 << 26
"""Characters of a file that is read as a whole: a plan or a report has thousands; /dev/zero has no end."""


def read_text(path: str, option: str) -> str:
    """Return the content of a file.

    Raises:
        UsageError: It cannot be read, or has no end; the text names the option that has named it.
    """
    try:
        # Editors of Windows put a mark before the text, which is none of it.
        with Path(path).open(encoding="utf-8-sig") as file:
            text = file.read(MOST_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path} cannot be read: {error}") from error
    if len(text) > MOST_TEXT:
        raise UsageError(f"{option} {path} has more than {MOST_TEXT:,} characters; is it another file?")
    return text


def read_hosts(hosts: str, hostfile: str) -> list[Slots]:
    """Return the hosts that ``--hosts`` or ``--hostfile`` name; none if neither is given.

    Raises:
        UsageError: The list is wrong, or both are given.
    """
    if hosts and hostfile:
        raise UsageError("give either --hosts or --hostfile")
    if hostfile:
        return parse_hostfile(read_text(hostfile, "--hostfile"), hostfile)
    return parse_hosts(hosts) if hosts else []


def check_profile(path: str) -> None:
    """Read the file of ``--collective-profile``, if it names one, before ranks do.

    Raises:
        UsageError: It cannot be read, or is no profile.
    """
    if path not in ("", MEASURE):
        decode(read_text(path, "--collective-profile").encode(), path)


def check_output(path: str) -> None:
    """Raise where a file cannot be written, before what takes long has been done for it.

    Raises:
        UsageError: Its folder is not there, or may not be written; or it is a folder.
    """
    if Path(path).is_dir():
        raise UsageError(f"{path} cannot be written: it is a folder; give the name of a file in it")
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written: it needs a folder that is there and may be written")
