"""A server: rounds, answers, the order of both, and what a snapshot holds."""

from __future__ import annotations

from mutants.table import Mutant

_STATE = ("unit/test_server_state.py",)
_QUORUM = ("unit/test_quorum.py",)
_REPEATED = ("unit/test_repeated_exchanges.py",)
_ANSWERS = ("unit/test_server_answers.py",)
_DEPARTURES = ("unit/test_server_departures.py",)
_TURNS = ("paper/test_p3_turns.py",)
_CLIPPED = ("scenarios/test_clipped_steps.py",)
_BLOCKS = ("unit/test_updates_in_blocks.py",)
_IN = "kvstore_mpi/server/"

MUTANTS = [
    Mutant(
        "pushes are processed as they come",
        _IN + "server.py",
        "self._pushes.put(message.priority, num_bytes, event)",
        "self._pushes.put(0, num_bytes, event)",
        _TURNS,
    ),
    Mutant(
        "answers leave as they come",
        _IN + "replies.py",
        "self._queue.put(answer.peer, answer.priority, num_bytes, answer, travels=not answer.shared)",
        "self._queue.put(answer.peer, 0, num_bytes, answer, travels=not answer.shared)",
        _TURNS,
    ),
    Mutant(
        "of answers that leave together coded ones come first",
        _IN + "replies.py",
        "sorted(forms.items(), key=lambda form: not form[0][0])",
        "sorted(forms.items(), key=lambda form: form[0], reverse=True)",
        ("unit/test_replies.py",),
    ),
    Mutant(
        "a value that others may change is written before its answer leaves",
        _IN + "rounds.py",
        "    if not store.stable or store.terms.bases or unit.key.is_table or len(unit.slices) > 1:",
        "    if store.terms.bases or unit.key.is_table or len(unit.slices) > 1:",
        _BLOCKS,
    ),
    Mutant(
        "a rule for whole tensors is given blocks",
        _IN + "shards.py",
        "at_once = terms.whole or terms.staleness or held is not None or terms.compress",
        "at_once = terms.staleness or held is not None or terms.compress",
        _BLOCKS,
    ),
    Mutant(
        "a value is written once more when its answer leaves",
        _IN + "replies.py",
        "unwritten = [answer.entry for answer in alike if not answer.written]",
        "unwritten = [answer.entry for answer in alike]",
        _BLOCKS,
    ),
    Mutant(
        "blocks end one element early",
        "kvstore_mpi/values/dense.py",
        "min(first + _UPDATED_BLOCK, size)",
        "min(first + _UPDATED_BLOCK, size) - 1",
        _BLOCKS,
    ),
    Mutant(
        "the server has no window",
        _IN + "replies.py",
        "            window_bytes=window_bytes,",
        "            window_bytes=1 << 40,",
        _TURNS,
    ),
    Mutant(
        "a server that waits for room does not ask for it",
        _IN + "replies.py",
        "m.Values(entries, shared, coding, base), payloads, asks)",
        "m.Values(entries, shared, coding, base), payloads, False)",
        _TURNS,
    ),
    Mutant(
        "the answer to a push has no priority",
        _IN + "rounds.py",
        "asker = Asker(peer, wants_value, message.shared, message.priority)",
        "asker = Asker(peer, wants_value, message.shared, 0)",
        _TURNS,
    ),
    Mutant(
        "the answer to a pull has no priority",
        _IN + "state.py",
        "priority = message.priority",
        "priority = 0",
        _TURNS,
    ),
    Mutant(
        "a pull that has waited has no priority",
        _IN + "pulls.py",
        "out.append(Answer(pull.peer, entry, stable=False, priority=pull.priority, request=wanted))",
        "out.append(Answer(pull.peer, entry, stable=False, priority=0, request=wanted))",
        _ANSWERS,
    ),
    Mutant(
        "what is said after a push overtakes it",
        _IN + "server.py",
        "        if type(message) not in _AT_ANY_TIME:",
        "        if type(message) in ():",
        _TURNS,
    ),
    Mutant(
        "a round waits for clients where each worker pushes",
        _IN + "records.py",
        "self.pusher_size = 1 if message.spec.apart else topology.client_size",
        "self.pusher_size = topology.client_size",
        ("unit/test_server_pushers.py",),
    ),
    Mutant(
        "a round does not wait for all clients",
        _IN + "rounds.py",
        "complete = len(_whole(unit)) == unit.key.num_pushers",
        "complete = len(_whole(unit)) >= unit.key.num_pushers - 1",
        _STATE,
    ),
    Mutant(
        "sums are formed in the order of arrival",
        _IN + "rounds.py",
        "return self._close(unit, sorted(unit.contributions), now) if complete else None",
        "return self._close(unit, list(unit.contributions), now) if complete else None",
        _STATE,
    ),
    Mutant(
        "the quorum's count",
        _IN + "rounds.py",
        "return as_often >= unit.key.store.terms.quorum * unit.key.pushers_per_client",
        "return as_often >= 1",
        _QUORUM,
    ),
    Mutant(
        "the quorum is one client more",
        _IN + "rounds.py",
        "return as_often >= unit.key.store.terms.quorum * unit.key.pushers_per_client",
        "return as_often > unit.key.store.terms.quorum",
        _QUORUM,
    ),
    Mutant(
        "who is late does not count the others",
        _IN + "rounds.py",
        "return as_often >= unit.key.store.terms.quorum * unit.key.pushers_per_client",
        "return len(here) >= unit.key.store.terms.quorum",
        _QUORUM,
    ),
    Mutant(
        "what is left of a round closes it at the end of its wait",
        _IN + "rounds.py",
        "if not _has_quorum(unit, _whole(unit)):",
        "if not unit.contributions:",
        _QUORUM,
    ),
    Mutant(
        "each push moves the end of a wait",
        _IN + "rounds.py",
        "self._quorum_waits.setdefault(unit, due)",
        "self._quorum_waits[unit] = due",
        _QUORUM,
    ),
    Mutant(
        "a quorum waits for clients that are down",
        _IN + "rounds.py",
        "missing = set(range(unit.key.num_pushers)).difference(here, gone)",
        "missing = set(range(unit.key.num_pushers)).difference(here)",
        _QUORUM,
    ),
    Mutant(
        "a round that fails is never reported",
        _IN + "rounds.py",
        "        for unit in [unit for unit in waiting if now - unit.since > self._step_timeout]:",
        "        for unit in []:",
        _DEPARTURES,
    ),
    Mutant(
        "a line for each key that waits",
        _IN + "late_rounds.py",
        "if each not in self._told}",
        "if each}",
        _DEPARTURES,
    ),
    Mutant(
        "staleness is counted from the beginning",
        _IN + "rounds.py",
        "late = unit.updates - unit.seen[clients[0]]",
        "late = unit.updates",
        ("scenarios/test_exchange.py::test_the_learning_rate_is_divided_by_the_staleness",),
    ),
    Mutant(
        "a push that is repeated counts twice",
        _IN + "rounds.py",
        "if sequence <= unit.pushed[pusher] or (contribution and position in contribution.payloads):",
        "if contribution and position in contribution.payloads:",
        (*_STATE, *_REPEATED),
    ),
    Mutant(
        "an exchange that is repeated is not answered",
        _IN + "rounds.py",
        "if unit.key.store.terms.params and sequence == unit.applied[client]:",
        "if False:",
        _REPEATED,
    ),
    Mutant(
        "pulls are answered before the pushes that they follow",
        _IN + "state.py",
        "                if unit.applied[record.pusher(peer.index)] >= after:",
        "                if unit.applied[record.pusher(peer.index)] >= after - 1:",
        _STATE,
    ),
    Mutant(
        "who wants no value gets one",
        _IN + "rounds.py",
        "        if wants_value",
        "        if wants_value or True",
        _STATE,
    ),
    Mutant(
        "a restarted client's half push stays",
        _IN + "records.py",
        "            self.contributions.pop(pusher, None)",
        "            self.contributions.get(pusher, None)",
        _ANSWERS,
    ),
    Mutant(
        "snapshots of two incarnations are mixed",
        _IN + "snapshot_copy.py",
        "if self._incarnations != self._state.incarnations or self._specs != dict(self._store.specs()):",
        "if self._specs != dict(self._store.specs()):",
        ("unit/test_snapshots.py",),
    ),
    Mutant(
        "asynchronous keys go by their own schedules",
        _IN + "rounds.py",
        "        scheduled = unit.key.store.note_updates(unit.updates) if is_async else unit.updates",
        "        scheduled = unit.updates",
        ("contract/test_schedules_of_keys.py",),
    ),
    Mutant(
        "a job takes the place of another's snapshots",
        _IN + "snapshots.py",
        "        if job != self._job:",
        "        if not job:",
        ("unit/test_snapshots.py",),
    ),
    Mutant(
        "a snapshot of another layout is taken up",
        _IN + "snapshots.py",
        "        if snapshot.header.layout != self._layout:",
        "        if False:",
        ("unit/test_snapshots.py",),
    ),
    Mutant(
        "rows are not in the norm",
        _IN + "rounds.py",
        "        if complete and store.terms.clip_norm and self.held.awaits(unit):",
        "        if complete and store.terms.clip_norm and not unit.key.is_table:",
        _CLIPPED,
    ),
    Mutant(
        "the norm is of what was not rescaled",
        _IN + "held_steps.py",
        "        step[unit] = squares * rescale_grad * rescale_grad",
        "        step[unit] = squares",
        _CLIPPED,
    ),
    Mutant(
        "a step that became whole by a key that has gone is not told",
        _IN + "held_steps.py",
        "        return self._tell(next(iter(held)).key.store) if held else []",
        "        return []",
        _CLIPPED,
    ),
    Mutant(
        "small gradients are scaled up",
        "kvstore_mpi/worker/step_norms.py",
        "        factor = bound / norm if norm > bound else 1.0",
        "        factor = bound / norm",
        _CLIPPED,
    ),
]
