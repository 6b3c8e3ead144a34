"""Elastic averaging goes on, and gets as far, when a rank, a client or a server is killed or late."""

from __future__ import annotations

import json
import os
import re
import signal

import numpy as np
import pytest

from kvstore_mpi.server import snapshot_file
from kvstore_mpi.server.snapshot_records import VALUE
from kvstore_mpi.server.snapshot_sets import path_of

LAYOUT = (2, 2, 2)
SMALL = (2, 1, 2)
ACCURACY = 0.96
GAIN = 100 // 4 * 8
"""Exchanges in the steps of which ``elastic.py`` tells: every fourth step, eight parameter arrays."""

LOSS_TOLERANCE = 0.25
"""By so much a newcomer's loss may be above the others' after its first exchange; untrained it is 2.3."""

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.mxnet,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
by_itself = pytest.mark.thorough
"""What happens to a job of its own; ``test_one_job_survives_all`` has most of it, one after the other."""


def begin(start, tmp_path, *options, layout=LAYOUT, restarts=1, environment=(), **terms):
    """Start a job; return it, the file that ends it, and the workers' process numbers once they train."""
    stop = tmp_path / "stop"
    options = ("--max-restarts", restarts, *options)
    environment = {"TERMS": json.dumps(terms), **dict(environment)}
    job = start(stop, layout, script="elastic.py", options=options, environment=environment)
    return job, stop, job.workers(layout[0] * layout[1])


def gain(job, tmp_path, number=0):
    """Let client 0 count a hundred steps, all of which come after this call; return their exchanges."""
    (tmp_path / f"count{number}").touch()
    (line,) = job.wait_for(f"GAINED {number} by 0:")
    return int(line.split()[-2])


def finish(job, stop, workers=4):
    """Let the job end well; return what it said."""
    stop.touch()
    family = job.family()
    code, said = job.end()
    assert code == 0, said[-3000:]
    job.check_gone(family)
    ended = re.findall(r"CENTER (\d) incarnation (\d+) accuracy (\S+)", said)
    reached = {int(rank): float(value) for rank, _, value in ended}
    assert sorted(reached) == [*range(workers)]
    # No barrier waits for a client that was started again: until it has ended, too, the others see a center
    # that it still moves. Who ends last sees what all have come to.
    restarted = any(incarnation != "0" for _, incarnation, _ in ended)
    assert (max if restarted else min)(reached.values()) >= ACCURACY, reached
    return said


def untrained(lines):
    """Return those of the lines that tell of workers who have not begun with what others have reached."""
    return [line for line in lines if float(line.split()[-1]) <= 0.5]


def check_losses(job, ranks):
    """A newcomer's loss, after its first exchange, is near that of ranks that have trained longer."""
    told = (line.split()[-2:] for line in job.wait_for("LOSS ", 2 * ranks))
    losses = [loss for _, loss in sorted((int(rank), float(loss)) for rank, loss in told)]
    assert max(losses[ranks:]) <= max(losses[:ranks]) + LOSS_TOLERANCE, losses


@pytest.mark.parametrize("layout", [SMALL, pytest.param(LAYOUT, marks=by_itself)], ids=str)
def test_one_job_survives_all(start, tmp_path, layout):
    """A client comes late; then a rank is killed, a whole client, and a server; all come back trained."""
    stop, comes, ranks = tmp_path / "stop", tmp_path / "comes0", layout[1]
    os.mkfifo(comes)
    options = ("--start-with", "1", "--max-restarts", "3")
    job = start(stop, layout, script="elastic.py", options=options)
    early = job.wait_for("incarnation 0 from", ranks)
    comes.write_bytes(b"now")
    late = [line for line in job.wait_for("incarnation 0 from", 2 * ranks) if line not in early]
    check_losses(job, ranks)
    workers = job.workers(2 * ranks)
    os.kill(workers[ranks - 1], signal.SIGKILL)
    job.wait_for("incarnation 1 from", ranks)
    for rank in range(ranks, 2 * ranks):
        os.kill(workers[rank], signal.SIGKILL)
    back = job.wait_for("incarnation 1 from", 2 * ranks)
    os.kill(job.services()["server1"], signal.SIGKILL)
    job.wait_for("server1 is back", 2)
    said = finish(job, stop, 2 * ranks)
    assert len(late) == ranks
    assert untrained([*late, *back]) == []
    assert "has not joined yet" in said
    assert re.findall(r"CENTER \d incarnation (\d)", said) == ["1"] * 2 * ranks
    for number, who in enumerate(
        (f"client0 after client0.{ranks - 1}", "client1 after client1", "server1 after server1")
    ):
        assert f"restart {number + 1} of at most 3: {who}" in said


