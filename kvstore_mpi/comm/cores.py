"""Gives each rank of a host its own share of the processors.

A thread that is woken by another process tends to be run where that one runs, and takes the processor from
a rank that computes while that of its own rank is idle: two stages of a pipeline took 159 ms a step where
they shared two cores, and 142 where each had one (docs/model-parallel.md).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_PLACE = ("physical_package_id", "core_id")
PROCESSORS = Path("/sys/devices/system/cpu")


def divide(local: Any, *, wanted: bool) -> None:
    """Keep this process to its share, if all ranks of the host want one and nobody has given them any.

    Args:
        local: A communicator of mpi4py of the ranks of this host; all must call this.
        wanted: By this rank.
    """
    has = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    told = local.allgather((has, wanted))
    own = share(in_order(has), local.Get_rank(), len(told))
    if own and told == [(has, True)] * len(told):
        for thread in Path("/proc/self/task").iterdir():  # those to come inherit it
            with suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(int(thread.name), own)


def share(processors: Sequence[int], place: int, ranks: int) -> Sequence[int]:
    """Return one of ``ranks`` even shares of neighbours; nothing if there is not one for each."""
    if len(processors) < ranks:
        return ()
    first, end = (len(processors) * each // ranks for each in (place, place + 1))
    return processors[first:end]


def in_order(processors: Collection[int], root: Path = PROCESSORS) -> list[int]:
    """Return processors so that those of one core are neighbours, and so are the cores of one package.

    Linux numbers the first threads of all cores before the second ones.
    """

    def place(processor: int) -> tuple[int, int, int]:
        folder = root / f"cpu{processor}" / "topology"
        try:
            package, core = (int((folder / name).read_text()) for name in _PLACE)
        except (OSError, ValueError):
            return (0, 0, processor)
        return (package, core, processor)

    return sorted(processors, key=place)
