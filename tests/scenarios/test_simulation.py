"""Seeded simulations of whole trainings, and proof that they would notice: mutants that must be caught."""

from __future__ import annotations

import pytest
from support.often import often
from support.simulated_plan import plan_of
from support.simulated_training import Training, run_seed

from kvstore_mpi.p3.send_queue import SendQueue
from kvstore_mpi.records import Mode
from kvstore_mpi.scheduler.state import SchedulerState
from kvstore_mpi.server.records import Unit
from kvstore_mpi.server.rounds import Rounds
from kvstore_mpi.server.server import Server
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.values.dense import Dense
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.codec import Kind
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.wire.session import Session, Verdict
from kvstore_mpi.worker.client import LeaderSchedule
from kvstore_mpi.worker.state import WorkerState

BATCH = 20
"""Seeds of one test; a failure prints the seed and the command that repeats it."""

SEEDS_FOR_MUTANTS = 150
"""Within this many seeds every mutant must be caught."""


def batches(number):
    """Return the first seed of each batch; ``.ci/run`` simulates others by the thousand."""
    return [each * BATCH for each in range(number)]


@pytest.mark.parametrize("first", often(batches(2), batches(5)))
def test_trainings_end_right_whatever_the_network_does(first):
    """Loss, repetition, delay, disorder, broken connections: every push counts once, all ends well."""
    for seed in range(first, first + BATCH):
        run_seed(seed)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("first", often(batches(1), batches(2)))
def test_every_rank_of_a_client_may_push(first, crash):
    """The same with slices dealt over all ranks."""
    for seed in range(first, first + BATCH):
        run_seed(seed, crash=crash, leaders="all")


@pytest.mark.parametrize("first", batches(2))
def test_survivors_of_a_death_end_in_time(first):
    """A client, server or the scheduler dies: whoever needs it says so, the others go on."""
    for seed in range(first, first + BATCH):
        run_seed(seed, crash=True)


def test_a_seed_decides_everything():
    """The same seed gives the same run, to the last frame."""
    traces = []
    for _ in range(2):
        training = Training(plan_of(2, crash=False))
        training.run()
        loops = [worker._loop for worker in training.simulation.workers]
        counts = [loop.endpoint.statistics() for loop in loops]
        traces.append((training.simulation.network.now, counts))
    assert traces[0] == traces[1]


def test_faults_really_happen():
    """Simulations of an undisturbed network would prove nothing."""
    duplicates = repeated = 0
    for seed in range(BATCH):
        training = run_seed(seed)
        statistics = [worker._loop.endpoint.statistics() for worker in training.simulation.workers]
        duplicates += sum(each.duplicates for each in statistics)
        repeated += sum(each.retransmitted for each in statistics)
    assert duplicates > 0
    assert repeated > 0


# --- mutants ---


def _first_seed_that_fails(*, seeds=SEEDS_FOR_MUTANTS, crash=False):
    return next((seed for seed in range(seeds) if _fails(seed, crash=crash)), None)


def _fails(seed, *, crash):
    try:
        run_seed(seed, crash=crash)
    except AssertionError:
        return True
    return False


def _deliver_repeated_frames(patch):
    """The session delivers frames that arrive again."""
    receive = Session._receive_data

    def mutant(self, header, now):
        verdict = receive(self, header, now)
        return Verdict.DELIVER if verdict is Verdict.STALE else verdict

    patch.setattr(Session, "_receive_data", mutant)


def _deliver_over_gaps(patch):
    """The session does not notice that a frame is missing."""
    receive = Session._receive_data

    def mutant(self, header, now):
        self._expected = max(self._expected, header.counter)
        return receive(self, header, now)

    patch.setattr(Session, "_receive_data", mutant)


def _never_repeat(patch):
    """The session does not send again what was lost."""
    patch.setattr(Session, "_repeat", lambda self, wanted, seen: None)


def _never_probe(patch):
    """The session does not ask whether its last frames have arrived."""
    patch.setattr(Session, "probe", lambda self: None)


def _acknowledge_what_is_missing(patch):
    """The session acknowledges frames beyond a gap."""
    receive = Session._receive_data

    def mutant(self, header, now):
        if header.kind == Kind.DATA and header.counter == self._expected + 1:
            self._expected += 1
        return receive(self, header, now)

    patch.setattr(Session, "_receive_data", mutant)


def _do_not_wait_for_other_clients(patch):
    """A sync round is complete with the first push."""
    advance = Rounds._advance

    def mutant(self, unit, client, now):
        store = unit.key.store
        mode, store.mode = store.mode, Mode.ASYNC
        try:
            return advance(self, unit, client, now)
        finally:
            store.mode = mode

    patch.setattr(Rounds, "_advance", mutant)


