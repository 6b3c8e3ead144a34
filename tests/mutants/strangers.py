"""What strangers may cost, and what one who holds an mpiexec can do."""

from __future__ import annotations

from mutants.table import Mutant

_ENDPOINT = ("unit/test_endpoint.py",)
_FRAMING = ("property/test_framing.py",)
_RECONNECTION = ("contract/test_transport_reconnection.py",)
_STRANGERS = ("contract/test_transport_strangers.py",)
_MPIEXEC = ("unit/test_launcher_mpiexec.py", "unit/test_launcher_client_exit.py")

MUTANTS = [
    Mutant(
        "a replay proves who sends",
        "kvstore_mpi/wire/endpoint.py",
        "        return session.is_fresh(header) and codec.is_signed(session.receive_key, first)",
        "        return codec.is_signed(session.receive_key, first)",
        _ENDPOINT,
    ),
    Mutant(
        "any frame of a session proves who sends",
        "kvstore_mpi/wire/endpoint.py",
        "        return session.is_fresh(header) and codec.is_signed(session.receive_key, first)",
        "        return session.is_fresh(header)",
        _ENDPOINT,
    ),
    Mutant(
        "a recorded WELCOME proves who sends",
        "kvstore_mpi/wire/openings.py",
        "        return any(welcome.answers == each.hello.nonce for each in self.connecting.values())",
        "        return True",
        _ENDPOINT,
    ),
    Mutant(
        "payloads go to whoever listens where a process has ended",
        "kvstore_mpi/transport/streams.py",
        "            or (len(frames) > 1 and not link.parser.proven)",
        "            or False",
        _RECONNECTION,
    ),
    Mutant(
        "strangers send messages of any size",
        "kvstore_mpi/transport/framing.py",
        "if not self.proven and (len(self._sizes) > 1 or sum(self._sizes) > HANDSHAKE_BYTES):",
        "if False:",
        _FRAMING,
    ),
    Mutant(
        "the place of a stranger's first frame is made whatever its size",
        "kvstore_mpi/transport/framing.py",
        "if not self.proven and sizes[0] > UNPROVEN_BYTES:",
        "if False:",
        _FRAMING,
    ),
    Mutant(
        "strangers may stay for ever",
        "kvstore_mpi/transport/strangers.py",
        "            if until > now:",
        "            if True:",
        _STRANGERS,
    ),
    Mutant(
        "strangers keep others out",
        "kvstore_mpi/transport/strangers.py",
        "return next(iter(self._until)) if len(self._until) >= self._most else None",
        "return None",
        _STRANGERS,
    ),
    Mutant(
        "strangers are read without a limit",
        "kvstore_mpi/transport/streams.py",
        "elif link.strange > strangers.MAX_MESSAGES:",
        "elif False:",
        _STRANGERS,
    ),
    Mutant(
        "whoever cannot connect does not say so",
        "kvstore_mpi/transport/refusals.py",
        "if error != errno.ECONNREFUSED or not reached:",
        "if False:",
        _RECONNECTION,
    ),
    Mutant(
        "whoever is refused by a firewall does not say so",
        "kvstore_mpi/transport/refusals.py",
        "if error != errno.ECONNREFUSED or not reached:",
        "if error != errno.ECONNREFUSED:",
        _RECONNECTION,
    ),
    Mutant(
        "why a process cannot connect stands in its own log alone",
        "launcher/outcome/report.py",
        "    if not said:",
        "    if said:",
        ("unit/test_launcher_mpi.py",),
    ),
    Mutant(
        "who explains himself is explained by others",
        "launcher/outcome/report.py",
        "    if cause is None or not cause.is_secondary:",
        "    if cause is None:",
        ("unit/test_launcher_mpi.py",),
    ),
    Mutant(
        "a peer that has ended counts as a network that does not lead there",
        "kvstore_mpi/transport/refusals.py",
        "if error != errno.ECONNREFUSED or not reached:",
        "if True:",
        _RECONNECTION,
    ),
    Mutant(
        "want of memory ends the process",
        "kvstore_mpi/transport/streams.py",
        '            self._refuse(link, "memory", "there is no memory for what it sends")',
        "            raise",
        _STRANGERS,
    ),
    Mutant(
        "a reason of refusal is said each time",
        "kvstore_mpi/wire/occasional.py",
        "if now - self._said.get(reason, -math.inf) < LOG_INTERVAL:",
        "if False:",
        (*_STRANGERS, *_ENDPOINT),
    ),
    Mutant(
        "an mpiexec that does not hear is never killed",
        "launcher/outcome/client_deadlines.py",
        "self._due[name] = (now + TERMINATE_SECONDS, signal.SIGKILL)",
        "pass",
        _MPIEXEC,
    ),
    Mutant(
        "a rank that has failed has no grace for its exit handlers",
        "launcher/outcome/client_deadlines.py",
        "self._failed_s = max(grace, CLIENT_END_SECONDS)",
        "self._failed_s = CLIENT_END_SECONDS",
        _MPIEXEC,
    ),
    Mutant(
        "an mpiexec whose ranks have ended is waited for",
        "launcher/policy.py",
        "if is_left and ((client.ending and may_end) or client.finished):",
        "if is_left and client.ending and may_end:",
        _MPIEXEC,
    ),
    Mutant(
        "an mpiexec that was killed spoils what its ranks have done",
        "launcher/outcome/client_exit.py",
        "if self.finished and code in _MPIEXEC_LOST and not rank_codes:",
        "if False:",
        _MPIEXEC,
    ),
    Mutant(
        "ranks between hosts keep their cores busy while they wait",
        "kvstore_mpi/comm/before_mpi.py",
        "waits.sleep_between_hosts(environment)",
        "pass",
        ("unit/test_before_mpi.py",),
    ),
    Mutant(
        "UCX takes SIGHUP whatever the user says",
        "kvstore_mpi/comm/before_mpi.py",
        'environment.setdefault(UCX_DEBUG_SIGNAL, "")',
        'environment[UCX_DEBUG_SIGNAL] = ""',
        ("unit/test_before_mpi.py",),
    ),
    Mutant(
        "UCX watches memory wherever there could be a card",
        "kvstore_mpi/comm/memory_hooks.py",
        "not has_cards(devices)",
        "not devices.is_dir()",
        ("unit/test_memory_hooks.py",),
    ),
    Mutant(
        "who has MPI alone carry his gradients believes them encrypted",
        "launcher/jobspec.py",
        "    if node.encrypt:",
        "    if False:",
        ("unit/test_launcher_idle_options.py",),
    ),
    Mutant(
        "who waits for room waits until a connection ends",
        "kvstore_mpi/transport/sockets.py",
        "            streams.accept_again()",
        "            pass",
        _STRANGERS,
    ),
    Mutant(
        "late strangers stay until somebody else connects",
        "kvstore_mpi/transport/sockets.py",
        "            streams.end_late()",
        "            pass",
        ("contract/test_transport_strangers.py",),
    ),
    Mutant(
        "what another user listens with is spoken to",
        "kvstore_mpi/transport/streams.py",
        "        if self._turned_away(made):",
        "        if False:",
        ("contract/test_transport_strangers.py",),
    ),
    Mutant(
        "a size with a wrong bit is waited for",
        "kvstore_mpi/transport/framing.py",
        "        if declares_others(data, end, sizes):",
        "        if False:",
        _FRAMING,
    ),
]
