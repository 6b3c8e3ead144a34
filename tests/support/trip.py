"""Traces the trip of one slice through a real job: which functions of the library it passes.

The job is ``kvstore_mpi.testing.cluster``: the real threads of every role, of which only network and MPI
are replaced. A profile function in all of its threads records while one ``pushpull`` of one slice is
under way. What a trip does not need is left out by name: the ticks of the loops and the caller's own wait.
What arrives by chance meanwhile, as a sign of life at the scheduler, is left out as other trips do without.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import kvstore_mpi
from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

LIBRARY = Path(kvstore_mpi.__file__).parent
HARNESS = ("testing/", "transport/memory.py", "comm/memory.py")
"""What stands instead of the network, MPI and the user here."""

_OFF_THE_WAY = ("on_tick", "tick")
"""Functions that run by time, whatever is under way; what they call is left out with them."""


class Call(NamedTuple):
    """One function that was passed."""

    thread: str
    file: str
    function: str
    owner: str


class Recorder:
    """Records calls of the library's functions while it is switched on."""

    def __init__(self) -> None:
        """Start switched off."""
        self._calls: list[Call] = []
        self._on = threading.Event()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        """See ``sys.setprofile``."""
        if event != "call" or not self._on.is_set():
            return
        path = frame.f_code.co_filename
        if not path.startswith(f"{LIBRARY}/") or _is_off_the_way(frame):
            return
        owner = frame.f_locals.get("self")
        name = type(owner).__name__ if owner is not None else ""
        file = path[len(str(LIBRARY)) + 1 :]
        code = frame.f_code
        plain = f"{name}.{code.co_name}" if name else code.co_name
        function = getattr(code, "co_qualname", plain)  # Python 3.10 has no qualified names of code
        self._calls.append(Call(threading.current_thread().name, file, function, name))

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """Record what is called meanwhile, in a list of its own."""
        calls: list[Call] = []
        self._calls = calls
        self._on.set()
        try:
            yield calls
        finally:
            self._on.clear()


def _is_off_the_way(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _OFF_THE_WAY:
            return True
        frame = frame.f_back
    return False


def trace_trip(
    *, clients: int = 2, ranks: int = 2, servers: int = 2, warm_up: int = 3, trips: int = 4
) -> list[Call]:
    """Return what one slice passes on its way from ``pushpull`` to the new value, on all processes."""
    recorder = Recorder()
    traces: list[list[Call]] = []
    threading.setprofile(recorder)
    try:
        network = MemoryNetwork()
        with Cluster(network.transport, clients=clients, workers_per_client=ranks, servers=servers) as job:
            stores = [BlockingStore(worker) for worker in job.workers]
            value = np.zeros(16, np.float32)
            job.together([partial(store.init, "w", value) for store in stores])
            pushpulls = [partial(store.pushpull, "w", value + 1) for store in stores]
            for _ in range(warm_up):
                job.together(pushpulls)
            for _ in range(trips):
                with recorder.recording() as calls:
                    job.together(pushpulls)
                traces.append(calls)
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    on_every_trip = set.intersection(*({(call.file, call.owner) for call in calls} for calls in traces))
    return [call for call in traces[0] if (call.file, call.owner) in on_every_trip]


def files_of(calls: list[Call]) -> set[str]:
    """Return the files of a trip, without what stands in for network, MPI and user."""
    return {call.file for call in calls if not call.file.startswith(HARNESS)}


def objects_of(calls: list[Call]) -> set[str]:
    """Return the kinds of objects that it passes."""
    return {call.owner for call in calls if call.owner and not call.file.startswith(HARNESS)}
