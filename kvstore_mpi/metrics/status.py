"""What a process tells the launcher about itself, about once a second: one line of JSON. Pure."""

from __future__ import annotations

import msgspec

LINE_BYTES = 4096
"""A line must not be longer: what Linux writes to a pipe at once does not mix with what others write."""

MOST_WAITS = 4
"""Those that have waited for longest are told; the others have most often the same reason."""

TEXT_CHARACTERS = 300
"""Of an error, and of what a wait is about."""

MOST_AWAITED = 16


class Wait(msgspec.Struct, frozen=True):
    """Something that a process waits for.

    Attributes:
        what: ``pushpull``, ``push``, ``pull`` or ``init`` of a key, ``round``, ``collective``, or ``call``
            for a call of the user's that waits, as for a barrier.
        text: The same in words, for people.
        seconds: For how long.
        limit: After how many it is an error; 0 where nothing ends it.
        awaited: Names of the processes that have to do something.
        key: The key that it is about, if it is about one.
        step: The number of the push, of the round or of the barrier.
    """

    what: str
    text: str
    seconds: float
    limit: float
    awaited: list[str]
    key: str = ""
    step: int = 0


class Status(msgspec.Struct, frozen=True):
    """One process, at one moment.

    Attributes:
        name: As in the launcher's output, for example ``client0.1`` or ``server0``.
        incarnation: How often it has been restarted.
        host: Where it runs.
        pid: Its process number there.
        counters: See ``counters.COUNTERS``.
        waits: What it waits for, the longest first.
        error: What has ended its communication, if anything has.
        threads: Names of its threads by the numbers that stacks give them, in hexadecimal.
    """

    name: str
    incarnation: int
    host: str
    pid: int
    counters: dict[str, float] = {}
    waits: list[Wait] = []
    error: str = ""
    threads: dict[str, str] = {}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Status)


def encode(status: Status) -> bytes:
    """Return the line of a status, its end included; what makes it too long is left out."""
    waits = sorted(status.waits, key=lambda wait: -wait.seconds)[:MOST_WAITS]
    short = [
        msgspec.structs.replace(
            wait, text=wait.text[:TEXT_CHARACTERS], key=wait.key[:80], awaited=wait.awaited[:MOST_AWAITED]
        )
        for wait in waits
    ]
    status = msgspec.structs.replace(status, waits=short, error=status.error[:TEXT_CHARACTERS])
    line = _encoder.encode(status) + b"\n"
    while len(line) > LINE_BYTES and (status.waits or status.threads):
        status = msgspec.structs.replace(status, waits=status.waits[:-1], threads={})
        line = _encoder.encode(status) + b"\n"
    return line


def decode(line: bytes) -> Status | None:
    """Return the status that a line tells, or ``None`` if it tells none."""
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None
