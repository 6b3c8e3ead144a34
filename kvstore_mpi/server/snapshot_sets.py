"""The snapshots of all servers of a job: which of those in a folder a job goes on from, and which may go.

Names have the number of servers. A job that goes on with another number leaves the files that it has begun
with alone until all of its own servers have written theirs: whenever it dies, one whole set is there.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path

# Exactly as ``path_of`` writes them: with leading zeros two files would stand for one server.
_NAME = re.compile(r"server(0|[1-9][0-9]*)-of-([1-9][0-9]*)\.snapshot", re.ASCII)


def path_of(folder: str, server: int, servers: int) -> Path:
    """Return where a server's newest base is."""
    return Path(folder) / f"server{server}-of-{servers}.snapshot"


def folder_of_part(folder: str, model_rank: int) -> Path:
    """Return where servers save what one of each worker's ranks owns, if the model is in parts."""
    return Path(folder) / f"model-rank-{model_rank}"


def saved_parts(folder: str) -> int:
    """Return of how many parts of a model there are whole sets, in their folders."""
    # Without gaps, as a job leaves them: folders behind an empty one may be of another, with more ranks.
    # An empty one may have been made by a job that found nothing there to go on from.
    return next(part for part in itertools.count() if not newest(str(folder_of_part(folder, part))))


def newest(folder: str) -> list[Path]:
    """Return the bases of a job's servers, in order: of the whole sets the one written last, if any."""
    # By the oldest file of each set: one server that writes more often than the others does not make
    # its set the newer one.
    return max(_whole_sets(folder).values(), key=_oldest_time, default=[])


def remove_older(folder: str, servers: int) -> None:
    """Remove what servers of other numbers have left, once all of this number have written theirs.

    What cannot be removed stays: it is older, and counts for nothing.
    """
    sets = _whole_sets(folder)
    # Before its own set is whole nothing goes: the former one is all that a job could go on from.
    own = sets.pop(servers, [])
    for paths in sets.values():
        # Clocks of file systems stand still for some milliseconds: who calls this has just written.
        if own and _oldest_time(own) >= max(map(_time, paths)):
            for path in paths:
                _remove(path)


def _remove(base: Path) -> None:
    # The base first: without it the set is none, and its links count for nothing.
    for path in (base, *base.parent.glob(f"{base.name}.*")):
        with contextlib.suppress(OSError):
            path.unlink()


def first_missing(folder: str) -> tuple[Path, Path] | None:
    """Return a base that is missing, and one that is there, of the set written to last: none is whole."""
    found = _found(folder)
    if not found:
        return None
    servers, paths = max(found.items(), key=lambda each: max(map(_time, each[1].values())))
    missing = next(index for index in range(servers) if index not in paths)
    return path_of(folder, missing, servers), paths[min(paths)]


def _whole_sets(folder: str) -> dict[int, list[Path]]:
    """Return the sets of which no base is missing, by their number of servers."""
    return {
        servers: [paths[index] for index in range(servers)]
        for servers, paths in _found(folder).items()
        if len(paths) == servers
    }


def _found(folder: str) -> dict[int, dict[int, Path]]:
    """Return the bases that are there, by the number of servers in their set and by their own."""
    found: dict[int, dict[int, Path]] = {}
    for path in Path(folder).glob("server*.snapshot"):
        # The whole name: links and drafts have names that begin alike. And no number that a set of this
        # size does not have: such a file is somebody's copy, and must not hide the set.
        match = _NAME.fullmatch(path.name)
        if match and int(match[1]) < int(match[2]):
            found.setdefault(int(match[2]), {})[int(match[1])] = path
    return found


def _oldest_time(paths: list[Path]) -> int:
    """Return when the first of some files was written: until then the set was not whole."""
    return min(map(_time, paths))


def _time(path: Path) -> int:
    # Never of what a link points to, which is refused when it is read. One that has gone is the oldest.
    with contextlib.suppress(OSError):
        return path.lstat().st_mtime_ns
    return 0
