"""The simulated training of the convergence benchmark: schedules worked by hand, and runs repeated."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from kvstore_mpi import DiLoCo, Elastic

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from harness.convergence_events import Gate, Link, VirtualTime
from harness.convergence_modes import FAMILIES, NUM_WORKERS, Setting
from harness.convergence_network import Digits, accuracy, gradient, initial
from harness.convergence_study import Outcome, Run, Scenario
from harness.convergence_summary import speed_up, table
from harness.convergence_training import Costs, Mode, Training, sgd

EVEN = Costs(transfer=0.5, allreduce=1.0, jitter=0.0)
START = np.zeros(1, np.float32)


class Diary:
    """A learner whose gradient is 1, that notes who asked when, at which parameters."""

    def __init__(self):
        self.entries = []
        self.training = None

    def gradient(self, workers, params):
        self.entries.append((self.training.now, min(workers), float(params[0])))
        return np.ones(1, np.float32)


def diary(mode, until, costs=EVEN, num_workers=2):
    """Run a mode; return when which client computed a gradient, at which value, and the center's value."""
    learner = Diary()
    learner.training = Training(mode, costs, learner, START, num_workers=num_workers, seed=0)
    return learner.entries, float(learner.training.run(until)[0])


def test_a_link_serves_one_after_the_other():
    """A transfer waits for those before it, and not for a link that has been idle."""
    link = Link()
    assert [link.delay(0.0, 2.0), link.delay(1.0, 2.0), link.delay(9.0, 2.0)] == [2.0, 3.0, 2.0]


def test_what_happens_at_one_time_happens_in_the_order_in_which_it_was_asked_for():
    """Processes that sleep equally long take turns; a gate lets them go in the order of their coming."""
    time, gate, log = VirtualTime(), Gate(), []

    def process(name):
        for _ in range(2):
            yield 1.0
            log.append((time.now, name))
        yield gate
        log.append((time.now, name))

    def opener():
        yield 5.0
        time.open(gate)

    for one in (process("a"), process("b"), opener()):
        time.start(one)
    time.run(1.5)
    assert (time.now, log) == (1.5, [(1.0, "a"), (1.0, "b")])
    time.run(9.0)
    assert log[2:] == [(2.0, "a"), (2.0, "b"), (5.0, "a"), (5.0, "b")]


def test_a_synchronous_round_of_two_workers():
    """Both push at 1; the link brings them at 1.5 and 2; the answers arrive at 2.5 and 3. The second round:
    gradients at 3.5 and 4, pushes at 4 and 4.5, the update at 4.5."""
    mode = Mode("sync", 2, sgd(0.5, 0.0, sum_of=2), synchronous=True)
    entries, _ = diary(mode, 4.4)
    assert entries == [(1.0, 0, 0.0), (1.0, 1, 0.0), (3.5, 0, -0.5), (4.0, 1, -0.5)]
    assert [diary(mode, until)[1] for until in (1.9, 2.0, 4.4, 4.5)] == [0.0, -0.5, -0.5, -1.0]


def test_asynchronous_workers_do_not_wait_for_each_other():
    """Pushes take effect at 1.5 and 2 and are answered at 2 and 2.5, each with its own update's weight."""
    mode = Mode("async", 2, sgd(0.5, 0.0))
    entries, center = diary(mode, 3.6)
    assert entries == [(1.0, 0, 0.0), (1.0, 1, 0.0), (3.0, 0, -0.5), (3.5, 1, -1.0)]
    assert center == -1.5


def test_a_client_of_two_ranks_sums_before_it_pushes_and_broadcasts_after():
    """Half an allreduce, 0.5, each way: push at 1.5, update at 2, next gradient at 4 (2.5 + 0.5 + 1)."""
    mode = Mode("mpi", 1, sgd(0.5, 0.0))
    entries, _ = diary(mode, 4.1)
    assert entries == [(1.0, 0, 0.0), (4.0, 0, -0.5)]


def test_elastic_clients_exchange_in_turn_and_train_locally_in_between():
    """Interval 2, clients of one worker: client 0 exchanges after its 2nd step at 2, client 1 after its 1st
    at 1. Each meets the center as the other has left it."""
    mode = Mode("elastic", 2, Elastic(0.5).spec(), local=sgd(1.0, 0.0), interval=2, alpha=0.5)
    entries, center = diary(mode, 4.1)
    assert sorted(entries) == [
        *((1.0, 0, 0.0), (1.0, 1, 0.0), (2.0, 0, -1.0)),
        (3.0, 1, -0.5),  # pushed -1 at 1.5: it and the center met at -0.5; back at 2
        (4.0, 0, -1.25),  # pushed -2 at 2.5: it and the center met at -1.25; back at 3
        (4.0, 1, -1.5),
    ]
    assert center == -1.25


