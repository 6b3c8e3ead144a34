"""A transport that counts bytes, and calls that wait for the end of their operation."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kvstore_mpi.transport.framing import head

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Counted:
    """A transport that counts what it sends and receives, in the bytes of a stream."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.sent = 0
        self.received = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def send(self, link: Any, frames: Sequence[Any]) -> None:
        """Send, and count."""
        self.sent += head(frames)[1]
        self._transport.send(link, frames)

    def receive(self, timeout: float | None) -> list[Any]:
        """Receive, and count."""
        came: list[Any] = self._transport.receive(timeout)
        self.received += sum(head(frames)[1] for _, frames in came)
        return came


def finished(call: Callable[..., None], *args: Any, **named: Any) -> None:
    """Make an asynchronous call and wait for its end."""
    ended = threading.Event()
    errors: list[BaseException | None] = []

    def done(error: BaseException | None) -> None:
        errors.append(error)
        ended.set()

    call(*args, done=done, **named)
    assert ended.wait(20)
    assert errors == [None]