@by_itself
def test_a_synchronous_round_without_a_late_client_is_an_error(start, tmp_path):
    """It names the client that has not joined, and the job ends."""
    stop = tmp_path / "stop"
    os.mkfifo(tmp_path / "comes0")
    environment = {"STORE": "sync-mpi", "TERMS": json.dumps({"alpha": 0.45})}
    job = start(
        stop, (2, 1, 1), script="elastic.py", options=("--start-with", "1"), environment=environment
    )
    code, said = job.end()
    assert code == 69, said[-3000:]
    error = r"PeerLostError: client1\.0 or its client has not joined yet, .* with --start-with 1"
    assert re.search(error, said), said[-3000:]


@by_itself
@pytest.mark.paper("MXNET-MPI section 6")
@pytest.mark.parametrize("rounds", ["async", "quorum"])
def test_nobody_waits_for_a_client_that_stands_still(start, tmp_path, rounds):
    """The other one goes on exchanging; with a quorum, each time after the quorum wait."""
    options = {}
    if rounds == "quorum":
        options = {"environment": {"STORE": "sync-mpi"}, "alpha": 0.45, "quorum": 1, "quorum_wait": 0.05}
    job, stop, workers = begin(start, tmp_path, layout=SMALL, restarts=0, **options)
    os.kill(workers[1], signal.SIGSTOP)
    assert gain(job, tmp_path) == GAIN
    os.kill(workers[1], signal.SIGCONT)
    finish(job, stop, 2)


@by_itself
@pytest.mark.parametrize(
    ("ranks", "phases"),
    [(1, ["before_the_push", "before_the_answer"]), (2, ["in_the_broadcast"])],
    ids=["between_client_and_server", "in_the_broadcast"],
)
def test_a_client_dies_in_each_phase_of_an_exchange(start, tmp_path, ranks, phases):
    """Before its push, its answer, and what its ranks are given: the other goes on, and it comes back."""
    pipes = [tmp_path / f"comes{incarnation + 1}" for incarnation in range(len(phases))]
    for pipe in (*pipes, tmp_path / "there"):
        os.mkfifo(pipe)
    options = {"restarts": len(phases), "environment": {"DIES": " ".join(phases)}}
    job, stop, _ = begin(start, tmp_path, layout=(2, ranks, 1), **options)
    for death, pipe in enumerate(pipes):
        job.wait_for(f"restart {death + 1} of at most {len(phases)}: client1 after client1.0")
        assert gain(job, tmp_path, death) == GAIN  # all of it before the client is let in again
        pipe.write_bytes(b"now")
    back = job.wait_for(f"incarnation {len(phases)} from", ranks)
    assert untrained(back) == []
    said = finish(job, stop, 2 * ranks)
    for death, phase in enumerate(phases):
        assert f"DIES {phase} in incarnation {death}" in said


def center_in(folder):
    """Return the arrays that the servers' snapshots have together, by key."""
    pieces = {}
    for server in range(SMALL[2]):
        header, arrays = snapshot_file.read(path_of(str(folder), server, SMALL[2]))
        arrays = iter(arrays)
        for key in header.keys:
            for record in key.arrays:
                array = next(arrays)
                if record.index == VALUE:
                    pieces.setdefault(f"key {key.spec.key}", {})[record.lo] = array
    return {key: np.concatenate([parts[lo] for lo in sorted(parts)]) for key, parts in pieces.items()}


def assert_equal(saved, center):
    """The parameters that a worker has saved are a center, to the bit."""
    params = np.load(saved)
    assert {*params} == {*center}
    for key, value in center.items():
        np.testing.assert_array_equal(params[key].ravel(), value, err_msg=key)


