"""Seeded simulations of exchanges, and proof that they would notice: mutants that must be caught."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from support.often import ONE_OF_MANY, often
from support.simulated_client_key import ClientKey
from support.simulated_exchange import ExchangeRun, run_seed
from support.simulated_exchange_plan import plan_of
from support.simulated_shells import SimulatedSnapshots

from kvstore_mpi.records import Topology
from kvstore_mpi.server.exchanges import Exchange
from kvstore_mpi.server.keys import ServerKeys
from kvstore_mpi.server.records import Remember, Unit, Update
from kvstore_mpi.server.server import Server
from kvstore_mpi.server.shards import DenseShard, ShardStore
from kvstore_mpi.server.state import ServerState
from kvstore_mpi.transport.memory import Faults
from kvstore_mpi.values.base import ClientBase, ServerBases
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker import exchange_buffers

BATCH = 20
"""Seeds of one test; a failure prints the seed and the command that repeats it."""

SEEDS_FOR_MUTANTS = 100
"""Within this many seeds every mutant must be caught."""


def batches(number):
    """Return the first seed of each batch; ``.ci/run`` simulates others by the thousand."""
    return [each * BATCH for each in range(number)]


@pytest.mark.parametrize("first", often(batches(1), batches(2)))
def test_exchanges_are_right_whatever_the_network_does(first):
    """Loss, repetition, disorder: each exchange counts once, and a serial replay has the same bits."""
    for seed in range(first, first + BATCH):
        run_seed(seed)


@pytest.mark.parametrize("first", often(batches(1), batches(2)))
def test_nobody_needs_a_lost_client(first):
    """In async mode the others never wait; with a quorum they do for as long as they must."""
    for seed in range(first, first + BATCH):
        run_seed(seed, crash="client")


@pytest.mark.parametrize("first", often(batches(1), batches(2)))
def test_a_client_that_is_started_again_takes_part(first):
    """In async mode and with a quorum it begins with the center; both incarnations' exchanges count."""
    runs = [run_seed(seed, crash="return") for seed in range(first, first + BATCH)]
    assert sum(run.returned is not None and run.plan.quorum > 0 for run in runs) > 0, "nobody came back"


@pytest.mark.parametrize("first", often(batches(1), batches(2)))
def test_training_goes_on_while_a_server_is_away(first):
    """With a snapshot or without: what is skipped is no step, nothing counts twice, ranks stay equal."""
    runs = [run_seed(seed, crash="server") for seed in range(first, first + BATCH)]
    assert sum(run.skipped for run in runs) > 0, "no server was missed by anybody"


@pytest.mark.parametrize("first", batches(1))
def test_a_late_client_takes_part(first):
    """The others begin without it; its exchanges count like theirs."""
    runs = [run_seed(seed, crash="late") for seed in range(first, first + BATCH)]
    assert any(run.began_without_all for run in runs), "all were waited for"


def _fails(seed, *, crash=""):
    try:
        run_seed(seed, crash=crash)
    except AssertionError:
        return True
    return False


def _first_seed_that_fails(*, seeds=SEEDS_FOR_MUTANTS, crash=""):
    return next((seed for seed in range(seeds) if _fails(seed, crash=crash)), None)


class _Forgetful(list):
    """Sequences that read as if nothing had been pushed yet."""

    def __getitem__(self, client):
        return 0


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_repeated_request_is_applied_once_and_answered_alike(forgetful, monkeypatch):
    """Fed with every push twice, nothing changes, but for a server that forgets what it has counted."""
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


