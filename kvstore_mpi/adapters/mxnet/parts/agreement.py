"""Whether the ranks of a worker compute the same step: rank 0 tells the others, in a message of 64 bytes.

It leaves before anything else of the step, and comes before anything else is waited for, so that a rank
whose script does something else is an error at once. This file must not know what a step computes.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from kvstore_mpi.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.parts.segments import Form
    from kvstore_mpi.comm.links import Links

_HALF = 32
"""Bytes for what is computed, and as many for the values of the batch."""


class Agreement:
    """Compares the steps of a worker's ranks."""

    def __init__(self, links: Links, describe: Callable[[Sequence[Form]], bytes]) -> None:
        """Compare nothing yet.

        Args:
            links: To the other ranks.
            describe: Returns what is equal where nets, plans and optimizers are, and these forms.
        """
        self._links = links
        self._describe = describe
        self._described: dict[tuple[Form, ...], bytes] = {}
        self._steps = 0

    def begin(
        self, forms: Sequence[Form], values: Sequence[NDArray], batch_size: int | None = None
    ) -> Callable[[], None]:
        """Begin to compare a step; all ranks must call this. Forms that are new are compared at once.

        Args:
            forms: Those of the batch, and of what is computed of it.
            values: The arrays of the batch.
            batch_size: The user's divisor.

        Returns:
            What waits for rank 0's word, and may be called again.

        Raises:
            MismatchError: Rank 0 does something else; so does what is returned.
            PeerError: It does nothing.
        """
        key = tuple(forms)
        is_new = key not in self._described
        if is_new:
            self._described[key] = self._describe(key)
        self._steps += 1
        what = blake2b(self._described[key] + repr(batch_size).encode(), digest_size=_HALF)
        of_values = blake2b(digest_size=_HALF)
        # Ever more rarely, for it costs a copy; and by a rule that ranks whose steps are equal go by alike.
        if is_new or self._steps & (self._steps - 1) == 0:
            for array in values:
                of_values.update(array.asnumpy())
        check = _compare(self._links, what.digest() + of_values.digest())
        if is_new:
            check()
        return check


def _compare(links: Links, own: bytes) -> Callable[[], None]:
    first = np.frombuffer(bytearray(own), np.uint8)
    futures = links.share(first, 0)

    def check() -> None:
        for future in futures if links.rank else ():
            links.wait(future, lambda: "rank 0's word on this step")
        who = f"ranks 0 and {links.rank} of this worker have"
        if first[:_HALF].tobytes() != own[:_HALF]:
            raise MismatchError(
                f"{who} different nets, plans, optimizers or batches: make the same net and the same "
                "trainer on all ranks, and give all of them the same batch and batch_size"
            )
        if first[_HALF:].tobytes() != own[_HALF:]:
            raise MismatchError(
                f"{who} batches of one shape with different values: let all ranks of a worker read, "
                "shuffle and augment alike, as with np.random.seed before a DataLoader with shuffle=True"
            )

    return check
