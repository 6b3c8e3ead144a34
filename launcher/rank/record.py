"""The name of a rank and the record of its end, which ranks write and the launcher reads. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

CAUSE = "cause"
"""Name of the file that tells the ranks that the job ends, and what has failed if anything has."""


BRIEF_CHARACTERS = 100
"""Of an error's text in a brief record: JSON in JSON takes up to 13 bytes for each."""


def named(name: str, incarnation: int) -> str:
    """Return the name of an incarnation of a process: ``client0``, after a restart ``client0~1``."""
    return f"{name}~{incarnation}" if incarnation else name


class RankName(NamedTuple):
    """One rank of one client; prints as the log prefixes do, e.g. ``client0.1``.

    ``incarnation`` counts the restarts of the client; after the first one it is ``client0.1~1``.
    """

    client: int
    rank: int
    incarnation: int = 0

    def __str__(self) -> str:
        """Return the name that logs and messages use."""
        return f"client{self.stem}"

    @property
    def stem(self) -> str:
        """The start of the names of this rank's files."""
        return named(f"{self.client}.{self.rank}", self.incarnation)


@dataclass(frozen=True)
class ExitRecord:
    """How a rank has ended.

    Attributes:
        client: Number of its client.
        rank: Its number in the client.
        host: Where it ran.
        pid: Its process number there.
        code: Its exit code.
        error: Class of the exception that ended it, or nothing.
        text: Text of that exception.
        traceback: The last lines of the traceback.
        wall: Time of day, in seconds.
        monotonic: Time since the host's start, in seconds; all processes of a host share it.
    """

    client: int
    rank: int
    host: str
    pid: int
    code: int
    error: str = ""
    text: str = ""
    traceback: list[str] = field(default_factory=list)
    wall: float = 0.0
    monotonic: float = 0.0

    def write(self) -> bytes:
        """Return the content of the record's file."""
        return json.dumps(asdict(self)).encode()

    def brief(self) -> ExitRecord:
        """Return the record without what makes it long, so that it fits a line of the pipe of events."""
        return replace(self, text=self.text[:BRIEF_CHARACTERS], traceback=[])

    @classmethod
    def read(cls, content: bytes | None) -> ExitRecord | None:
        """Read the content of a record's file; a rank that has left none has no record."""
        return None if content is None else cls(**json.loads(content))

    @classmethod
    def sent(cls, said: Mapping[str, object]) -> ExitRecord | None:
        """Return the record that a rank has sent with its end, for want of room on the disk."""
        return cls.read(str(said["record"]).encode()) if "record" in said else None


def record_name(name: RankName) -> str:
    """Return the name of the file in which a rank leaves the record of its end."""
    return f"{name.stem}.exit.json"
