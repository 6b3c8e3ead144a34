"""Seeded simulations of trainings in which processes die and come back, and mutants that must be caught."""

from __future__ import annotations

import pytest
from support.often import often
from support.simulated_returns import plan_without_disk, run_seed

from kvstore_mpi.scheduler.state import SchedulerState
from kvstore_mpi.server.state import ServerState

BATCH = 20
SEEDS_FOR_MUTANTS = 150


@pytest.mark.parametrize("first", often([0], [0, BATCH]))
def test_asynchronous_training_survives_deaths(first):
    """Clients die and come back: every push of the living counts once, and all come to their end."""
    for seed in range(first, first + BATCH):
        run_seed(seed)


def test_servers_that_cannot_save_have_copies_kept_elsewhere():
    """Their disk is full: once they know, the clients keep values, and give them to one that comes back."""
    trainings = [run_seed(seed, plan_without_disk) for seed in range(2 * BATCH)]
    assert sum(training.losses for training in trainings) >= 5


def _go_on_counting(patch):
    """A server does not notice that a client starts anew."""
    patch.setattr(ServerState, "begins", lambda self, peer, incarnation: None)


def _initialise_again(patch):
    """A restarted rank 0 overwrites what is there."""
    create = ServerState.create

    def mutant(self, peer, message, payloads):
        record = self.keys.get(message.key_id)
        if record is not None and record.filled == len(record.slices):
            record.filled = 0
        return create(self, peer, message, payloads)

    patch.setattr(ServerState, "create", mutant)


def _wait_for_the_dead(patch):
    """Barriers wait for whoever has died."""
    patch.setattr("kvstore_mpi.scheduler.barriers.Barriers.drop", lambda self, workers: [])


def _introduce_nobody(patch):
    """The scheduler does not tell newcomers where the others are."""
    introduce = SchedulerState._introduce
    patch.setattr(
        SchedulerState,
        "_introduce",
        lambda self, newcomer: [] if self._started else introduce(self, newcomer),
    )


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.parametrize(
    "mutant",
    [_go_on_counting, _initialise_again, _wait_for_the_dead, _introduce_nobody],
    ids=lambda mutant: mutant.__name__.strip("_"),
)
def test_a_bug_is_caught(mutant, monkeypatch):
    """Each mutant breaks one rule, and some seed shows it."""
    mutant(monkeypatch)
    assert any(map(_fails, range(SEEDS_FOR_MUTANTS))), f"nobody noticed: {mutant.__doc__}"


def _fails(seed):
    try:
        run_seed(seed)
    except AssertionError:
        return True
    return False
