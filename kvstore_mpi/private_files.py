"""Files and folders that their user alone can read, made where others may have put something first.

Snapshots, traces and logs hold what the job's user would not show. A name that others can guess may be
taken already, by a link to a file of the user's that would then be overwritten; so nothing that is there is
followed or opened for writing. The standard library only: every rank pays for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

DRAFT = ".draft"
"""How the names of files end that are not whole."""

ROOT = 0
"""The user who is trusted in any case: root can read and change everything."""


def make_folder(path: Path) -> None:
    """Make a folder for this user alone, unless there is one; its mode is then left as it is.

    Raises:
        OSError: It cannot be made, or belongs to another user, who could replace what is in it; or the name
            is another user's link, who has chosen where that leads.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(path.lstat(), path)
    _check_owner(path.stat(), path)


def create(path: Path) -> int:
    """Make a file for this user alone; return a descriptor to write to.

    Raises:
        OSError: It cannot be made; ``FileExistsError`` if the name is taken, even by a link to nowhere.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of another at the end of the block; if that fails it is removed.

    Raises:
        OSError: It cannot be written; what was there is as it was.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}{DRAFT}")
    descriptor = create(draft)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def remove_drafts(path: Path) -> None:
    """Remove what writers of a file have left that were killed.

    Raises:
        OSError: One cannot be removed.
    """
    for draft in path.parent.glob(f"{path.name}.*{DRAFT}"):
        draft.unlink(missing_ok=True)


def open_to_read(path: Path) -> BinaryIO:
    """Open a file of this user's; never waits, as the opening of a named pipe would.

    Raises:
        OSError: There is none, or it is a link, no ordinary file, or another user's.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    with contextlib.ExitStack() as failing:
        failing.callback(os.close, descriptor)
        _check_kind(os.fstat(descriptor), path)
        failing.pop_all()
    return os.fdopen(descriptor, "rb")


def _check_kind(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
    _check_owner(status, path)


def _check_owner(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in (os.geteuid(), ROOT):
        text = f"it belongs to user {status.st_uid}, and not to user {os.geteuid()}, who runs this"
        raise PermissionError(errno.EPERM, text, str(path))
