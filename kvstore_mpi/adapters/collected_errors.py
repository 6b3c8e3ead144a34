"""What has gone wrong in operations of a store, for the user's next call of it.

Operations are queued and fail later, on another thread, where nobody can catch what they raise.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import KVWorker


class CollectedErrors:
    """The errors of one store's operations, and of its worker."""

    def __init__(self, worker: KVWorker) -> None:
        """Start without errors, in the process whose store it is."""
        self._worker = worker
        self._process = os.getpid()
        self._errors: list[BaseException] = []

    def add(self, error: BaseException) -> None:
        """Note the error that an operation has ended with; any thread may."""
        self._errors.append(error)

    def check(self) -> None:
        """Raise what has gone wrong first.

        Raises:
            UsageError: This is a forked child; the store belongs to its parent.
            BaseException: The error that an earlier operation, or the worker, ended with.
        """
        if os.getpid() != self._process:
            raise UsageError(
                f"this store belongs to process {self._process} and cannot be used in its forked child "
                f"{os.getpid()}; use it in the parent only, or start the child with the spawn method"
            )
        error = self._errors[0] if self._errors else self._worker.failure()
        if error is not None:
            # Without where it was raised before: with each call that raises it, that would grow.
            raise error.with_traceback(None)
