"""P3 in whole simulated jobs: the schedule decides when things happen, never what comes out.

The real states, queues and sessions over a network that delays, repeats, reorders and loses messages; a run
follows from its seed. See ``tests/support/simulation.py``.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.often import often
from support.simulated_plan import plan_of
from support.simulated_training import Training
from support.simulation import Simulation

from kvstore_mpi.config import PLACEMENTS, SCHEDULES
from kvstore_mpi.p3.priority_queue import PriorityQueue
from kvstore_mpi.p3.window import Window
from kvstore_mpi.records import Topology
from kvstore_mpi.server import rounds
from kvstore_mpi.server import server as server_module
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.transport.memory import Faults
from kvstore_mpi.worker import client
from kvstore_mpi.worker.client import LeaderSchedule
from kvstore_mpi.worker.state import WorkerState

REPEATABLE = settings(
    deadline=None,
    derandomize=True,
    max_examples=30,
    phases=[Phase.generate],  # a seed has no simpler neighbours
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # what they patch is the same each time
)
FEWER = settings(REPEATABLE, max_examples=8)

SEEDS = st.integers(0, 10_000)
ONE_SLICE = 1  # a window of a byte: one slice, or message of a slice, under way to each peer
WINDOWS = st.sampled_from([ONE_SLICE, 24, 200, 0])
CONFIGS = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(SCHEDULES),
        "window_bytes": WINDOWS,
        "slice_elements": st.integers(1, 40),
        "placement": st.sampled_from(PLACEMENTS),
    }
)

LIMIT = 60.0  # seconds of virtual time by which a job must have ended
CALM_AFTER = 20.0  # the network stops to fail, so that every job must end
FAULTS = Faults(loss=0.05, duplication=0.2, delay=0.02, reordering=0.3)

ADAM = OptimizerSpec(name="adam", hyper=HyperParameters(lr=0.1, wd=0.01)).to_dict()
SIZES = (3, 0, 37, 1, 20)
DTYPES = ("float32", "float32", "float64", "float16", "float32")
ROUNDS = 3


@pytest.fixture
def one_at_a_time(monkeypatch):
    """What is announced, carried out in a collective, or processed in a pass is one slice."""
    monkeypatch.setattr(client, "AHEAD_BYTES", 1)
    monkeypatch.setattr(client, "COLLECTIVE_BYTES", 1)
    monkeypatch.setattr(server_module, "BUNDLE_BYTES", 1)


@pytest.fixture
def short_epochs(monkeypatch):
    """Priority counts among a few slices only."""
    monkeypatch.setitem(PriorityQueue.__init__.__kwdefaults__, "epoch_bytes", 50)


class Descent:
    """A training of random gradients that depend on the weights, with forward layer by layer.

    Attributes:
        weights: For each rank the final values of all keys.
        order: For each rank the keys in the order in which their pushpulls have ended.
    """

    def __init__(self, topology, seed, optimizer=None, faults=None, **config):
        self.simulation = Simulation(Topology(*topology), seed, peer_timeout=60.0, heartbeat=0.1, **config)
        self.simulation.network.faults = faults or Faults()
        self.simulation.later(CALM_AFTER, lambda: setattr(self.simulation.network, "faults", Faults()))
        self.weights = {}
        self.order = {worker.rank: [] for worker in self.simulation.workers}
        for worker in self.simulation.workers:
            worker.spawn(self._script(worker, optimizer))
        self.simulation.run(LIMIT)

    def _script(self, worker, optimizer):
        yield worker.joined
        worker.open_store("sync")
        if optimizer is not None:
            worker.set_optimizer(0, optimizer)
            yield worker.answered
        keys = range(len(SIZES))
        buffers = [worker.exchange_buffer(size, dtype) for size, dtype in zip(SIZES, DTYPES)]
        under_way = [[] for _ in keys]
        for key, buffer in enumerate(buffers):
            buffer[...] = np.arange(buffer.size)
            worker.init(0, key, (buffer.size,), buffer, under_way[key].append)
        gradients = np.random.RandomState(worker.rank)
        for _ in range(ROUNDS):
            for key in keys:  # forward
                yield lambda key=key: bool(under_way[key])
            for key in reversed(keys):  # backward
                buffer = buffers[key]
                buffer[...] = gradients.normal(size=buffer.size) + 0.1 * buffer
                source = None
                if worker.rank % 2:  # sends another array than its buffer
                    source = buffer.copy()
                    buffer[...] = -1
                under_way[key] = []
                done = partial(self._done, worker.rank, key, under_way[key])
                worker.pushpull(0, key, -key, done, source)
        yield lambda: all(under_way)
        assert worker.failure() is None
        self.weights[worker.rank] = [buffer.tobytes() for buffer in buffers]

    def _done(self, rank, key, ending, error):
        ending.append(error)
        self.order[rank].append(key)


LAYOUTS = [(1, 1, 1), (3, 3, 2), (2, 4, 2)]  # clients, workers, servers


@pytest.mark.paper("P3 section 4")
@pytest.mark.parametrize("optimizer", often([ADAM], [None, ADAM]), ids=["sum", "adam"])
@pytest.mark.parametrize("layout", often(LAYOUTS[2:], LAYOUTS), ids=str)
def test_results_do_not_depend_on_the_schedule(layout, optimizer):
    """Weights are the same bits under any schedule, window, slice size, placement and disorder."""
    expected = Descent(layout, seed=0, optimizer=optimizer).weights
    assert len(expected) == layout[1]
    assert len({tuple(weights) for weights in expected.values()}) == 1

    @FEWER
    @given(seed=SEEDS, config=CONFIGS)
    def check(seed, config):
        assert Descent(layout, seed, optimizer, FAULTS, **config).weights == expected

    check()


@pytest.mark.paper("P3 section 4")
@REPEATABLE
@given(seed=SEEDS, config=CONFIGS)
def test_trainings_end_right_in_any_configuration(seed, config):
    """Sync and async, push and pull, lossy networks: no deadlock, and every push counts once."""
    Training(plan_of(seed, crash=False), **config).run()


@pytest.mark.paper("P3 section 4")
@REPEATABLE
@given(seed=SEEDS, config=CONFIGS)
def test_nothing_waits_for_ever_when_all_is_done_one_at_a_time(one_at_a_time, short_epochs, seed, config):
    """One slice under way, one collective announced, one push processed: every job ends right."""
    Training(plan_of(seed, crash=False), **{**config, "window_bytes": ONE_SLICE}).run()


@pytest.mark.paper("P3 section 4.1")
@FEWER
@given(seed=SEEDS, config=CONFIGS, layout=st.sampled_from(LAYOUTS))
def test_slices_cover_keys_and_each_is_applied_and_delivered_once(seed, config, layout):
    """On a network that loses and repeats: per round one update of each element, and one new value."""
    applied, delivered = Counter(), Counter()
    with pytest.MonkeyPatch.context() as patch:
        _spy(patch, applied, delivered)
        job = Descent(layout, seed, None, FAULTS, **config)
    leaders = range(0, layout[1], layout[1] // layout[0])
    elements = [(key, i) for key, size in enumerate(SIZES) for i in range(size)]
    assert applied == dict.fromkeys(elements, ROUNDS)
    assert delivered == {(leader, *each): ROUNDS for each in elements for leader in leaders}
    units = [unit for server in job.simulation.servers for unit in server.units(0)]
    slices = sorted((unit.key.key, part.lo, part.hi) for unit in units for part in unit.slices)
    assert [(key, lo) for key, lo, _ in slices if lo == 0] == [(key, 0) for key in range(len(SIZES))]
    for (key, _, hi), (next_key, lo, _) in zip(slices, [*slices[1:], (len(SIZES), 0, 0)]):
        assert (next_key, lo) in {(key, hi), (key + 1, 0)}
        assert lo or hi == SIZES[key]
    assert all(hi - lo <= config["slice_elements"] for _, lo, hi in slices)


def _spy(patch, applied, delivered):
    """Count how often each element is updated on servers, and arrives at the leader of each client."""
    update, values = ShardStore.update, WorkerState.values

    def counting_update(store, instruction, into=()):
        key = instruction.unit.key.key
        applied.update((key, i) for part in instruction.unit.slices for i in range(part.lo, part.hi))
        return update(store, instruction, into)

    def counting_values(state, message, payloads, now):
        for key_id, lo, hi, sequence in message.entries:
            if sequence:  # 0 is the initial value
                key = state.keys.by_id[key_id].spec.key
                delivered.update((state._leader.index, key, i) for i in range(lo, hi))
        return values(state, message, payloads, now)

    patch.setattr(ShardStore, "update", counting_update)
    patch.setattr(WorkerState, "values", counting_values)


IN_TURN = [(2, 2, 1), (1, 2, 1), (1, 2, 0)]  # clients of one rank, of two, and pure MPI


@pytest.mark.paper("P3 section 4.2")
@pytest.mark.parametrize("layout", IN_TURN, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_pushed_last_comes_back_first(layout, schedule, one_at_a_time):
    """By priority through worker, server and collectives; without it, in the order of the pushes."""
    check_turns(layout, schedule)


def check_turns(layout, schedule):
    in_turn = sorted(range(len(SIZES)), reverse=schedule != "p3")
    order = Descent(layout, seed=0, schedule=schedule, window_bytes=ONE_SLICE).order
    assert order == dict.fromkeys(range(layout[1]), in_turn * ROUNDS)


def _sum_in_the_order_of_arrival(patch):
    """A server adds gradients up as they come."""
    patch.setattr(rounds, "sorted", list, raising=False)


def _never_send_what_exceeds_the_window(patch):
    """A window holds up a slice that is larger than itself though nothing is under way."""
    patch.setattr(Window, "admits", lambda self, size, in_flight: in_flight + size <= self.limit)


def _announce_first_come_first_served(patch):
    """A leader does not look at priorities."""
    make = LeaderSchedule.__init__
    patch.setattr(
        LeaderSchedule,
        "__init__",
        lambda self, *args, by_priority, **rest: make(self, *args, by_priority=False, **rest),
    )


def check_bits():
    expected = Descent((3, 3, 2), seed=0).weights
    assert all(Descent((3, 3, 2), seed, None, FAULTS).weights == expected for seed in range(1, 6))


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (_sum_in_the_order_of_arrival, check_bits),
        (_never_send_what_exceeds_the_window, partial(check_turns, IN_TURN[0], "p3")),
        (_announce_first_come_first_served, partial(check_turns, IN_TURN[1], "p3")),
        (_announce_first_come_first_served, partial(check_turns, IN_TURN[2], "p3")),
    ],
)
def test_a_bug_is_caught(mutant, check, one_at_a_time, monkeypatch):
    """Each mutant breaks one rule, and the checks above notice it."""
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check()
