"""Scripts with a plain Trainer of Gluon in jobs that go on."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from support.often import often

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def trained(start, tmp_path):
    """Return a function that trains from one step to another, and returns the code and what was said."""

    def train(name, steps, *options, **environment):
        told = {"STEPS": "{} {}".format(*steps), "SCHEDULE": "factor", **environment}
        place = tmp_path / name
        return start(
            place, (2, 1, 1), script="resuming_trainer.py", options=options, environment=told
        ).end()

    return train


@pytest.mark.parametrize("schedule", often(["own"], ["own", "factor"]))
def test_a_resumed_job_begins_with_the_saved_weights_or_says_what_to_call(trained, tmp_path, schedule):
    """Losses and learning rates are those of a job without a break; one that is refused spoils nothing."""

    def losses(name):
        return [np.load(tmp_path / f"{name}{rank}.npy") for rank in (0, 1)]

    options = ("--snapshot-dir", tmp_path / "snapshots")
    code, said = trained("uncut", (0, 8), SCHEDULE=schedule)
    assert code == 0, said[-3000:]
    code, said = trained("begun", (0, 5), *options, SCHEDULE=schedule, TAKES_UP="1")
    assert code == 0, said[-3000:]
    code, said = trained("refused", (5, 8), *options, "--resume", SCHEDULE=schedule)
    assert code == 64, said[-3000:]
    assert "call kvstore_mpi.mxnet.take_up(trainer) before the first recorded pass" in said
    code, said = trained("resumed", (5, 8), *options, "--resume", SCHEDULE=schedule, TAKES_UP="1")
    assert code == 0, said[-3000:]
    for begun, resumed, uncut in zip(losses("begun"), losses("resumed"), losses("uncut")):
        np.testing.assert_array_equal(np.hstack([begun, resumed]), uncut)


@pytest.mark.parametrize("saved", often([False], [True, False]), ids=["servers before", "workers before"])
def test_a_resumed_job_whose_workers_update(trained, tmp_path, saved):
    """Servers would take its pushes for gradients of their own rule, and sums for weights."""

    options, here = ("--snapshot-dir", tmp_path / "snapshots"), {"UPDATES_HERE": "1"}
    code, said = trained("begun", (0, 2), *options, TAKES_UP="1", **({} if saved else here))
    assert code == 0, said[-3000:]
    assert ("pushed to a store without an optimizer" in said) is not saved
    code, said = trained("resumed", (2, 4), *options, "--resume", TAKES_UP="1", **here)
    if saved:
        assert code == 64, said[-3000:]
        assert "its servers go on with the optimizer that has made 2 updates of the key, but here" in said
    else:
        assert code == 78, said[-3000:]
        assert "has no parameters to go on with: of the keys 1 it has the last sums" in said


def test_a_client_that_comes_back_pushes_nothing_of_its_first_weights(start, tmp_path):
    """Its first step brings what the others have trained, and its second one counts."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    job = start(pipe, (2, 1, 1), script="returning_trainer.py", options=("--max-restarts", "1"))
    workers = job.workers(2)
    os.kill(workers[1], signal.SIGKILL)
    (line,) = job.wait_for("incarnation 1")
    pipe.write_bytes(b"")
    code, said = job.end()
    assert code == 0, said[-3000:]
    assert line.rstrip().endswith("weights [1.0, 0.5]")
