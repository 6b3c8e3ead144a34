"""The model of time and processor time that large jobs are predicted with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from harness.scaling_model import Case, Cost, Model, Step, fit, fitted, link_seconds, slices_of

STEPS = [
    Step(workers, servers, slices, num_bytes, messages)
    for workers, servers in ((2, 1), (4, 1), (4, 2), (8, 4))
    for slices, num_bytes, messages in (
        (1, 4_000, 2),
        (160, 640_000, 8),
        (20, 4_000_000, 11),
        (9, 2_000_000, 5),
    )
]
MODEL = Model(
    Cost(1e-4, 8e-5, 2e-5, 3e-10), Cost(3e-5, 0.0, 5e-6, 1e-11), Cost(6e-5, 4e-5, 2e-5, 5e-10), 2e-4
)


def run(step, cores=2):
    """Return what would be measured if the model were right."""
    worker = MODEL.worker.seconds(step.of_worker)
    return {
        **step._asdict(),
        "thread_s": worker,
        "worker_s": worker + MODEL.rest.seconds(step.of_worker),
        "server_s": MODEL.server.seconds(step.of_server),
        "seconds": MODEL.seconds(step, cores),
    }


def test_a_model_is_found_again():
    """From times that were made by it: costs of each kind of process, and what a step takes besides."""
    found = fitted([run(step) for step in STEPS], 2)
    for ours, theirs in zip(found[:3], MODEL[:3]):
        assert ours == pytest.approx(theirs, abs=1e-12)
    assert found.wait_s == pytest.approx(MODEL.wait_s)


def test_no_cost_is_negative():
    """Where messages would have to give time back they cost nothing."""
    cost = Cost(1e-4, -1e-6, 2e-5, 3e-10)
    amounts = [step.of_worker for step in STEPS]
    assert min(fit(amounts, [cost.seconds(each) for each in amounts])) >= 0


def test_a_server_has_its_share_of_all_workers():
    """Of eight workers and four servers each has what two workers push."""
    assert Step(8, 4, 10, 1000, 6).of_server == (1, 12, 20, 2000)


def test_the_busiest_server_has_a_slice_more():
    """Of 675 slices for 1,000 servers one, where the mean is less; of twice as many as servers two."""
    assert Step(1000, 1000, 675, 1, 1).unevenness == pytest.approx(1000 / 675)
    assert Step(4, 2, 4, 1, 1).unevenness == 1


def test_a_step_takes_what_its_processors_or_its_busiest_thread_need():
    """Two cores are the limit for many processes, and a thread where there are cores enough."""
    step = Step(8, 1, 160, 640_000, 8)
    assert MODEL.seconds(step, 2) == pytest.approx(MODEL.wait_s + MODEL.processors(step) / 2)
    assert MODEL.seconds(step, 1000) == pytest.approx(MODEL.wait_s + max(MODEL.threads(step).values()))


def test_what_stays_on_a_host_does_not_cross():
    """Of two hosts half of what is pushed and answered does; of one nothing."""
    assert link_seconds(10**7, 2, 1e7) == 1.0
    assert link_seconds(10**7, 1, 1e7) == 0.0


def test_cases_and_slices_are_counted():
    """Each tensor is cut by itself."""
    assert Case.of(str(Case(160, 1000, 20))) == Case(160, 1000, 20)
    assert slices_of([1, 100, 101, 250], 100) == 1 + 1 + 2 + 3
