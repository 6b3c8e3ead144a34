"""How two processes of one job prove to each other who they are, and derive the keys of a session.

::

    connector                                       acceptor
       HELLO   {name, incarnation, nonce}        ->              signed with the job's secret
               {name, incarnation, nonce, answers, session}  <-  WELCOME, signed with the job's secret
       any frame of the session                  ->              signed with the connector's key

WELCOME repeats the nonce of the HELLO, so an old one is of no use; the first frame of the session proves
the same of the connector. Whoever gets a HELLO that he cannot read answers REFUSED, which nobody can
verify and which only ends an attempt that would fail anyway, with a better text.

This file must not know of links, time or the state of sessions.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.records import NodeId
from kvstore_mpi.wire.codec import BadFrameError, Kind, body_of, seal

if TYPE_CHECKING:
    from collections.abc import Callable

_Body = TypeVar("_Body")

NONCE_BYTES = 16
"""Two processes draw the same 128 random bits once in about 2**64 handshakes."""

SECRET_BYTES = 32
"""Length of the job's secret: that of a SHA-256; a longer one would not make the MAC stronger."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who connects: node name, how often it has been restarted, and a fresh nonce."""

    # The incarnation is signed with the rest: were it sent later, in the session, a process that was
    # replaced and wakes up again could first end the session of its successor, which has the same name.
    name: str
    incarnation: int
    nonce: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """Who answers, to which nonce, and under which number the session runs from now on."""

    # ``answers`` makes a recorded WELCOME useless. The nonce of its own makes a recorded HELLO useless,
    # too: the keys depend on it, so whoever replays a HELLO cannot sign the first frame without the secret.
    name: str
    incarnation: int
    nonce: bytes
    answers: bytes
    session: int


class Keys(NamedTuple):
    """The keys of one session: a key for each direction, so that no frame can be sent back as an answer."""

    connector: bytes
    acceptor: bytes


_encoder = msgspec.msgpack.Encoder()
_hello_decoder = msgspec.msgpack.Decoder(Hello)
_welcome_decoder = msgspec.msgpack.Decoder(Welcome)


class Identity:
    """This process in handshakes: its name, its run, the job's secret and a source of random bytes."""

    def __init__(
        self, node: NodeId, incarnation: int, secret: bytes, random: Callable[[int], bytes]
    ) -> None:
        """Check the secret.

        Args:
            node: This process.
            incarnation: Which run of the process this is: how often it has been restarted.
            secret: The job's secret, 32 bytes.
            random: Returns that many unpredictable bytes, as ``os.urandom`` does.

        Raises:
            ConfigurationError: The secret is not one.
        """
        # BLAKE2s takes any key up to 32 bytes, an empty one as well. A secret cut short by a full disk
        # would be accepted, and be as easy to guess as it is short.
        if len(secret) != SECRET_BYTES:
            raise ConfigurationError(
                f"the secret of the job must have {SECRET_BYTES} bytes, but {node} was given "
                f"{len(secret)}; the launcher writes it into the job file"
            )
        self.node = node
        self.secret = secret
        self._incarnation = incarnation
        self._random = random

    def hello(self) -> Hello:
        """Make a new HELLO."""
        return Hello(str(self.node), self._incarnation, self._random(NONCE_BYTES))

    def welcome(self, hello: Hello) -> Welcome:
        """Answer a HELLO with a new session number, which is never 0."""
        # Random, so that processes need not agree on numbers, and sessions of a process's incarnations do
        # not meet. Frames of handshakes carry 0, which must find no session.
        session = int.from_bytes(self._random(8), "little") or 1
        nonce = self._random(NONCE_BYTES)
        return Welcome(str(self.node), self._incarnation, nonce, hello.nonce, session)

    def seal(self, body: Hello | Welcome) -> bytes:
        """Make the only frame of a HELLO or WELCOME."""
        kind = Kind.HELLO if isinstance(body, Hello) else Kind.WELCOME
        return seal(self.secret, kind, _encoder.encode(body))

    def refusal(self) -> bytes:
        """Make the only frame of a REFUSED."""
        # Signed with our secret only because every frame has a signature; nobody checks this one.
        return seal(self.secret, Kind.REFUSED)

    def keys(self, hello: Hello, welcome: Welcome) -> Keys:
        """Derive the keys of a session; both nonces go in, so neither side alone can repeat one."""
        nonces = hello.nonce + welcome.nonce
        # As the expand step of HKDF (RFC 5869): the secret is random and of full length, so there is
        # nothing to extract, and the word before the nonces keeps the two keys apart. With one key for both
        # directions a stranger could send a frame back to its sender, who would take it for the peer's.
        return Keys(
            hmac.digest(self.secret, b"connector" + nonces, "sha256"),
            hmac.digest(self.secret, b"acceptor" + nonces, "sha256"),
        )


def read_hello(first: memoryview) -> tuple[NodeId, Hello]:
    """Read the frame of a HELLO whose MAC is right, and the name in it.

    Raises:
        BadFrameError: It is malformed.
    """
    hello = _decode(_hello_decoder, first)
    return _parse(hello.name, hello.nonce), hello


def read_welcome(first: memoryview) -> tuple[NodeId, Welcome]:
    """Read the frame of a WELCOME whose MAC is right, and the name in it.

    Raises:
        BadFrameError: It is malformed.
    """
    welcome = _decode(_welcome_decoder, first)
    return _parse(welcome.name, welcome.nonce), welcome


def _parse(name: str, nonce: bytes) -> NodeId:
    # The signature is right, so this is another program of ours at worst. It still must not raise: these
    # come from processes that have not been let in, and the I/O thread would end with the job.
    try:
        node = NodeId.parse(name)
    except ValueError as error:
        raise BadFrameError("body", str(error)) from error
    if len(nonce) != NONCE_BYTES:
        raise BadFrameError("body", f"the nonce of {name} has {len(nonce)} bytes, not {NONCE_BYTES}")
    return node


def _decode(decoder: msgspec.msgpack.Decoder[_Body], first: memoryview) -> _Body:
    try:
        return decoder.decode(body_of(first))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrameError("body", f"the body of a handshake cannot be decoded: {error}") from error