@by_itself
def test_a_job_that_was_killed_is_resumed_with_its_center(start, tmp_path):
    """All begin with what the snapshots have, to the bit; and those at the end are the last center."""
    folder = tmp_path / "snapshots"
    options = ("--snapshot-dir", folder, "--snapshot-every", "1")
    job, stop, _ = begin(start, tmp_path, *options, layout=SMALL, restarts=0)
    for server in range(SMALL[2]):
        job.wait_for_news(path_of(str(folder), server, SMALL[2]))
    job.kill_all()
    center = center_in(folder)
    job, stop, _ = begin(
        start, tmp_path, *options, "--resume", layout=SMALL, restarts=0, environment={"BEGINS": "1"}
    )
    for rank in range(2):
        assert_equal(tmp_path / f"begun{rank}.npz", center)
    said = finish(job, stop, 2)
    begun = [float(accuracy) for accuracy in re.findall(r"incarnation 0 from (\S+)", said)]
    assert min(begun) > 0.5, begun
    for rank in range(2):
        assert_equal(tmp_path / f"ended{rank}.npz", center_in(folder))


@by_itself
@pytest.mark.parametrize("snapshot", [True, False], ids=["with_a_snapshot", "without"])
def test_a_server_comes_back(start, tmp_path, snapshot):
    """While it is away its exchanges are left out, with one warning, and nobody waits."""
    folder = tmp_path / "snapshots"
    options = ("--snapshot-dir", folder, "--snapshot-every", "1") if snapshot else ()
    options += () if snapshot else ("--transport", "tcp")  # within a host nothing is compressed otherwise
    terms = {} if snapshot else {"overlap": 2, "compress": "int8"}
    job, stop, _ = begin(start, tmp_path, *options, **terms)
    if snapshot:
        job.wait_for_news(folder / "server1-of-2.snapshot")  # the first one may be without its part
    os.kill(job.services()["server1"], signal.SIGKILL)
    job.wait_for("server1 is back", 2)
    said = finish(job, stop)
    assert said.count("what is pushed to it until it is back is lost") == 4  # once on each worker


def moved(before, given):
    """Return the center after one exchange, which the server computes in this order."""
    return before - 0.5 * (before - given)


def path_to(center, answered, unanswered):
    """Return the exchanges that have led from zero to a center; none is used twice.

    An exchange is what was given and the center before it. All that was given are random numbers, so that
    all centers differ. Of an exchange that the server died before it had answered nobody knows the center.
    """
    by_result = {moved(before, given): (given, before) for given, before in answered}
    known = np.array([0.0, *by_result])
    unanswered = {given for given, _ in unanswered}
    path = set()
    while center != 0.0:
        if center in by_result:
            given, before = by_result.pop(center)
        else:
            found = [
                (given, before) for given in unanswered for before in known[moved(known, given) == center]
            ]
            assert len(found) == 1, f"no exchange, or more than one, has led to {center}"
            [(given, before)] = found
            unanswered.remove(given)
        path.add((given, before))
        center = before
    return path


@by_itself
def test_no_exchange_counts_twice_when_a_server_is_killed(start, tmp_path):
    """Exchanges that count once each explain the center; lost are each client's last before the death."""
    stop, snapshots = tmp_path / "stop", tmp_path / "snapshots"
    options = ("--max-restarts", "1", "--snapshot-dir", snapshots, "--snapshot-every", "1")
    job = start(stop, (2, 1, 1), script="recording.py", options=options)
    job.workers(2)
    for _ in range(2):  # the first one may have been begun before the clients were as far
        job.wait_for_news(snapshots / "server0-of-1.snapshot")
    os.kill(job.services()["server0"], signal.SIGKILL)
    job.wait_for("server0 is back", 2)
    stop.touch()
    code, said = job.end()
    assert code == 0, said[-3000:]
    assert "took up 1 keys" in said
    records = [json.loads((tmp_path / f"record{rank}.json").read_text()) for rank in (0, 1)]
    exchanges = [[tuple(exchange) for exchange in record] for record in records]
    all_of_them = {exchange for record in exchanges for exchange in record}
    skipped = {(given, before) for given, before in all_of_them if given == before}
    [center] = {float(value) for value in re.findall(r"DONE \d value (\S+)", said)}
    path = path_to(center, all_of_them - skipped, skipped)
    for record in exchanges:
        death = next(at for at, exchange in enumerate(record) if exchange in skipped)
        counts = [exchange in path for exchange in record[:death]]
        assert counts[0]
        assert counts == sorted(counts, reverse=True)
        assert {exchange for exchange in record[death:] if exchange not in skipped} <= path
