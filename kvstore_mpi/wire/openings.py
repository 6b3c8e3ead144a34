"""Sessions that are being opened: the handshakes of one process that are under way, on either side.

The side that connects repeats its HELLO until the other answers WELCOME; then it may send. The side that
answered has a *half-open* session until a first frame under the session's keys has come.

This file must not know what is sent in a session, or what becomes of it once it is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import AuthenticationError, DeadlineError, FrameError, PeerError
from kvstore_mpi.wire import codec
from kvstore_mpi.wire.codec import BadFrameError, Header, Kind, WrongVersionError
from kvstore_mpi.wire.events import Failed
from kvstore_mpi.wire.handshake import Identity, read_hello, read_welcome
from kvstore_mpi.wire.peer import Peer
from kvstore_mpi.wire.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvstore_mpi.interfaces import Buffer, Link
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.wire.handshake import Hello

    Wire = list[Buffer]

HELLO_INTERVAL = 0.5
"""Seconds between repetitions of a HELLO: the first ones may come before anybody listens."""

MAX_HALF_OPEN = 1024
"""Sessions that wait for their first frame. Only who knows the secret, or replays, can make one; a job
larger than this would have to join within one round trip."""


class Openings:
    """The handshakes of one process.

    Attributes:
        connecting: Those in which this process has said HELLO, by the link on which it did.
        half_open: Those in which it has answered WELCOME, by the nonce of the HELLO; the oldest first.
        replies: Frames of handshakes that are to be sent.
    """

    def __init__(self, identity: Identity, *, connect_timeout: float, heartbeat: float) -> None:
        """Start without any.

        Args:
            identity: This process, as it proves itself.
            connect_timeout: Seconds for which a HELLO is repeated, and a half-open session kept.
            heartbeat: Of the sessions: seconds between signs of life.
        """
        # By link, because a REFUSED and a frame of another version say nothing else of which attempt they
        # answer.
        self.connecting: dict[Link, Peer] = {}
        # By nonce and not by peer: a recorded HELLO and the real one of the same process stand side by side
        # until one of them is proven.
        self.half_open: dict[bytes, Peer] = {}
        self.replies: list[tuple[Link, Wire]] = []
        self._identity = identity
        self._connect_timeout = connect_timeout
        self._heartbeat = heartbeat

    @property
    def surplus(self) -> Peer | None:
        """The oldest half-open session, if there are more than ``MAX_HALF_OPEN``."""
        # The oldest goes and not the newest: a stranger who replays recorded HELLOs never finishes one,
        # while a process of the job finishes within a round trip, so that the old ones are the stranger's.
        return next(iter(self.half_open.values())) if len(self.half_open) > MAX_HALF_OPEN else None

    def begin(self, peer: NodeId, link: Link, now: float) -> Peer:
        """Start to connect to the peer that listens at the other end of a link."""
        # One nonce for all repetitions. With a fresh one each, a WELCOME that takes longer than
        # HELLO_INTERVAL would always answer a nonce that is over, and the two would never meet.
        hello = self._identity.hello()
        record = Peer(
            node=peer,
            link=link,
            session=Session(self._heartbeat, now),
            hello=hello,
            deadline=now + self._connect_timeout,
            greeting=self._identity.seal(hello),
            connecting=True,
        )
        self.connecting[link] = record
        return record

    def end(self, record: Peer) -> None:
        """Forget the handshake of a session, if it is under way."""
        if record.connecting:
            del self.connecting[record.link]
        if record.half_open:
            del self.half_open[record.hello.nonce]

    # --- frames ---

    def receive(
        self, link: Link, header: Header, first: memoryview, peers: Mapping[NodeId, Peer], now: float
    ) -> Peer | Failed | None:
        """Take a frame that belongs to no session.

        Args:
            link: Where it came.
            header: Its fields.
            first: The frame.
            peers: The sessions that are open or being opened by this process, by peer.
            now: The time.

        Returns:
            A session whose number is in use from now on; why connecting has failed; or nothing.

        Raises:
            BadFrameError: The frame is nothing of a handshake with this process.
        """
        signed = codec.is_signed(self._identity.secret, first)
        # The signature of REFUSED is not asked for: the other side does not have our secret. A stranger on
        # our link could forge one, and end an attempt; as well he could drop our HELLO. It counts only
        # while this process connects over that link, never against a session that is open.
        if header.kind == Kind.REFUSED and link in self.connecting:
            return self._refused(self.connecting[link])
        if header.kind == Kind.HELLO and not signed:
            # Silence would let the other side wait for its whole timeout to hear that nobody answers.
            self.replies.append((link, [self._identity.refusal()]))
            raise BadFrameError("secret", "a HELLO of another job")
        if header.kind == Kind.HELLO:
            return self._hello(link, first, peers, now)
        if header.kind == Kind.WELCOME and signed:
            return self._welcome(link, first, now)
        raise BadFrameError("session", "a frame of a session that has ended, or never was")

    def proves(self, header: Header, first: memoryview) -> bool:
        """Tell whether a frame is the WELCOME to a HELLO that has not been answered yet."""
        if header.kind != Kind.WELCOME or not codec.is_signed(self._identity.secret, first):
            return False
        try:
            _, welcome = read_welcome(first)
        except BadFrameError:
            return False
        return any(welcome.answers == each.hello.nonce for each in self.connecting.values())

    def _hello(
        self, link: Link, first: memoryview, peers: Mapping[NodeId, Peer], now: float
    ) -> Peer | None:
        node, hello = read_hello(first)
        current = peers.get(node)
        if current is not None and current.hello.nonce == hello.nonce:
            return None  # a late repetition: the peer has our WELCOME, for its session is up
        if current is not None and hello.incarnation < current.incarnation:
            return None  # of an incarnation of the peer that is over
        record = self.half_open.get(hello.nonce)
        begun = None
        # A HELLO only makes a session *beside* the one that the peer has: it may be a replay, and whoever
        # recorded it must not be able to cut the peer off. The first frame of the session decides.
        if record is None:
            record = begun = self._half_opened(node, link, hello, now)
        # A repetition gets the same WELCOME, so that both sides derive the same keys whichever arrives.
        record.link = link
        self.replies.append((link, [record.greeting]))
        return begun

    def _half_opened(self, node: NodeId, link: Link, hello: Hello, now: float) -> Peer:
        welcome = self._identity.welcome(hello)
        keys = self._identity.keys(hello, welcome)
        session = Session(self._heartbeat, now)
        session.open(welcome.session, keys.acceptor, keys.connector, now)
        # Kept as long as the peer repeats its HELLO: forgotten earlier, the next repetition would get
        # another WELCOME, while the peer may be sending under the keys of the first.
        record = Peer(
            node=node,
            link=link,
            session=session,
            hello=hello,
            deadline=now + self._connect_timeout,
            greeting=self._identity.seal(welcome),
            half_open=True,
            incarnation=hello.incarnation,
        )
        self.half_open[hello.nonce] = record
        return record

    def _welcome(self, link: Link, first: memoryview, now: float) -> Peer | Failed | None:
        node, welcome = read_welcome(first)
        record = self.connecting.get(link)
        # Our nonce in it proves that it was made for this HELLO. Without the check a recorded WELCOME would
        # open a session whose keys the acceptor does not have, and everything sent in it would be dropped.
        if record is None or welcome.answers != record.hello.nonce:
            return None  # a late repetition, or a replay
        # It has the secret, so it is a process of this job: without this error the messages for one server
        # would go to another, which would answer that it does not know the keys.
        if node != record.node:
            text = f"whoever listens at the address given for {record.node} is {node}; "
            error = PeerError(text + "an old address, or a port in use by another process")
            return Failed(record.node, error)
        keys = self._identity.keys(record.hello, welcome)
        record.session.open(welcome.session, keys.connector, keys.acceptor, now)
        # The acceptor reports us only after a first frame. A process that has nothing to say yet, such as a
        # server that waits for pushes, would never be reported, and the job would never begin.
        record.session.greet()
        self.end(record)
        record.connecting = False
        record.incarnation = welcome.incarnation
        return record

    def _refused(self, record: Peer) -> Failed:
        text = (
            f"whoever listens at the address given for {record.node} does not know this job's secret, so "
            f"{self._identity.node} cannot join; is it the address of another job?"
        )
        return Failed(record.node, AuthenticationError(text))

    def other_version(self, link: Link, error: WrongVersionError) -> Failed | None:
        """Take a frame of another version of the protocol."""
        record = self.connecting.get(link)
        if record is not None:
            text = f"{self._identity.node} cannot join {record.node}: {error}"
            return Failed(record.node, FrameError(text))
        # Only a HELLO is answered. Were a REFUSED answered as well, two sides of different versions would
        # refuse each other's refusals for ever.
        if error.kind == Kind.HELLO:
            self.replies.append((link, [self._identity.refusal()]))  # it shows our version
        return None

    # --- time ---

    def tick(self, record: Peer, now: float) -> Failed | None:
        """Repeat the HELLO of a session that is being connected, or give up."""
        if now >= record.deadline:
            text = (
                f"{record.node} has not answered {self._identity.node} for {self._connect_timeout:g} s; "
                "check that it runs and that its address can be reached from here"
            )
            return Failed(record.node, DeadlineError(text))
        if now >= record.next_hello:
            record.next_hello = now + HELLO_INTERVAL
            self.replies.append((record.link, [record.greeting]))
        return None