@pytest.mark.parametrize(
    ("repeats", "forgetful"),
    [
        (True, False),
        pytest.param(False, True, marks=ONE_OF_MANY),
        pytest.param(True, True, marks=ONE_OF_MANY),
    ],
)
def test_a_server_that_is_back_counts_what_is_repeated_once(repeats, forgetful, monkeypatch):
    """Given the last push of each client once more after its snapshot, it changes nothing, but for one
    that has taken up the values without the counts, and does not take them from the clients either."""
    last = {}  # push that each server was given last by each client, over its incarnations
    push, make, restore, decide = Server._push, Server.__init__, ServerKeys.restore, Server._decide

    def noted(self, peer, message, payloads, now):
        last[self.node, peer] = message, [bytes(payload) for payload in payloads]
        return push(self, peer, message, payloads, now)

    def begin(self, *arguments, **options):
        make(self, *arguments, **options)
        if not self._config.incarnation:
            last.clear()  # another run begins

    def greeted_and_repeated(self, peer, message, payloads, now):
        out = [*decide(self, peer, message, payloads, now)]
        known, given = last.get((self.node, peer), (m.Push([], shared=False), []))
        has_all = all(self._state.keys.filled(entry[0]) for entry in known.entries)
        again = push(self, peer, known, given, now) if type(message) is m.Resume and has_all else []
        return [*out, *(each for each in again if isinstance(each, (Update, Remember)))]

    def restore_values_only(self, message, units, *, counts):
        return restore(self, message, units, counts=False)

    def skip_waiting_only(self, client, sequence):
        self.applied[client] = max(self.applied[client], sequence)

    monkeypatch.setattr(Server, "_push", noted)
    monkeypatch.setattr(Server, "__init__", begin)
    if repeats:
        monkeypatch.setattr(Server, "_decide", greeted_and_repeated)
    if forgetful:
        monkeypatch.setattr(ServerKeys, "restore", restore_values_only)
        monkeypatch.setattr(Unit, "skip_to", skip_waiting_only)
    found = _first_seed_that_fails(seeds=BATCH, crash="server")
    assert (found is not None) is (repeats and forgetful)


# --- mutants ---


def _sum_over_ranks(patch):
    """Parameters are summed over the ranks of a client (MXNET-MPI figure 8 with figure 4's push)."""
    patch.setattr(exchange_buffers, "average", lambda job, mpi_rank: None)


def _answer_with_the_new_center(patch):
    """The pull comes after the push (figure 8)."""
    patch.setattr(DenseShard, "last_sent", lambda shard, client, lo, hi: shard.view(shard.value, lo, hi))


def _use_the_exact_parameters(patch):
    """The client moves by what it has pushed, not by what the server has understood of it."""

    def take(self, lo, hi, payload, bits):
        self._before = False
        original(self, lo, hi, payload, bits)

    original = ClientBase.take
    patch.setattr(ClientBase, "take", take)


def _use_the_exact_center(patch):
    """The server moves by the exact center, not by what the client understands of it."""
    of = ServerBases.of

    def exact(self, out, center, *, before):
        patched, ServerBases.of = ServerBases.of, lambda bases, client, part: center
        try:
            original(self, out, center, before=before)
        finally:
            ServerBases.of = patched

    assert of is ServerBases.of
    original = Exchange.pseudo_gradient
    patch.setattr(Exchange, "pseudo_gradient", exact)


def _need_lost_clients(patch):
    """A quorum does not count: rounds wait for all, and so for the lost."""
    patch.setattr(Unit, "has_quorum", lambda self, here: False)
    patch.setattr(ServerState, "gone", lambda self, message, now: [])


def _go_on_counting(patch):
    """A server does not notice that a client starts anew."""
    patch.setattr(ServerState, "begins", lambda self, peer, incarnation: None)


def _overwrite_the_center(patch):
    """Rank 0 gives its own value when it starts again."""
    create = ServerState.create

    def mutant(self, peer, message, payloads):
        record = self.keys.get(message.key_id)
        if record is not None and record.is_filled:
            record.filled = 0
        return create(self, peer, message, payloads)

    patch.setattr(ServerState, "create", mutant)


