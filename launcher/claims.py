"""Folders that a job writes and no other job may meanwhile: where it saves, and where its trace goes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi import private_files
from kvstore_mpi.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_IS_TAKEN = {errno.EAGAIN, errno.EACCES}


@contextlib.contextmanager
def claimed(folders: Mapping[str, str]) -> Iterator[None]:
    """Have folders for one job during the block.

    Two jobs would take the place of each other's files, without a word. By a lock on the folder itself,
    which leaves nothing behind and goes with this process, however that ends. Some file systems of several
    hosts have no locks; there nobody notices.

    Args:
        folders: By the options that have named them; those that are not there are made. Empty for none.

    Raises:
        ConfigurationError: One cannot be made or used, or a job that is running has it.
    """
    with contextlib.ExitStack() as descriptors:
        known = set()
        for option, folder in folders.items():
            if not folder:
                continue
            descriptor = _opened(folder, option)
            descriptors.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            # A lock is the descriptor's: one folder for two purposes would be another job's.
            if (status.st_dev, status.st_ino) not in known:
                _lock(descriptor, folder, option)
            known.add((status.st_dev, status.st_ino))
        yield


def check_is_there(option: str, folder: str) -> None:
    """Refuse to go on from a folder that is not there: made anew, it would only hide a misspelt name.

    Raises:
        ConfigurationError: There is none.
    """
    if not Path(folder).is_dir():
        raise ConfigurationError(
            f"{option} {folder} is not there, so that there is nothing to resume from; give it the folder "
            "of the job that is to go on, or leave out --resume"
        )


def _opened(folder: str, option: str) -> int:
    try:
        private_files.make_folder(Path(folder))
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(
            f"{option} {folder} cannot be made or used: {error.strerror}; choose another place"
        ) from error


def _lock(descriptor: int, folder: str, option: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _IS_TAKEN:
            raise ConfigurationError(
                f"{option} {folder} is that of another job, which is running: give each job a folder of "
                "its own, or wait until that one has ended"
            ) from error
