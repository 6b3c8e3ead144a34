"""By which profile the ranks of a client choose how to sum: rank 0's file, a measured or the built-in one.

All must go by the same, or they would wait for each other in different collectives.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.tensor_collectives.calibration import measure
from kvstore_mpi.tensor_collectives.profile import MEASURE, Profile, built_in, decode, encode

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Communicator

log = logging.getLogger("kvstore_mpi.collectives")


def agree_on_profile(path: str, communicator: Communicator) -> Profile:
    """Return the profile by which all ranks of a client choose how to sum: what rank 0 says.

    Args:
        path: Its file, ``measure`` for one that is measured now, or nothing for the built-in one.
        communicator: The ranks of the client.

    Raises:
        ConfigurationError: Rank 0 cannot read its file; raised on all ranks.
    """
    text, problem = b"", None
    if communicator.rank == 0:
        try:
            text = _profile_text(path, communicator)
        except (OSError, ConfigurationError) as error:
            problem = error
    text = communicator.broadcast_bytes(text, 0)
    if problem is not None:
        raise ConfigurationError(f"the collective profile cannot be used: {problem}") from problem
    if not text:
        raise ConfigurationError(
            "rank 0 of this client cannot use its collective profile; its error says why"
        )
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
