"""What the launcher and its agent on another host say to each other, over one pair of pipes. Pure.

Each message is a length and a MessagePack map. Both ends are of one version: the agent is started from the
same files, and says which version they are of before anything else.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = struct.Struct("<I")
MOST_BYTES = 64 << 20
"""A longer message is none of ours: something else has written to the pipe."""

GREETING = b"\0kvstore_mpi's agent speaks\0"
"""What the agent says first: a shell that greets whoever logs in may have said something before."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Any message."""


# --- from the launcher -----------------------------------------------------------------------------


class Open(Message, frozen=True):
    """Begin: make the private directory, and know when the launcher must be taken for dead.

    Attributes:
        directory: Path of the private directory, as on the launcher's host.
        folder: In which the job's processes are started.
        silence: Seconds without a word after which there is no launcher any more.
        grace: Seconds that ranks have to save then.
    """

    directory: str
    folder: str
    silence: float
    grace: float


class Put(Message, frozen=True):
    """Make a file in the private directory."""

    name: str
    content: bytes


class Listen(Message, frozen=True):
    """Make a pipe from which the agent reads; what comes is sent as ``Data`` of this number."""

    number: int
    name: str
    lasting: bool


class Talk(Message, frozen=True):
    """Make a pipe to which the agent writes what comes as ``Data`` of this number."""

    number: int
    name: str


class Spawn(Message, frozen=True):
    """Start a process; what it says is sent as ``Data`` of these numbers."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    out: int
    err: int


class Signal(Message, frozen=True):
    """Send a signal to a process that was started."""

    name: str
    signum: int


class SignalRank(Message, frozen=True):
    """Send a signal to a rank and its group."""

    pid: int
    signum: int


class Watch(Message, frozen=True):
    """Tell by ``End`` of this number when a process has ended."""

    number: int
    pid: int


class Settle(Message, frozen=True):
    """Tell by ``End`` of this number when all has been sent that processes have said so far."""

    number: int


class Pack(Message, frozen=True):
    """Send a folder of the private directory as ``Data`` of this number: a tar archive, then ``End``."""

    number: int
    folder: str


class Knock(Message, frozen=True):
    """Tell by ``Knocked`` which of these addresses cannot be reached from there."""

    addresses: list[str]


# --- to the launcher -------------------------------------------------------------------------------


class Here(Message, frozen=True):
    """The agent runs.

    Attributes:
        version: Of the package.
        host: What the host calls itself.
        cores: Of the host.
        networks: Device, address and length of the prefix of each.
    """

    version: str
    host: str
    cores: int
    networks: list[tuple[str, str, int]]


class Opened(Message, frozen=True):
    """The private directory is there, or why it is not."""

    problem: str = ""


class Knocked(Message, frozen=True):
    """Why addresses cannot be reached; those that can are not in it."""

    problems: dict[str, str]


class File(Message, frozen=True):
    """A record that a rank has left."""

    name: str
    content: bytes


class End(Message, frozen=True):
    """Nothing more comes under this number."""

    number: int


class Gone(Message, frozen=True):
    """A process that was started has ended."""

    name: str
    code: int
    pid: int


class Asked(Message, frozen=True):
    """The host asks by a signal for the end of the job: it shuts down, or its workload manager ends it."""

    signum: int


# --- both ways -------------------------------------------------------------------------------------


class Alive(Message, frozen=True):
    """The other end is there, and has nothing to say; the agent answers with the same."""


class Data(Message, frozen=True):
    """What was read from a pipe, or is to be written to it."""

    number: int
    content: bytes


Any = (
    Open | Put | Listen | Talk | Spawn | Signal | SignalRank | Watch | Settle | Pack | Knock | Alive
    | Here | Opened | Knocked | File | End | Gone | Asked | Data
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Any)


def encode(message: Message) -> bytes:
    """Return a message as it travels."""
    content = _encoder.encode(message)
    return _LENGTH.pack(len(content)) + content


class Stream:
    """Takes the pieces that a pipe delivers apart into messages.

    Attributes:
        greeted: The other end has begun to speak.
    """

    def __init__(self, *, greeted: bool = True) -> None:
        """Nothing has come yet; before the other end has greeted, what comes is no message."""
        self._rest = bytearray()
        self.greeted = greeted

    @property
    def strange(self) -> str:
        """What has come instead of a greeting."""
        return "" if self.greeted else bytes(self._rest[:200]).decode(errors="replace").strip()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages that are whole now.

        Raises:
            ValueError: This is no message; whatever else writes to the pipe has begun with what is shown.
        """
        self._rest += data
        if not self.greeted:
            at = self._rest.find(GREETING)
            if at < 0:
                return
            self.greeted = True
            del self._rest[: at + len(GREETING)]
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > MOST_BYTES:
                raise ValueError(bytes(self._rest[:200]).decode(errors="replace"))
            end = _LENGTH.size + length
            if len(self._rest) < end:
                return
            content = bytes(self._rest[_LENGTH.size : end])
            del self._rest[:end]
            try:
                yield _decoder.decode(content)
            except msgspec.DecodeError as error:
                raise ValueError(str(error)) from error