def test_synchronous_outer_clients_exchange_together_and_adopt():
    """Interval 2 without an offset: pushes of -2 arrive at 2.5 and 3, then Nesterov's first step."""
    mode = Mode("diloco", 2, DiLoCo().spec(), synchronous=True, local=sgd(1.0, 0.0), interval=2)
    entries, center = diary(mode, 4.6)
    assert center == pytest.approx(-2 * 0.7 * 1.9)
    assert entries[4:] == [(4.5, 0, center)]


def test_pure_mpi_has_no_server():
    """One client: computation 1, allreduce 1 of 2 (m - 1) / m; the parameters are its own."""
    mode = Mode("mpi", 1, None, local=sgd(0.5, 0.0))
    entries, params = diary(mode, 4.1)
    assert entries == [(1.0, 0, 0.0), (3.0, 0, -0.5)]
    assert params == -1.0


def test_a_slow_worker_slows_its_own_client_only():
    """Asynchronously the other goes on; a client waits for its slowest rank."""
    costs = Costs(transfer=0.0, allreduce=0.0, jitter=0.0, slow_worker=4.0)
    entries, _ = diary(Mode("async", 2, sgd(0.5, 0.0)), 4.0, costs)
    assert sorted(client for _, client, _ in entries) == [0, 1, 1, 1, 1]
    entries, _ = diary(Mode("mpi", 1, sgd(0.5, 0.0)), 4.0, costs)
    assert [time for time, *_ in entries] == [4.0]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_run_repeats_itself_to_the_bit_and_another_seed_is_another_run(family):
    """Every mode trains, and the center depends on the seed alone."""
    scenario = Scenario("test", 0.2, 60.0)
    setting = Setting(0.05, 0.5, 4)
    ends = []
    for seed in (0, 0, 1):
        run = Run(family, setting, scenario, seed)
        _, params = list(run.samples())[-1]
        ends.append(params.tobytes())
        trained = accuracy(params, run.digits.test_images, run.digits.test_labels)
        assert trained > accuracy(initial(seed), run.digits.test_images, run.digits.test_labels) + 0.1
    assert ends[0] == ends[1] != ends[2]


def test_the_networks_gradient_is_the_slope_of_its_loss():
    """Compared with differences of the loss along random directions."""
    digits = Digits(0, NUM_WORKERS, iid=False)
    images, labels = digits.batch([0, 1, 2])
    params = initial(0).astype(np.float64)

    def loss(at):
        w1, b1, w2, b2 = np.split(at, [4096, 4160, 4800])
        scores = np.maximum(images @ w1.reshape(64, 64) + b1, 0) @ w2.reshape(64, 10) + b2
        return np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels])

    slope = gradient(params, images, labels)
    for seed in range(5):
        direction = np.random.default_rng(seed).normal(size=params.size)
        numeric = (loss(params + 1e-6 * direction) - loss(params - 1e-6 * direction)) / 2e-6
        assert slope @ direction == pytest.approx(numeric, rel=1e-4, abs=1e-6)


def test_workers_have_parts_of_their_own_and_see_all_of_them():
    """Fixed parts do not overlap; each epoch shows every sample of a part at most once."""
    digits = Digits(3, NUM_WORKERS, iid=False)
    seen = []
    for worker in range(NUM_WORKERS):
        images = np.concatenate([digits.batch([worker])[0] for _ in range(11)])
        assert len(np.unique(images, axis=0)) == len(images) == 88
        seen.append({image.tobytes() for image in images})
    assert sum(map(len, seen)) == len(set.union(*seen))


def test_a_table_says_never_where_the_goal_was_not_reached():
    """And a ratio only where the faster mode always reached it."""
    setting = Setting(0.1, 0.9)
    common = {"scenario": "s", "setting": setting, "at_edge": False, "curve": (), "steps": (10.0, 10.0)}
    slow = Outcome(mode="mpi-sgd", times=(40.0, None), final=(0.96, 0.9), **common)
    fast = Outcome(mode="mpi-esgd", times=(10.0, 20.0), final=(0.97, 0.97), **common)
    assert speed_up(slow, fast) == (4.0, float("inf"), float("inf"))
    assert speed_up(fast, slow) is None
    text = table([slow, fast], "mpi-sgd")
    assert "never" in text.splitlines()[2]
    assert "1/2" in text.splitlines()[2]
