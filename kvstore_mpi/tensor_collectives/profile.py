"""What a machine was measured to take for the parts of a collective, and how that is saved.

``calibration.py`` measures it. Everything is that of one rank while the others do the same. A choice that
is measured at each start could differ from run to run, and with it the order of sums: a saved profile, or
the built-in one of the MPI library, always leads to the same.

Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.tensor_collectives.cost import Model, rounds

MEASURE = "measure"
"""Value of ``collective_profile`` that has it measured at the start."""

CACHED_BYTES = 1 << 20
"""A buffer up to here is taken to stay in the caches while all ranks work on theirs."""


class Profile(NamedTuple):
    """A machine, as ranks that reduce together see it.

    Attributes:
        ranks: How many ranks were measured.
        cached: Costs for buffers that stay in the caches.
        memory: Costs for those that do not.
        library: (bytes, seconds) of MPI's own allreduce, 4 MB at a time, by size. It is what it is:
            no model of it is attempted beyond a line between two sizes.
    """

    ranks: int
    cached: Model
    memory: Model
    library: tuple[tuple[int, float], ...]

    def model(self, num_bytes: int) -> Model:
        """Return the costs for a buffer of a size."""
        return self.cached if num_bytes <= CACHED_BYTES else self.memory

    def library_seconds(self, num_bytes: int, ranks: int) -> float:
        """Return what MPI's own allreduce takes.

        With another number of ranks than was measured its latency goes with log2(p), and its transfers
        with 2 (p - 1) / p.
        """
        latency = self.library[0][1]
        transfer = max(0.0, _interpolate(self.library, num_bytes) - latency)
        share = (ranks - 1) / ranks / ((self.ranks - 1) / self.ranks)
        return latency * rounds(ranks) / rounds(self.ranks) + transfer * share


def _interpolate(points: tuple[tuple[int, float], ...], num_bytes: int) -> float:
    """Return the value at a size: on the line through the two points around or before it."""
    after = next((index for index, (size, _) in enumerate(points) if size >= num_bytes), len(points) - 1)
    (size, low), (next_size, high) = points[max(after, 1) - 1], points[max(after, 1)]
    return low + (high - low) * (num_bytes - size) / (next_size - size)


def encode(profile: Profile) -> bytes:
    """Return a profile as JSON."""
    cached, memory = (_costs(model) for model in (profile.cached, profile.memory))
    saved = _Saved(profile.ranks, cached, memory, profile.library)
    return msgspec.json.format(msgspec.json.encode(saved), indent=1)


def _costs(model: Model) -> dict[str, float]:
    """Return what is measured of a model; whether devices work by themselves is known without."""
    return {name: value for name, value in model._asdict().items() if name != "asynchronous"}


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON object."""

    ranks: int
    cached: dict[str, float]
    memory: dict[str, float]
    library: tuple[tuple[int, float], ...]


def decode(text: bytes, where: str) -> Profile:
    """Read JSON.

    Args:
        text: What ``encode`` has returned.
        where: Where the text is from, for the error.

    Raises:
        UsageError: It is not a profile.
    """
    try:
        saved = msgspec.json.decode(text, type=_Saved)
        costs: list[dict[str, Any]] = [{**saved.cached}, {**saved.memory}]
        models = [Model(**values) for values in costs]
    except (msgspec.DecodeError, TypeError, RecursionError) as error:
        raise UsageError(f"{where} is no profile of collectives: {error}; {_HOW}") from error
    sizes = [size for size, _ in saved.library]
    numbers = [value for model in models for value in model] + [seconds for _, seconds in saved.library]
    if saved.ranks < 2 or len(sizes) < 2 or sizes != sorted(set(sizes)) or min(numbers) < 0:  # noqa: PLR2004
        raise UsageError(
            f"{where} is no profile of collectives: it needs two ranks or more, two sizes or more of the "
            f"library's in rising order, and no number below zero; {_HOW}"
        )
    return Profile(saved.ranks, models[0], models[1], saved.library)


_HOW = "make one with: mpiexec -n 2 python -m mpi4py -m kvstore_mpi.calibrate --output FILE"

MPICH = Profile(
    ranks=2,
    cached=Model(4.7e-6, 8.4e-11, 1.6e-11, delta=6.2e-12, barrier=5.3e-7, overhead=4.4e-7),
    memory=Model(4.7e-6, 1.2e-10, 3.2e-11, delta=1.4e-11, barrier=5.3e-7, overhead=4.4e-7),
    library=(
        (4 << 10, 3.6e-6),
        (16 << 10, 10.1e-6),
        (32 << 10, 11.8e-6),
        (64 << 10, 15.2e-6),
        (256 << 10, 36.2e-6),
        (1 << 20, 115e-6),
        (4 << 20, 442e-6),
    ),
)
"""Two ranks on two cores of one host (AMD EPYC) with MPICH 5.0.2 and Debian's Python 3.11, by
``kvstore_mpi/calibrate.py``: rounded medians of seven jobs.

The machine's virtual cores changed their places now and then; these jobs ran while they were near each
other. While they are not, MPI takes twice as long (27.9 us for 64 KB, 282 for 1 MB) and a sum in shared
memory hardly longer, so that it is taken only where it is faster at either time. What 16 MB took, 2.49 ms,
is left out: in ``benchmarks/allreduce.py`` they take 1.59, in proportion as long as 4 MB."""

OPEN_MPI = Profile(
    ranks=2,
    cached=Model(3.6e-6, 9.2e-11, 1.3e-11, delta=6.6e-12, barrier=5.4e-7, overhead=4.3e-7),
    memory=Model(3.6e-6, 9.8e-11, 3.1e-11, delta=1.4e-11, barrier=5.4e-7, overhead=4.3e-7),
    library=(
        (4 << 10, 1.8e-6),
        (16 << 10, 6.7e-6),
        (32 << 10, 8.1e-6),
        (64 << 10, 11.2e-6),
        (256 << 10, 29.2e-6),
        (1 << 20, 91e-6),
        (4 << 20, 278e-6),
    ),
)
"""The same with Open MPI 5.0.11, of six jobs."""

_BUILT_IN = {"Open MPI": OPEN_MPI}


def built_in(library: str) -> Profile:
    """Return the profile that counts where there is no other: of a library that is not known, MPICH's.

    Args:
        library: What the MPI library says of itself, its name first.
    """
    return next((known for name, known in _BUILT_IN.items() if library.startswith(name)), MPICH)
