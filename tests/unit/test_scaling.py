"""The model of a host's processor and link time that large jobs are predicted with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from harness.scaling_model import Cost, Job, fit, link_seconds

JOBS = [Job(2, 600, 10**7, 2.0), Job(4, 700, 10**8, 3.0), Job(8, 900, 10**6, 1.0), Job(4, 100, 10**7, 9.0)]


def test_costs_are_found_again():
    """From times that were made by them."""
    cost = Cost(2e-4, 1e-9, 0.05)
    found = fit(JOBS, [cost.seconds(job) for job in JOBS])
    assert found == pytest.approx(cost)


def test_no_cost_is_negative():
    """Where seconds would have to give time back they cost nothing."""
    found = fit(JOBS, [max(1e-3, Cost(2e-4, 1e-9, -0.01).seconds(job)) for job in JOBS])
    assert min(found) >= 0


def test_what_stays_on_a_host_does_not_count():
    """Of two hosts half crosses, both ways; of one nothing does."""
    assert Job(2, 600, 10**7, 2.0).amounts == (300, 5 * 10**6, 2.0)
    assert link_seconds(Job(2, 600, 10**7, 2.0), 1e7) == 1.0
    assert link_seconds(Job(1, 600, 10**7, 2.0), 1e7) == 0.0
