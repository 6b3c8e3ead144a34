"""Who is there, where keys live, who waits at a barrier."""

from __future__ import annotations

from mutants.table import Mutant

_STATE = ("unit/test_scheduler_state.py",)
_RESTARTS = ("unit/test_scheduler_restarts.py",)
_KEYS = ("unit/test_scheduler_keys.py",)
_BARRIERS = ("unit/test_barriers.py",)
_PLACEMENT = ("unit/test_placement.py", "property/test_placement.py")
_IN = "kvstore_mpi/scheduler/"

MUTANTS = [
    Mutant(
        "who makes a key later is not told of its table",
        _IN + "keys.py",
        "        elif name in self._told:",
        "        elif False:",
        _KEYS,
    ),
    Mutant(
        "all are told of tables that all push in rounds",
        _IN + "keys.py",
        "        if mode != Mode.ASYNC.value or name in self._told:",
        "        if name in self._told:",
        _KEYS,
    ),
    Mutant(
        "workers' rows may begin differently",
        _IN + "keys.py",
        '        for what in ("shape", "dtype", "layout", "partitions", "growth"):',
        '        for what in ("shape", "dtype", "layout", "partitions"):',
        ("unit/test_scheduler_keys.py",),
    ),
    Mutant(
        "a worker that comes back counts as gone for good",
        _IN + "roster.py",
        "self._workers_gone.discard(node)",
        "pass",
        _RESTARTS,
    ),
    Mutant(
        "a departure in order is told to all",
        _IN + "state.py",
        "news = [Send(node, gone) for node in self.roster.servers_present]",
        "news = [Send(node, gone) for node in self.roster.present]",
        _STATE,
    ),
    Mutant(
        "a member is not told where its leader is",
        _IN + "state.py",
        "for each in (*servers, leader)})",
        "for each in (*servers, node)})",
        _STATE,
    ),
    Mutant(
        "a barrier opens for one",
        _IN + "barriers.py",
        "if here and here >= self._members]",
        "if here]",
        _BARRIERS,
    ),
    Mutant(
        "a barrier that was passed is closed",
        _IN + "barriers.py",
        "        if number <= self._passed:",
        "        if number < self._passed:",
        _BARRIERS,
    ),
    Mutant(
        "who is lost still waits",
        _IN + "barriers.py",
        "            arrived.difference_update(workers)",
        "            arrived.difference_update(())",
        _BARRIERS,
    ),
    Mutant(
        "loads do not count",
        _IN + "placement.py",
        "self._loads[server] += (hi - lo) * itemsize",
        "self._loads[server] += 0",
        _PLACEMENT,
    ),
    Mutant(
        "loads count elements, not bytes",
        _IN + "placement.py",
        "self._loads[server] += (hi - lo) * itemsize",
        "self._loads[server] += hi - lo",
        _PLACEMENT,
    ),
    Mutant(
        "a whole key is cut",
        _IN + "placement.py",
        "slice_elements = num_elements if whole else self._dealt_at_once(num_elements, itemsize)",
        "slice_elements = self._dealt_at_once(num_elements, itemsize)",
        _PLACEMENT,
    ),
    Mutant(
        "servers that take turns get less than slices",
        _IN + "placement.py",
        "        if self._round_robin or len(self._loads) == 1:",
        "        if len(self._loads) == 1:",
        _PLACEMENT,
    ),
    Mutant(
        "of a small model whole slices are dealt",
        _IN + "placement.py",
        "        most = max(LEAST_BYTES, held) // itemsize",
        "        most = self._slice_elements",
        _PLACEMENT,
    ),
    Mutant(
        "of a large model less than slices are dealt",
        _IN + "placement.py",
        "        held = sum(self._loads) // (LOAD_FOR_EACH * len(self._loads))",
        "        held = 0",
        _PLACEMENT,
    ),
    Mutant(
        "the short slice is not the last server's",
        _IN + "placement.py",
        "counts[server] = counts.pop(server, 0) + 1",
        "counts[server] = counts.get(server, 0) + 1",
        _PLACEMENT,
    ),
    Mutant(
        "training begins without client 0",
        _IN + "state.py",
        "if not roster.can_work(RANK_0) or (self._start_with == len(clients) and not roster.complete):",
        "if self._start_with == len(clients) and not roster.complete:",
        _STATE,
    ),
    Mutant(
        "one client too few is enough",
        _IN + "state.py",
        "self._started = len(clients) - len(late) >= self._start_with",
        "self._started = len(clients) - len(late) >= self._start_with - 1",
        _STATE,
    ),
    Mutant(
        "an old run of a process may join",
        _IN + "state.py",
        "        if message.incarnation < newest:",
        "        if message.incarnation < 0:",
        _RESTARTS,
    ),
    Mutant(
        "a death is nobody's business",
        _IN + "state.py",
        "news: Instructions = [Log(level, text), *(Send(other, gone) for other in others)]",
        "news: Instructions = [Log(level, text)]",
        _STATE,
    ),
    Mutant(
        "shapes may differ between workers",
        _IN + "keys.py",
        'for what in ("shape", "dtype", "layout", "partitions", "growth"):',
        'for what in ("dtype", "layout", "partitions", "growth"):',
        _KEYS,
    ),
    Mutant(
        "keys have the same number",
        _IN + "keys.py",
        "agreed = _Agreed(declared, len(self._keys), shards)",
        "agreed = _Agreed(declared, 0, shards)",
        _KEYS,
    ),
    Mutant(
        "a quorum waits for the lost at barriers",
        _IN + "keys.py",
        "return all(key.mode == Mode.ASYNC.value or key.quorum for key in declared)",
        "return all(key.mode == Mode.ASYNC.value for key in declared)",
        _RESTARTS,
    ),
    Mutant(
        "who does not come is waited for for ever",
        _IN + "state.py",
        "if absent and now > self._join_deadline:",
        "if False:",
        _STATE,
    ),
    Mutant(
        "a restarted process gets no time to come",
        _IN + "state.py",
        "self._join_deadline = max(self._join_deadline, now + self._connect_timeout)",
        "self._join_deadline = max(self._join_deadline, now)",
        _RESTARTS,
    ),
    Mutant(
        "news of a death that is known",
        _IN + "state.py",
        "        if self._incarnations.get(node, 0) > incarnation:",
        "        if self._incarnations.get(node, 0) >= incarnation + 9:",
        _RESTARTS,
    ),
    Mutant(
        "who was silent before it is started again is lost for good",
        "kvstore_mpi/scheduler/state.py",
        "            if returns and roster.is_gone_for_good(node):",
        "            if False:",
        ("unit/test_scheduler_restarts.py",),
    ),
    Mutant(
        "who never comes back is not missed at the end",
        "kvstore_mpi/scheduler/state.py",
        "return self._end(self._numbers.error or self._never_back())",
        "return self._end(self._numbers.error)",
        ("unit/test_scheduler_state.py",),
    ),
    Mutant(
        "a job whose last optimizer differs ends well",
        "kvstore_mpi/scheduler/state.py",
        "return self._end(self._numbers.error or self._never_back())",
        "return self._end(self._never_back())",
        ("unit/test_same_numbers.py",),
    ),
    Mutant(
        "who has finished is missed at the end",
        "kvstore_mpi/scheduler/state.py",
        "lost = [news for news in gone if not (news.orderly or news.asked)]",
        "lost = [news for news in gone if not news.asked]",
        ("unit/test_scheduler_state.py",),
    ),
    Mutant(
        "nobody ends a client that is frozen",
        "kvstore_mpi/scheduler/scheduler.py",
        "                self._give_up(event.peer)",
        "                pass",
        ("faults/test_returns.py::test_a_client_that_is_frozen_is_started_again",),
    ),
]
