"""A worker: what it announces, pushes and waits for."""

from __future__ import annotations

from mutants.table import Mutant

_STATE = ("unit/test_worker_state.py", "unit/test_worker_client.py", "unit/test_worker_membership.py")
_CLIENT = ("unit/test_worker_client.py", "unit/test_worker_state.py")
_ANNOUNCED = ("unit/test_announcements.py",)
_IN_PLACE = ("unit/test_values_in_place.py", "scenarios/test_values_in_place.py")
_TURNS = ("paper/test_p3_turns.py",)
_IN = "kvstore_mpi/worker/"

MUTANTS = [
    Mutant(
        "values are written early where a push may have to be sent again",
        _IN + "servers.py",
        "key.on_servers and key.waits_for_all and key.queue",
        "key.on_servers and key.queue",
        _IN_PLACE,
    ),
    Mutant(
        "large values come in memory of their own, and are copied",
        _IN + "worker.py",
        "self._loop.receive_into(partial(place_of, self._state.keys.by_id))",
        "pass",
        _IN_PLACE,
    ),
    Mutant(
        "what was answered already is written again",
        _IN + "servers.py",
        "if not key.queue[0].awaited.issuperset(key.indices(lo, hi)):",
        "if False:",
        _IN_PLACE,
    ),
    Mutant(
        "what was received in its place is copied onto itself",
        _IN + "exchange_buffers.py",
        "if instruction.payload.obj is not instruction.view.obj:",
        "if True:",
        _IN_PLACE,
    ),
    Mutant(
        "a worker that waits for room does not ask for it",
        _IN + "servers.py",
        "yield Send(server, m.Push(entries, shared, priority, coding), payloads, asks)",
        "yield Send(server, m.Push(entries, shared, priority, coding), payloads)",
        _TURNS,
    ),
    Mutant(
        "a push carries no priority",
        _IN + "servers.py",
        "yield Send(server, m.Push(entries, shared, priority, coding), payloads, asks)",
        "yield Send(server, m.Push(entries, shared, 0, coding), payloads, asks)",
        _TURNS,
    ),
    Mutant(
        "a compressed push carries no priority",
        _IN + "servers.py",
        "        priority = max([push.priority for push in alike])",
        "        priority = max([push.priority for push in alike]) if coding == RAW else 0",
        ("unit/test_push_messages.py",),
    ),
    Mutant(
        "pushes wait in the order of the calls",
        _IN + "servers.py",
        "self._queue.put(server, priority, num_bytes, push, travels=not shared)",
        "self._queue.put(server, 0, num_bytes, push, travels=not shared)",
        _STATE,
    ),
    Mutant(
        "a pull carries no priority",
        _IN + "servers.py",
        "m.Pull(merge((*slice_, key.pushes) for slice_ in slices), operation.priority)",
        "m.Pull(merge((*slice_, key.pushes) for slice_ in slices), 0)",
        _TURNS,
    ),
    Mutant(
        "the worker has no window",
        _IN + "servers.py",
        "            window_bytes=config.window_bytes,",
        "            window_bytes=1 << 40,",
        _TURNS,
    ),
    Mutant(
        "a pull does not wait for the pushes before it",
        _IN + "servers.py",
        "m.Pull(merge((*slice_, key.pushes) for slice_ in slices), operation.priority)",
        "m.Pull(merge((*slice_, 0) for slice_ in slices), operation.priority)",
        _STATE,
    ),
    Mutant(
        "servers that are down are sent to",
        _IN + "servers.py",
        "return [send for send in sends if send.peer not in self.down]",
        "return [*sends]",
        _STATE,
    ),
    Mutant(
        "operations on a key do not wait for each other",
        _IN + "state.py",
        "return self._start(state, now) if len(state.queue) == 1 else []",
        "return self._start(state, now)",
        _STATE,
    ),
    Mutant(
        "an operation ends a slice too early",
        _IN + "state.py",
        "        if operation.remaining:",
        "        if operation.remaining > 1:",
        _STATE,
    ),
    Mutant(
        "a value is not kept before the buffer is the caller's",
        _IN + "records.py",
        "        if self.keeps and (operation.given or operation.kind is not Kind.PUSH):",
        "        if self.keeps and operation.kind is Kind.PUSH:",
        _STATE,
    ),
    Mutant(
        "a rank pushes what another one pushes",
        _IN + "state.py",
        "                if rank == self._mpi_rank:",
        "                if rank >= 0:",
        _STATE,
    ),
    Mutant(
        "pushes overtake hyper-parameters that are not confirmed",
        _IN + "state.py",
        "announced = [] if self.servers.unconfirmed else self._to_announce.next()",
        "announced = self._to_announce.next()",
        _STATE,
    ),
    Mutant(
        "what a server has missed counts as exchanged",
        _IN + "state.py",
        "            operation.skipped = True",
        "            operation.skipped = False",
        _STATE,
    ),
    Mutant(
        "who fails leaves operations pending",
        _IN + "state.py",
        "            out += (Complete(operation.done, error) for operation in key.queue)",
        "            out += ()",
        _STATE,
    ),
    Mutant(
        "an operation may wait for ever",
        _IN + "operations.py",
        "        if now - operation.since > timeout:",
        "        if now - operation.since > timeout * 1e9:",
        _STATE,
    ),
    Mutant(
        "announcements go in the order of the calls",
        _IN + "client.py",
        "self._queue: PriorityQueue[Collect] = PriorityQueue(by_priority=by_priority)",
        "self._queue: PriorityQueue[Collect] = PriorityQueue(by_priority=False)",
        _CLIENT,
    ),
    Mutant(
        "everything is announced at once",
        _IN + "client.py",
        "return ahead_bytes < AHEAD_BYTES and (full or len(self._ends) < self._buckets_ahead)",
        "return True",
        _ANNOUNCED,
    ),
    Mutant(
        "buckets are not bounded",
        _IN + "client.py",
        "collect.operation is not bucket[0].operation or total + num_bytes > BUCKET_BYTES",
        "collect.operation is not bucket[0].operation",
        _ANNOUNCED,
    ),
    Mutant(
        "a bucket has collectives of several kinds",
        _IN + "client.py",
        "collect.operation is not bucket[0].operation or total + num_bytes > BUCKET_BYTES",
        "total + num_bytes > BUCKET_BYTES",
        _CLIENT,
    ),
    Mutant(
        "a member runs ahead of its own program",
        _IN + "client.py",
        "            return None  # an earlier operation on the key is still under way here",
        "            pass  # an earlier operation on the key is still under way here",
        _STATE,
    ),
    Mutant(
        "the leader's other operation is no error",
        _IN + "client.py",
        "if operation.kind not in WANTED[collective] or operation.sequence > sequence:",
        "if operation.sequence > sequence:",
        _STATE,
    ),
    Mutant(
        "a rank ends while another needs it",
        _IN + "client.py",
        "return self._released and self._left.issuperset(self._partners)",
        "return self._released",
        _STATE,
    ),
    Mutant(
        "a run of slices is one too short",
        _IN + "records.py",
        "return range(first, bisect_left(self.starts, hi) if hi > lo else first + 1)",
        "return range(first, bisect_left(self.starts, hi - 1) if hi > lo else first + 1)",
        _STATE,
    ),
    Mutant(
        "an answer that is repeated counts twice",
        _IN + "records.py",
        "            self.answered.add(first)",
        "            self.answered.discard(first)",
        ("unit/test_push_messages.py",),
    ),
    Mutant(
        "a server that is back is not told how often was pushed",
        _IN + "outages.py",
        "counts = [(key.key_id, key.pushes) for key in keys if server in key.servers]",
        "counts = [(key.key_id, 0) for key in keys if server in key.servers]",
        _STATE,
    ),
    Mutant(
        "whoever may still push accuses the others",
        _IN + "membership.py",
        "self._state.balance.pushes if settled else 0)",
        "self._state.balance.pushes)",
        ("unit/test_balance.py",),
    ),
]