def _answer_pulls_at_once(patch):
    """A pull does not wait for the pushes before it."""
    pull = ServerState.pull

    def mutant(self, peer, message):
        entries = [(key_id, lo, hi, 0) for key_id, lo, hi, _ in message.entries]
        return pull(self, peer, type(message)(entries))

    patch.setattr(ServerState, "pull", mutant)


def _init_ends_when_it_is_sent(patch):
    """Rank 0 gets its buffer back before the servers have its content."""
    placed, answer = WorkerState.placed, ServerState.create

    def mutant(self, message, now):
        out = placed(self, message, now)
        key = self.keys.by_name[message.store, message.key]
        creates = any(isinstance(each, Send) and isinstance(each.message, m.Create) for each in out)
        return [*out, *self._end(key, now)] if creates else out

    patch.setattr(WorkerState, "placed", mutant)
    patch.setattr(
        ServerState,
        "create",
        lambda self, *arguments: [i for i in answer(self, *arguments) if not isinstance(i, Send)],
    )


def _members_choose_their_own_order(patch):
    """A member carries out what is announced together in another order."""
    follow = WorkerState.announced

    def mutant(self, message):
        return follow(self, type(message)(message.entries[::-1]))

    patch.setattr(WorkerState, "announced", mutant)


def _leaders_do_not_wait_for_members(patch):
    """A leader announces what its members have not come to."""
    begin = LeaderSchedule.begin

    def mutant(self, key, operation, what):
        self._ready.setdefault(key.key_id, set()).update(self._members)
        begin(self, key, operation, what)

    patch.setattr(LeaderSchedule, "begin", mutant)


def _forget_collectives_under_way(patch):
    """A member takes what it is just collecting for something that will never come."""
    unequal = WorkerState.unequal

    def mutant(self):
        self._announced.begun = 0
        return unequal(self)

    patch.setattr(WorkerState, "unequal", mutant)


def _lose_a_slice(patch):
    """The send queue drops the last of several items of a bundle."""
    bundle = SendQueue._bundle

    def mutant(self, lane, in_flight):
        items, num_bytes = bundle(self, lane, in_flight)
        return items[: max(1, len(items) - 1)], num_bytes

    patch.setattr(SendQueue, "_bundle", mutant)


def _updates_in_the_wrong_place(patch):
    """The server takes the slices of a run in the opposite order."""
    part = Dense.part

    def mutant(self, payload, start, lo, hi):
        end = start + len(payload) // self._itemsize
        return part(self, payload, start, end - (hi - lo), end)

    patch.setattr(Dense, "part", mutant)


MUTANTS = [
    _deliver_repeated_frames,
    _deliver_over_gaps,
    _never_repeat,
    _never_probe,
    _acknowledge_what_is_missing,
    _do_not_wait_for_other_clients,
    _answer_pulls_at_once,
    _init_ends_when_it_is_sent,
    _members_choose_their_own_order,
    _leaders_do_not_wait_for_members,
    _forget_collectives_under_way,
    _lose_a_slice,
    _updates_in_the_wrong_place,
]


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_a_bug_is_caught(mutant, monkeypatch):
    """Each mutant breaks one rule, and some seed shows it."""
    mutant(monkeypatch)
    assert _first_seed_that_fails() is not None, f"nobody noticed: {mutant.__doc__}"


def _keep_deaths_secret(patch):
    """The scheduler tells nobody of a death."""
    patch.setattr(SchedulerState, "lost", lambda self, node, reason: [])


def test_a_bug_about_deaths_is_caught(monkeypatch):
    """The same for what matters when somebody dies."""
    _keep_deaths_secret(monkeypatch)
    assert _first_seed_that_fails(crash=True) is not None


class _Forgetful(list):
    """Sequences that read as if nothing had been pushed yet."""

    def __getitem__(self, client):
        return 0


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_server_counts_pushes_that_are_repeated_once(forgetful, monkeypatch):
    """Fed with every push twice, a server is unmoved, but for one that forgets what it has counted."""
    push = Server._push

    def twice(self, *arguments):
        return [*push(self, *arguments), *push(self, *arguments)]

    monkeypatch.setattr(Server, "_push", twice)
    if forgetful:
        make = Unit.__init__

        def mutant(self, key, parts, num_clients):
            make(self, key, parts, num_clients)
            self.pushed = _Forgetful(self.pushed)

        monkeypatch.setattr(Unit, "__init__", mutant)
    assert (_first_seed_that_fails(seeds=BATCH) is not None) is forgetful
