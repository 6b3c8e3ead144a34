"""Sessions, frames and handshakes: every message arrives once, in order, from who says so."""

from __future__ import annotations

from mutants.table import Mutant

_SESSION = ("unit/test_session.py", "property/test_session.py")
_CODEC = ("unit/test_codec.py",)
_ENDPOINT = ("unit/test_endpoint.py",)
_OPENINGS = ("unit/test_openings.py",)
_IN = "kvstore_mpi/wire/"

MUTANTS = [
    Mutant(
        "every pass asks all peers whether something is due",
        _IN + "endpoint.py",
        "max(earliest, now + TICK_SECONDS * len(left))",
        "earliest",
        _ENDPOINT,
    ),
    Mutant(
        "a repeated frame is delivered again",
        _IN + "session.py",
        "        if header.counter < self._expected:",
        "        if header.counter < self._expected - 1:",
        _SESSION,
    ),
    Mutant(
        "a gap is not complained about",
        _IN + "session.py",
        "                self._nack_due = True",
        "                self._nack_due = False",
        _SESSION,
    ),
    Mutant(
        "each frame behind a gap is complained about",
        _IN + "session.py",
        "if self._nacked != self._expected:",
        "if True:",
        _SESSION,
    ),
    Mutant(
        "an old complaint is obeyed again",
        _IN + "session.py",
        "if wanted > self._repeated_from or seen > self._repeated_at:",
        "if True:",
        _SESSION,
    ),
    Mutant(
        "a repetition that was lost is not repeated",
        _IN + "session.py",
        "if wanted > self._repeated_from or seen > self._repeated_at:",
        "if wanted > self._repeated_from:",
        _SESSION,
    ),
    Mutant(
        "a probe does not find the gap at the end",
        _IN + "session.py",
        "gap = value >= self._expected",
        "gap = value > self._expected",
        _SESSION,
    ),
    Mutant(
        "an old control frame counts",
        _IN + "session.py",
        "if header.counter <= self._control_received:",
        "if header.counter < self._control_received:",
        _SESSION,
    ),
    Mutant(
        "what is acknowledged is still under way",
        _IN + "session.py",
        "self.bytes_in_flight -= queue.popleft().payload_bytes",
        "queue.popleft()",
        _SESSION,
    ),
    Mutant(
        "acknowledged before it has arrived",
        _IN + "session.py",
        "while queue and queue[0].counter <= ack:",
        "while queue and queue[0].counter <= ack + 1:",
        _SESSION,
    ),
    Mutant(
        "an acknowledgement of what was never sent counts",
        _IN + "session.py",
        "ack = min(ack, self._highest_sent)",
        "ack = ack",
        _SESSION,
    ),
    Mutant(
        "acknowledgements wait however many bytes have come",
        _IN + "session.py",
        "self._owed_frames >= ACK_FRAMES or self._owed_bytes >= ACK_BYTES or now >= self.ack_deadline",
        "self._owed_frames >= ACK_FRAMES or now >= self.ack_deadline",
        _SESSION,
    ),
    Mutant(
        "a frame that was sent again is not counted",
        _IN + "session.py",
        "            self.retransmitted += 1",
        "            self.retransmitted += 0",
        _SESSION,
    ),
    Mutant(
        "no limit of frames on the wire",
        _IN + "session.py",
        "islice(queue, self._on_wire, MAX_IN_FLIGHT)",
        "islice(queue, self._on_wire, None)",
        _SESSION,
    ),
    Mutant(
        "signatures are not looked at",
        _IN + "codec.py",
        "return hmac.compare_digest(_mac(key, first[:-MAC_BYTES]), first[-MAC_BYTES:])",
        "return True",
        _CODEC,
    ),
    Mutant(
        "the signature is not keyed",
        _IN + "codec.py",
        "return hashlib.blake2s(signed, key=key, digest_size=MAC_BYTES).digest()",
        "return hashlib.blake2s(signed, digest_size=MAC_BYTES).digest()",
        _CODEC,
    ),
    Mutant(
        "the number of payloads is not checked",
        _IN + "codec.py",
        "if header.payloads != len(frames) - 1 or header.payload_bytes != _payload_bytes(frames):",
        "if header.payload_bytes != _payload_bytes(frames):",
        _CODEC,
    ),
    Mutant(
        "the sizes of payloads are not checked",
        _IN + "codec.py",
        "if header.payloads != len(frames) - 1 or header.payload_bytes != _payload_bytes(frames):",
        "if header.payloads != len(frames) - 1:",
        _CODEC,
    ),
    Mutant(
        "a body may be too large to send",
        _IN + "codec.py",
        "    if len(body) > MAX_BODY:",
        "    if len(body) > MAX_BODY + 1:",
        _CODEC,
    ),
    Mutant(
        "frames of a session need no signature",
        _IN + "endpoint.py",
        "if not codec.is_signed(record.session.receive_key, frames[0]):",
        "if False:",
        _ENDPOINT,
    ),
    Mutant(
        "an old run of a peer replaces the new one",
        _IN + "openings.py",
        "if current is not None and hello.incarnation < current.incarnation:",
        "if current is not None and hello.incarnation < 0:",
        _OPENINGS,
    ),
    Mutant(
        "a replayed welcome is accepted",
        _IN + "openings.py",
        "if record is None or welcome.answers != record.hello.nonce:",
        "if record is None:",
        _OPENINGS,
    ),
    Mutant(
        "whoever answers is whom we wanted",
        _IN + "openings.py",
        "        if node != record.node:",
        "        if False:",
        _OPENINGS,
    ),
    Mutant(
        "a new session is not monitored",
        _IN + "endpoint.py",
        "            record.monitored = earlier.monitored",
        "            record.monitored = False",
        ("unit/test_handshake.py",),
    ),
    Mutant(
        "any number of strangers may knock",
        _IN + "openings.py",
        "if len(self.half_open) > MAX_HALF_OPEN else None",
        "if len(self.half_open) > 2 * MAX_HALF_OPEN else None",
        _OPENINGS,
    ),
    Mutant(
        "the own sleep is the peers' silence",
        _IN + "endpoint.py",
        "if absence > 2 * self._heartbeat:",
        "if absence > 2e9 * self._heartbeat:",
        _ENDPOINT,
    ),
    Mutant(
        "both directions have one key",
        _IN + "handshake.py",
        'hmac.digest(self.secret, b"acceptor" + nonces, "sha256"),',
        'hmac.digest(self.secret, b"connector" + nonces, "sha256"),',
        _ENDPOINT,
    ),
    Mutant(
        "keys do not depend on the acceptor's nonce",
        _IN + "handshake.py",
        "nonces = hello.nonce + welcome.nonce",
        "nonces = hello.nonce",
        ("unit/test_handshake.py",),
    ),
    Mutant(
        "slices of different rounds are merged",
        "kvstore_mpi/values/dense.py",
        "if key_id == entry[0] and hi == entry[1] and tuple(rest) == entry[3:] and hi < entry[2]:",
        "if key_id == entry[0] and hi == entry[1] and hi < entry[2]:",
        ("unit/test_runs.py",),
    ),
]
