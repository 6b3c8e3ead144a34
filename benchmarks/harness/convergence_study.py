"""Tunes and tests every mode in a scenario. Seeds to tune on and to test on have nothing in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .convergence_modes import EFFECTIVE_RATES, NUM_WORKERS, Family, Setting
from .convergence_network import Digits, accuracy, gradient, initial
from .convergence_training import Costs, Training

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Array = np.ndarray[Any, Any]

GOAL = 0.95
SAMPLES = 200
"""The center is looked at so many times in a run, at equal distances."""

TUNING_SEEDS = (100, 101, 102, 103)
ALLREDUCE_SHARE = 0.25
"""The links inside a client are four times as fast as the servers'."""


@dataclass(frozen=True)
class Scenario:
    """A world in which modes are compared.

    Attributes:
        name: For tables.
        transfer: See ``Costs``.
        horizon: Length of a run in steps of computation.
        momentum: Of the optimizer of gradients, on the servers or in the clients.
        iid: See ``Digits``.
        slow_worker: See ``Costs``.
    """

    name: str
    transfer: float
    horizon: float
    momentum: float = 0.9
    iid: bool = False
    slow_worker: float = 1.0

    def describe(self) -> str:
        """Return the scenario in words."""
        slow = f", one worker {self.slow_worker:g} times slower" if self.slow_worker != 1.0 else ""
        data = "all data for every worker" if self.iid else "a fixed part of the data for each worker"
        return f"transfer {self.transfer:g} steps, momentum {self.momentum:g}, {data}{slow}"

    def costs(self) -> Costs:
        """Return the cost model."""
        return Costs(self.transfer, ALLREDUCE_SHARE * self.transfer, slow_worker=self.slow_worker)


SCENARIOS = (
    Scenario("cheap", 0.04, 300),
    Scenario("middle", 0.25, 500),
    Scenario("server-bound", 1.0, 1200),
    Scenario("very-bound", 4.0, 3000),
    Scenario("cheap-plain", 0.04, 400, momentum=0.0),
    Scenario("server-bound-plain", 1.0, 1200, momentum=0.0),
    Scenario("cheap-slow", 0.04, 600, slow_worker=4.0),
    Scenario("server-bound-slow", 1.0, 1500, slow_worker=4.0),
    Scenario("cheap-iid", 0.04, 300, iid=True),
    Scenario("server-bound-iid", 1.0, 1200, iid=True),
)
"""0.04: ResNet-50 (100 MB), 1.3 s a step, two servers with 1 GB/s each. 1: sending the model once takes as
long as computing a step. ``plain`` is without momentum; in ``slow`` one worker takes four times as long."""


@dataclass(frozen=True)
class Outcome:
    """One mode in one scenario.

    Attributes:
        scenario: Name of the scenario.
        mode: Name of the mode.
        setting: What was chosen on the tuning seeds.
        at_edge: The learning rate is the least or greatest that could be chosen.
        curve: Mean over the seeds of the center's accuracy, at each sample.
        times: Per seed the first time at which the accuracy is at least ``GOAL``; ``None`` if never.
        final: Per seed the accuracy at the end.
        steps: Per seed the mean number of steps of a client until the end.
    """

    scenario: str
    mode: str
    setting: Setting
    at_edge: bool
    curve: tuple[float, ...]
    times: tuple[float | None, ...]
    final: tuple[float, ...]
    steps: tuple[float, ...]


class _DigitsLearner:
    """Gradients of the small network on the digits."""

    def __init__(self, digits: Digits) -> None:
        self._digits = digits

    def gradient(self, workers: Sequence[int], params: Array) -> Array:
        """See ``Learner``."""
        with np.errstate(all="ignore"):  # a rate that is too great diverges, which its accuracy shows
            return gradient(params, *self._digits.batch(workers))


class Run:
    """One training with its data."""

    def __init__(self, family: Family, setting: Setting, scenario: Scenario, seed: int) -> None:
        """Set up, with everything random decided by the seed."""
        self._scenario = scenario
        self.digits = Digits(seed, NUM_WORKERS, iid=scenario.iid)
        self.training = Training(
            family.mode(setting),
            scenario.costs(),
            _DigitsLearner(self.digits),
            initial(seed),
            num_workers=NUM_WORKERS,
            seed=seed,
        )

    def samples(self) -> Iterator[tuple[float, Array]]:
        """Train on, and yield the time and the center at each sample."""
        for number in range(1, SAMPLES + 1):
            time = self._scenario.horizon * number / SAMPLES
            yield time, self.training.run(time)


def tune(family: Family, scenario: Scenario, settings: Sequence[Setting]) -> Setting:
    """Return the setting with the least sum of times to the goal on the tuning seeds.

    A run that does not reach the goal counts its length and, so that such runs can be compared at all, the
    missing accuracy. A setting is given up once it cannot be the best any more.
    """
    best, best_cost = settings[0], float("inf")
    for setting in settings:
        cost = 0.0
        for seed in TUNING_SEEDS:
            cost += _time_to_goal(Run(family, setting, scenario, seed), best_cost - cost)
            if cost >= best_cost:
                break
        else:
            best, best_cost = setting, cost
    return best


def _time_to_goal(run: Run, limit: float) -> float:
    """Return the time, or some time of at least ``limit`` if it is not less."""
    time, reached = 0.0, 0.0
    for time, params in run.samples():
        reached = accuracy(params, run.digits.tuning_images, run.digits.tuning_labels)
        if reached >= GOAL or time >= limit:
            return time
    return time * (1.0 + GOAL - reached)


def evaluate(family: Family, scenario: Scenario, setting: Setting, seeds: Sequence[int]) -> Outcome:
    """Run a mode to the end on the test seeds, and look at its accuracy on the test data."""
    curves, steps = [], []
    for seed in seeds:
        run = Run(family, setting, scenario, seed)
        curves.append(
            [
                accuracy(params, run.digits.test_images, run.digits.test_labels)
                for _, params in run.samples()
            ]
        )
        steps.append(float(np.mean(run.training.steps)))
    rates = [round(rate * (1 - setting.momentum), 6) for rate in EFFECTIVE_RATES]
    return Outcome(
        scenario.name,
        family.name,
        setting,
        setting.lr in (min(rates), max(rates)),
        tuple(round(float(value), 4) for value in np.mean(curves, axis=0)),
        tuple(_first_time(curve, scenario.horizon) for curve in curves),
        tuple(round(curve[-1], 4) for curve in curves),
        tuple(steps),
    )


def _first_time(curve: Sequence[float], horizon: float) -> float | None:
    for number, value in enumerate(curve, start=1):
        if value >= GOAL:
            return horizon * number / SAMPLES
    return None
