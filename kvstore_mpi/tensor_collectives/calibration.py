"""The profile by which ``auto`` chooses, the same on all ranks: agreed on, or measured in under a second.

Ranks that went by different profiles would wait for each other in different collectives.
"""

from __future__ import annotations

import contextlib
import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.tensor_collectives import hosts, rings
from kvstore_mpi.tensor_collectives.choice import SEGMENT_BYTES, Algorithm
from kvstore_mpi.tensor_collectives.cost import Model, fit, rounds
from kvstore_mpi.tensor_collectives.group import Group
from kvstore_mpi.tensor_collectives.profile import MEASURE, Profile, built_in, decode, encode
from kvstore_mpi.tensor_collectives.steps import in_place
from kvstore_mpi.transport.shared_memory import Arena

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.interfaces import Communicator

log = logging.getLogger("kvstore_mpi.collectives")

Array = np.ndarray[Any, Any]

SMALL_BYTES = 256
CACHED_SIZE_BYTES = 512 << 10
MEMORY_SIZE_BYTES = 16 << 20
LIBRARY_BYTES = (4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Closest where its time leaps, because it sends in another way from there on."""
BATCHES = 3
SECONDS_OF_A_BATCH = 0.008
MOST_TIMES = 200
LEAST_TIMES = 3
ITEM_BYTES = 4


class Calibration:
    """Ranks that measure together; every method is called by all of them in the same order."""

    def __init__(self, communicator: Communicator) -> None:
        """Use a communicator, which stays the caller's."""
        self._communicator = communicator
        self._everyone = tuple(range(communicator.size))
        self._arena = Arena()
        self._ring = Group(communicator, algorithm=Algorithm.RING)
        self._shared = Group(communicator, locate=self._arena.place, algorithm=Algorithm.SHM)
        self._one_host = len(communicator.hosts()) == 1

    def profile(self) -> Profile:
        """Measure everything."""
        library = tuple((size, self._seconds(self._library(size))) for size in LIBRARY_BYTES)
        barrier = self._seconds(partial(self._communicator.barrier, self._everyone))
        model = Model(0.0, 0.0, 0.0, barrier=barrier / rounds(len(self._everyone)))
        model = self._fit_shared_memory(model, "overhead", SMALL_BYTES)
        model = self._fit_ring(model, "alpha", SMALL_BYTES)
        costs = [self._costs_of_bytes(model, size) for size in (CACHED_SIZE_BYTES, MEMORY_SIZE_BYTES)]
        return Profile(len(self._everyone), costs[0], costs[1], library)

    def close(self) -> None:
        """Give back what was summed in; the communicator stays."""
        self._arena.close()

    def _costs_of_bytes(self, model: Model, num_bytes: int) -> Model:
        segment = num_bytes // len(self._everyone)
        model = model._replace(gamma=self._seconds(self._addition(segment)) / segment)
        return self._fit_ring(self._fit_shared_memory(model, "delta", num_bytes), "beta", num_bytes)

    def _fit_ring(self, model: Model, name: str, num_bytes: int) -> Model:
        """Let a ring over buffers of this size tell a cost; large ones go around in segments."""
        segment_bytes = min(num_bytes, SEGMENT_BYTES)
        program = in_place(rings.allreduce(self._everyone, 0, (0, segment_bytes // ITEM_BYTES)))
        buffer = np.zeros(num_bytes // ITEM_BYTES, np.float32)
        seconds = self._seconds(partial(self._ring.allreduce, buffer, 0, buffer.size))
        return fit(model, name, program, ITEM_BYTES, seconds * segment_bytes / num_bytes)

    def _fit_shared_memory(self, model: Model, name: str, num_bytes: int) -> Model:
        """Let a sum in shared memory tell a cost; between hosts there is none, and nothing is known."""
        if not self._one_host:
            return model
        extent = (0, num_bytes // ITEM_BYTES)
        program = in_place(hosts.shared_memory(self._everyone, 0, extent))
        buffer = self._arena.allocate(extent[1], np.dtype(np.float32))
        buffer[:] = 0
        seconds = self._seconds(partial(self._shared.allreduce, buffer, *extent))
        return fit(model, name, program, ITEM_BYTES, seconds)

    def _library(self, num_bytes: int) -> Callable[[], None]:
        return self._communicator.prepare_allreduce(np.zeros(num_bytes // ITEM_BYTES, np.float32))

    @staticmethod
    def _addition(num_bytes: int) -> Callable[[], None]:
        one, other = (np.ones(num_bytes // ITEM_BYTES, np.float32) for _ in range(2))
        return partial(np.maximum, one, other, out=other)

    def _seconds(self, call: Callable[[], object]) -> float:
        """Return what a call takes while nothing disturbs it: the least median of some batches.

        A disturbance may last for as long as a batch: two ranks on one core, say, until one is moved.
        """
        self._together(call)  # the first makes what is kept
        return min(self._median(call) for _ in range(BATCHES))

    def _median(self, call: Callable[[], object]) -> float:
        """Return the median time of as many calls as a batch has time for; all ranks agree how many."""
        times = max(LEAST_TIMES, min(MOST_TIMES, int(SECONDS_OF_A_BATCH / max(self._together(call), 1e-7))))
        return float(np.median([self._together(call) for _ in range(times)]))

    def _together(self, call: Callable[[], object]) -> float:
        """Return the mean over ranks of one call's time, begun together; the same number on all ranks."""
        self._communicator.barrier(self._everyone)
        begin = time.perf_counter()
        call()
        taken = np.array([time.perf_counter() - begin])
        self._communicator.allreduce(taken)
        return float(taken[0]) / len(self._everyone)


def measure(communicator: Communicator) -> tuple[Profile, float]:
    """Measure a profile, and how long that took; called by all ranks, of which all get the same."""
    begin = time.perf_counter()
    with contextlib.closing(Calibration(communicator)) as calibration:
        profile = calibration.profile()
    return profile, time.perf_counter() - begin


_PROBLEM = b"\0"
"""What rank 0 tells the others begins so where it has no profile for them."""


def agree_on_profile(path: str, communicator: Communicator) -> Profile:
    """Return the profile by which all ranks of a client choose how to sum: what rank 0 says.

    Args:
        path: Its file, ``measure`` for one that is measured now, or nothing for the built-in one.
        communicator: The ranks of the client.

    Raises:
        ConfigurationError: Rank 0 cannot read its file; raised on all ranks.
    """
    text = b""
    if communicator.rank == 0:
        try:
            text = _profile_text(path, communicator)
        except (OSError, UsageError) as error:
            text = _PROBLEM + str(error).encode(errors="replace")
    text = communicator.broadcast_bytes(text, 0)
    if text.startswith(_PROBLEM):  # told to all, for whichever rank ends first is the one that is shown
        problem = text.removeprefix(_PROBLEM).decode()
        raise ConfigurationError(f"rank 0 of this client cannot use its collective profile: {problem}")
    if text == MEASURE.encode():
        return _measure(communicator)
    return decode(text, "rank 0's profile")


def _profile_text(path: str, communicator: Communicator) -> bytes:
    """Return what the ranks of a client shall go by, or that they shall measure it."""
    if path == MEASURE and communicator.size > 1:
        return MEASURE.encode()
    if path in ("", MEASURE):  # one rank sums nothing
        return encode(built_in(communicator.library()))
    return encode(decode(Path(path).read_bytes(), path))


def _measure(communicator: Communicator) -> Profile:
    profile, seconds = measure(communicator)
    if communicator.rank == 0:
        log.info("collective profile: measured in %.2f s", seconds)
    return profile
