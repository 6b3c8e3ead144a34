"""Workers of several ranks that cannot begin, or lose a rank: one error on all ranks, and nothing hangs."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from support.part_jobs import CLIENTS, SCRIPTS, launch
from support.whole_jobs import Job

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.thorough, pytest.mark.slow]

SOON_S = 100
"""What ends within this time has not waited for a deadline of the job, on a busy machine neither."""


@pytest.mark.parametrize(
    ("what", "options", "error"),
    [
        ("one_layer", CLIENTS, "2 stages cannot be made of 1 layers: give --model-parallel 1 or less"),
        ("no_memory", (), "no cut into 2 stages fits into 100 bytes for each: the layer dense"),
    ],
)
def test_a_net_that_cannot_be_cut_ends_all_ranks(tmp_path, what, options, error):
    """All have the error, whoever meets it; the job ends with it, once, and with its exit code."""
    since = time.monotonic()
    code, text = launch(tmp_path, "part_failures.py", "sync", what, options=options)
    assert time.monotonic() - since < SOON_S
    assert code == 64, text
    for worker in range(2 if options else 1):
        for rank in range(2):
            assert f"rank {rank} of worker {worker} knows" in text
    [told] = re.findall(r"^mpilaunch\|   (UsageError: .*)$", text, re.MULTILINE)
    assert told.startswith(f"UsageError: {error}")


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("new_shape", "have different nets, plans, optimizers or batches"),
        ("known_shape", "have different nets, plans, optimizers or batches"),
        ("fewer_batches", "have come instead of 8: let all ranks of a worker make the same calls"),
        ("more_batches", "rank 0's word on this step: 8 bytes have come instead of 64: let all ranks"),
        ("bare_first_stage", "rank 0's word on this step: 8 bytes have come instead of 64"),
        ("values", "have batches of one shape with different values"),
        ("first_ends", "rank 0's word on this step: rank 0 has finished; let all ranks"),
        ("last_ends", "from rank 1 to 0: rank 1 has finished; let all ranks"),
        ("far_first_ends", "rank 0's word on this step: rank 0 has finished; let all ranks"),
        ("far_last_ends", "from rank 1 to 0: rank 1 has finished; let all ranks"),
    ],
)
def test_ranks_of_a_worker_with_other_batches_are_told_at_once(tmp_path, what, error):
    """Whether their shapes are new or known, and where one has fewer before ``gather`` or its end."""
    since = time.monotonic()
    code, text = launch(tmp_path, "part_failures.py", "sync", what)
    assert time.monotonic() - since < SOON_S
    assert code == 76, text
    [told] = re.findall(r"^mpilaunch\|   (MismatchError: .*)$", text, re.MULTILINE)
    assert error in told


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_rank_that_dies_in_a_step_ends_the_job(tmp_path, mode):
    """Two clients and a server: at once, with one error that names it, and no process is left."""
    words = ("--model-parallel", "2", *CLIENTS, "--log-dir", tmp_path, SCRIPTS / "part_failures.py", mode)
    job = Job([str(Path(sys.executable).with_name("mpilaunch")), *map(str, words), "dies"])
    [line] = job.wait_for("STOPPED")
    family = job.family()
    since = time.monotonic()
    os.kill(int(line.split()[-1]), signal.SIGKILL)
    code, text = job.end()
    assert time.monotonic() - since < SOON_S
    assert code == 137, text
    told = [each for each in text.splitlines() if "failed first" in each]
    assert len(told) == 1
    assert re.match(r"mpilaunch\| client1\.1 on .* failed first: .*SIGKILL", told[0]), told
    job.check_gone(family)


def test_a_rank_that_is_stuck_is_seen(tmp_path):
    """An inspection names it, and where its program is, before the wait of the other is an error."""
    code, text = launch(tmp_path, "part_failures.py", "sync", "stuck", steps_wait=6)
    assert code == 69, text
    [found] = re.findall(r"^mpilaunch\| (client0\.1 on .*)$", text, re.MULTILINE)
    assert re.search(
        r"holds up the job: gradient 0 of .*, from rank 1 to 0; client0\.0 waits for it", found
    )
    assert "part_failures.py" in found
