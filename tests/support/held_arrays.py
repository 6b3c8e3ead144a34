"""Arrays of MXNet that nobody can use until a test lets them go.

What is queued meanwhile can neither run nor fail while the call that queues it is still on its way.
"""

from __future__ import annotations

import contextlib
import queue
from typing import TYPE_CHECKING, Any

from kvstore_mpi.adapters.mxnet.bridge import engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def hold(array: Any) -> Callable[[], None]:
    """Keep everything that uses an array waiting; return the function that lets it go."""
    started: queue.SimpleQueue[Any] = queue.SimpleQueue()
    errors: list[BaseException] = []
    engine.push_async(started.put, mutable=[array], on_error=errors.append)
    return lambda: started.get(timeout=60)(None)


@contextlib.contextmanager
def held(array: Any) -> Iterator[None]:
    """Keep everything that uses an array waiting until the end of the ``with`` block."""
    let_go = hold(array)
    try:
        yield
    finally:
        let_go()