def _begin_with_the_first_value(patch):
    """A late client is given what rank 0 gave, and not the center that has come of it."""
    fill, payload = ShardStore.fill, ShardStore.payload

    def keep(self, filled):
        fill(self, filled)
        first = self.__dict__.setdefault("first", {})
        first[filled.run] = payload(self, *filled.run, stable=False)

    def first_value(self, key_id, lo, hi, *, stable, client=None):
        if client is None and (key_id, lo, hi) in self.__dict__.get("first", {}):
            return self.first[key_id, lo, hi]
        return payload(self, key_id, lo, hi, stable=stable, client=client)

    patch.setattr(ShardStore, "fill", keep)
    patch.setattr(ShardStore, "payload", first_value)


def _keep_own_parameters(patch):
    """A late client is not given the center: it goes on with what it has."""
    init = ClientKey.init

    def mutant(self, garbage=0.0, *, adopts=False):
        own = self.params.copy()
        yield from init(self, garbage, adopts=adopts)
        if adopts:
            self.buffer[...] = self.params[...] = own

    patch.setattr(ClientKey, "init", mutant)


def _mix_two_snapshots(patch):
    """The values are of an older snapshot than the counts."""
    write = SimulatedSnapshots._start_to_write

    def mutant(self, snapshot):
        older = self._disk.get(self._index)
        if older is not None and len(older.arrays) == len(snapshot.arrays):
            snapshot = snapshot._replace(arrays=older.arrays)
        write(self, snapshot)

    patch.setattr(SimulatedSnapshots, "_start_to_write", mutant)


def _wait_for_what_was_lost(patch):
    """A server that is back is not told which pushes it will never get."""
    patch.setattr(Unit, "skip_to", lambda self, client, sequence: None)


MUTANTS = [
    (_sum_over_ranks, ""),
    (_answer_with_the_new_center, ""),
    (_use_the_exact_parameters, ""),
    (_use_the_exact_center, ""),
    (_need_lost_clients, "client"),
    (_go_on_counting, "return"),
    (_overwrite_the_center, "return"),
    (_begin_with_the_first_value, "late"),
    (_keep_own_parameters, "late"),
    (_mix_two_snapshots, "server"),
    (_wait_for_what_was_lost, "server"),
]


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.parametrize(("mutant", "crash"), MUTANTS, ids=lambda each: getattr(each, "__name__", each))
def test_a_bug_is_caught(mutant, crash, monkeypatch):
    """Each mutant breaks one rule, and some seed shows it."""
    mutant(monkeypatch)
    assert _first_seed_that_fails(crash=crash) is not None, f"nobody noticed: {mutant.__doc__}"


# --- quorum ---


@pytest.mark.parametrize("quorum_wait", [0.0, 1.0, 2.5])
def test_a_round_waits_for_the_quorum_and_no_longer(quorum_wait):
    """The moment is met to the pass of the loop, although servers tick once a second only."""
    slow = 30.0
    plan = replace(
        plan_of(0),
        topology=Topology(3, 3, 2),
        mode="sync",
        rate=0.3,
        quorum=2,
        quorum_wait=quorum_wait,
        rounds=5,
        faults=Faults(),
        breaks=0,
    )
    run = ExchangeRun(plan)
    train = run._train
    run._train = lambda key, under_way: _late(
        train, key, under_way, slow if key.worker.client == 2 else 0.0
    )
    run.run()
    for entries in run.journal.values():
        early = [entry for entry in entries if entry.time < slow - 1.0]
        assert len(early) == run.plan.rounds
        assert all(entry.clients == [0, 1] for entry in early)
        # A round lasts for the quorum wait and what the clients do in between, at most 0.3 s.
        waits = [after.time - before.time for before, after in itertools.pairwise(early)]
        assert all(quorum_wait <= wait < quorum_wait + 0.4 for wait in waits)


def _late(train, key, under_way, seconds):
    if seconds:
        yield seconds
    yield from train(key, under_way)
