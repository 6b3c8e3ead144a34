"""Jobs that go on with more or fewer servers than they had."""

from __future__ import annotations

import os
import shutil
import signal

import numpy as np
import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(300)]


def expected(steps):
    """Return the table of one process, in numbers that float32 has exactly."""
    weight, momentum = np.arange(46.0).reshape(23, 2), np.zeros((23, 2))
    for step in range(steps):
        gradient = np.zeros((23, 2))
        for rank in range(2):
            gradient[[step % 5, 5 + (3 * step + rank) % 18]] += 1
        rows = gradient[:, 0] > 0
        momentum[rows] = 0.5 * momentum[rows] - 0.5 * gradient[rows]
        weight[rows] += momentum[rows]
    return weight


def test_a_table_goes_on_with_other_servers(start, tmp_path):
    """Values and momentum are those of a training without a break, to the bit.

    At first the number of its pieces is looked for, and when the job goes on it is not.
    """
    snapshots, result, grown = (tmp_path / each for each in ("snapshots", "result.npy", "grown.npy"))
    for servers, begin, more, cuts in ((2, 0, (), {"CUTS": "1"}), (3, 8, ("--resume",), {})):
        options = ("--snapshot-dir", snapshots, *more)
        steps = {"STEPS": f"{begin} {begin + 8}", "GROWS": grown, **cuts}
        job = start(
            result, (1, 2, servers), script="resuming_tables.py", options=options, environment=steps
        )
        code, said = job.end()
        assert code == 0, said[-3000:]
        np.testing.assert_array_equal(np.load(result), expected(begin + 8))
        np.testing.assert_array_equal(np.load(grown), expected(begin + 8) - expected(0))
        bases = {f"server{index}-of-{servers}.snapshot" for index in range(servers)}
        assert {path.name for path in snapshots.glob("*.snapshot")} == bases


@pytest.mark.thorough
def test_a_table_that_one_job_does_not_train_is_there_in_the_next(start, tmp_path):
    """With as many servers, whose files have the same names: it trains another one meanwhile."""
    snapshots, result = tmp_path / "snapshots", tmp_path / "result.npy"
    for beside, begin, more in (("", 0, ()), ("alone", 8, ("--resume",)), ("", 8, ("--resume",))):
        options = ("--snapshot-dir", snapshots, *more)
        environment = {"STEPS": f"{begin} {begin + 8}", "BESIDE": beside}
        job = start(
            result, (1, 2, 2), script="resuming_tables.py", options=options, environment=environment
        )
        code, said = job.end()
        assert code == 0, said[-3000:]
        left = "the job that is resumed had the keys 't', which this script has not created"
        assert said.count(left) == (beside == "alone")
    np.testing.assert_array_equal(np.load(result), expected(16))


def test_a_job_of_one_client_goes_on_with_all_of_its_keys(start_here, tmp_path):
    """Without snapshots the workers would sum the dense key, and the table after its first 20 steps."""
    result, weight, momentum = tmp_path / "result.npy", 0.0, 0.0
    for begin, end, more in ((0, 24, ()), (24, 28, ("--resume",))):
        options = ("--snapshot-dir", tmp_path / "snapshots", *more)
        steps = {"STEPS": f"{begin} {end}"}
        job = start_here(result, (1, 2, 1), script="resuming_hybrid.py", options=options, environment=steps)
        code, said = job.end()
        assert code == 0, said[-3000:]
        assert said.count("tables and dense keys stay on the servers") == 1
        for _ in range(begin, end):
            momentum = 0.5 * momentum - 0.5 * 2
            weight += momentum
        np.testing.assert_allclose(np.load(result), np.full((51, 2), weight), rtol=1e-6)


def test_snapshots_have_nothing_of_workers(start_here, tmp_path):
    """Who gives keys to them, and wants snapshots, is told before anything is started."""
    options = ("--snapshot-dir", tmp_path / "snapshots", "--dense", "workers")
    job = start_here("nothing", (1, 2, 1), script="resuming_hybrid.py", options=options)
    code, said = job.end()
    assert code == 64, said[-3000:]
    assert "--dense workers does not go with --snapshot-dir: snapshots have what is on servers" in said


@pytest.mark.thorough
def test_a_server_is_killed_while_a_table_is_cut_anew(start, tmp_path):
    """The job ends and names it; one that is resumed has every row of every step, once."""
    snapshots, result, pipe = tmp_path / "snapshots", tmp_path / "result.npy", tmp_path / "pipe"
    os.mkfifo(pipe)
    common = {"script": "resuming_tables.py"}
    options = ("--snapshot-dir", snapshots, "--snapshot-every", "0.1", "--grace", "5")
    waits = {"STEPS": "0 16", "CUTS": "1", "WAITS": pipe}
    job = start(result, (1, 2, 2), options=options, environment=waits, **common)
    job.workers(1)
    (line,) = job.wait_for("READY 0")
    steps = int(line.split()[-2])
    assert 0 < steps < 16
    for server in range(2):
        for _ in range(2):  # the first one may have been begun before the workers were as far
            job.wait_for_news(snapshots / f"server{server}-of-2.snapshot")
    os.kill(job.services()["server1"], signal.SIGKILL)
    code, said = job.end()
    assert code == 128 + signal.SIGKILL, said[-3000:]
    assert "server1 on" in said
    more = ("--snapshot-dir", snapshots, "--resume")
    rest = {"STEPS": f"{steps} 16", "CUTS": "1"}
    job = start(result, (1, 2, 2), options=more, environment=rest, **common)
    code, said = job.end()
    assert code == 0, said[-3000:]
    np.testing.assert_array_equal(np.load(result), expected(16))


def killed(job, snapshots):
    """Kill a job whose workers wait, once its servers have saved what they have come to."""
    job.workers(2)
    for server in range(2):
        for _ in range(2):  # the first one may have been begun before the workers were as far
            job.wait_for_news(snapshots / f"server{server}-of-2.snapshot")
    job.kill_all()


@pytest.mark.thorough
def test_a_killed_job_goes_on_with_fewer_and_more_servers(start, tmp_path):
    """Its losses are those of a job that was never killed, to the bit, with each of three optimizers."""

    def training(name, servers, steps, *options, **environment):
        return start(
            tmp_path / name,
            (2, 1, servers),
            script="resuming_dense.py",
            options=("--set", "slice_elements=20", *options),
            environment={"STEPS": "{} {}".format(*steps), **environment},
        )

    def losses(name):
        return [np.load(tmp_path / f"{name}{rank}.npy") for rank in (0, 1)]

    def ended(job):
        code, said = job.end()
        assert code == 0, said[-3000:]

    snapshots = tmp_path / "snapshots"
    options = ("--snapshot-dir", snapshots, "--snapshot-every", "0.1")
    killed(training("begun", 2, (0, 6), *options, WAITS="1"), snapshots)
    shutil.copytree(snapshots, tmp_path / "again")
    ended(training("uncut", 2, (0, 12)))
    for servers, folder in ((1, snapshots), (3, tmp_path / "again")):
        name = f"on{servers}"
        ended(training(name, servers, (6, 12), "--snapshot-dir", folder, "--resume"))
        bases = {f"server{index}-of-{servers}.snapshot" for index in range(servers)}
        assert {path.name for path in folder.glob("*.snapshot")} == bases
        for begun, more, uncut in zip(losses("begun"), losses(name), losses("uncut")):
            np.testing.assert_array_equal([*begun, *more], uncut)
