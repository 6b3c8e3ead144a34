"""How many processors of this host a process may use: those it is kept to, and its groups' share of time.

A container with a limit, such as a pod with ``cpu: 2``, sees all processors of its node and may run on any.
What it is given of their time is in files of its control group, and of the groups above that it sees.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESS = Path("/proc/self")
"""Where Linux tells a process of its groups and of what is mounted."""

# In the second version of control groups one file has both numbers, or "max" for the first; in the first
# version each has a file, and the first is -1 where there is no limit.
_FILES = {"cgroup2": ("cpu.max",), "cgroup": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
_LIMIT = re.compile(r"(\d+)\s+([1-9]\d*)\s*")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def cores_here() -> int:
    """Return how many threads may compute at once in this process and those that it starts.

    Half a processor of a quota is not counted: threads that wait for each other, as OpenMP's do, would all
    be stopped until the next period begins.
    """
    quotas = (quota for folder, names in _groups(PROCESS) if (quota := _quota(folder, names)) is not None)
    return max(1, min((len(os.sched_getaffinity(0)), *quotas)))


def _groups(process: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Go through the folders of all groups that limit a process's time, and what their files are called."""
    try:
        groups, mounts = (
            (process / name).read_text(encoding="utf-8", errors="surrogateescape")
            for name in ("cgroup", "mountinfo")
        )
    except OSError:
        return  # a kernel without groups limits nobody
    for mount, kind, group in controllers(groups, mounts):
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount):
                yield folder, _FILES[kind]


def controllers(groups: str, mounts: str) -> list[tuple[Path, str, Path]]:
    """Return where the groups are that limit a process's time: the mount, its kind and the process's group.

    Args:
        groups: ``/proc/self/cgroup``.
        mounts: ``/proc/self/mountinfo``.
    """
    paths = {}
    for line in groups.splitlines():
        number, names, path = line.split(":", 2)
        if number == "0":
            paths["cgroup2"] = path
        elif "cpu" in names.split(","):
            paths["cgroup"] = path
    found = []
    for line in mounts.splitlines():
        place, _, filesystem = line.partition(" - ")
        kind, _, settings = filesystem.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in settings.split(",")):
            root, mount = (Path(_plain(each)) for each in place.split(" ")[3:5])
            group = Path(paths.get(kind, root))
            # A container without a namespace for groups sees the host's path of its own one, which is what
            # is mounted in it; a group beside that cannot be seen.
            own = mount / group.relative_to(root) if group.is_relative_to(root) else mount
            found.append((mount, kind, own))
    return found


def _plain(path: str) -> str:
    """Return a path as it is; Linux writes blanks in it by their numbers."""
    return _ESCAPED.sub(lambda number: chr(int(number[1], 8)), path)


def _quota(folder: Path, names: tuple[str, ...]) -> int | None:
    """Return how many whole processors a group has at a time, or nothing if it has no limit of its own."""
    try:
        text = " ".join((folder / name).read_text(encoding="utf-8") for name in names)
    except OSError:
        return None  # as the root has none
    limit = _LIMIT.fullmatch(text)
    return int(limit[1]) // int(limit[2]) if limit else None
