"""Processes that die in training that does not wait for them, and are started again."""

from __future__ import annotations

import os
import re
import shutil
import signal

import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(300)]


def begin(start, tmp_path, layout, *options):
    """Start a job that trains until the test makes a file."""
    stop = tmp_path / "stop"
    job = start(stop, layout, script="returning.py", options=options)
    return job, stop


def finish(job, stop):
    """Let the job end; return its exit code, what it said, and what each rank has seen at the end."""
    stop.touch()
    family = job.family()
    code, said = job.end()
    job.check_gone(family)
    found = re.findall(r"DONE (\d+) incarnation (\d+) steps (\d+) value (\S+)", said)
    ends = {
        int(rank): (int(incarnation), int(steps), float(value)) for rank, incarnation, steps, value in found
    }
    return code, said, ends


def test_a_killed_client_comes_back(start, tmp_path):
    """It takes up what the others have trained, they never stop, and the job ends well."""
    job, stop = begin(start, tmp_path, (2, 2, 1), "--max-restarts", "1", "--trace", tmp_path / "trace")
    workers = job.workers(4)
    os.kill(workers[1], signal.SIGKILL)
    back = job.wait_for("incarnation 1", 2)
    code, said, ends = finish(job, stop)
    assert code == 0, said[-3000:]
    assert {rank: incarnation for rank, (incarnation, _, _) in ends.items()} == {0: 1, 1: 1, 2: 0, 3: 0}
    assert all("client0." in line and "~1|" in line for line in back)
    assert "restart 1 of at most 1: client0 after client0.1: SIGKILL (exit code 137)" in said
    assert "restarted during the job: client0 after client0.1: SIGKILL" in said
    assert "not in the trace: what client0 did before the last restart" in said
    # Each step of a client of two takes 2 off what rank 0 once gave; the dead one had some steps, too.
    assert max(float(line.split()[-1]) for line in back) < 1000.0 - 2 * 20
    steps = ends[0][1] + ends[2][1]
    assert 1000.0 - 2 * steps > min(value for _, _, value in ends.values())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("victim", "layout", "more"),
    [
        ("client", (2, 1, 1), ()),
        ("server", (2, 1, 1), ()),
        ("client", (2, 2, 1), ("--lookups", "together")),
        ("server", (2, 2, 1), ("--lookups", "together")),
    ],
    ids=["a client", "a server", "a client that looks up together", "a server that is asked for all"],
)
def test_a_table_goes_on_when_somebody_has_died(start_here, tmp_path, victim, layout, more):
    """What its own row has of each rank's pushes is in the row of all, too, and the living lose nothing."""
    options = (
        "--max-restarts",
        "1",
        "--snapshot-dir",
        tmp_path / "snapshots",
        "--snapshot-every",
        "1",
        *more,
    )
    stop = tmp_path / "stop"
    how = {"script": "returning.py", "options": options, "environment": {**os.environ, "TABLE": "1"}}
    job = start_here(stop, layout, **how)
    clients, ranks, _ = layout
    workers = job.workers(clients * ranks)
    if victim == "client":
        os.kill(workers[ranks], signal.SIGKILL)
        job.wait_for("incarnation 1", ranks)
    else:
        job.wait_for_news(tmp_path / "snapshots/server0-of-1.snapshot")
        os.kill(job.services()["server0"], signal.SIGKILL)
        job.wait_for("server0 is back", clients * ranks)
    code, said, ends = finish(job, stop)
    assert code == 0, said[-3000:]
    rows = dict(re.findall(r"ROWS (\d+) ([-\d ]+)", said))
    for rank, (incarnation, steps, _) in ends.items():
        # Each has its own: who was started again is at other barriers than the other.
        every, *own = map(int, rows[str(rank)].split())
        assert every == sum(own)
        pushed = own[2 * rank + incarnation]
        assert 20 <= pushed <= steps if victim == "server" else pushed == steps
        assert victim == "server" or own[2 * ranks] >= 20  # of the incarnation that has died


def test_a_table_is_lost_with_its_server_where_nothing_is_saved(start_here, tmp_path):
    """No worker has a copy of it; the job ends and says what would have saved it."""
    how = {"script": "returning.py", "environment": {**os.environ, "TABLE": "1"}}
    job = start_here(tmp_path / "stop", (2, 1, 1), options=("--max-restarts", "1"), **how)
    job.workers(2)
    os.kill(job.services()["server0"], signal.SIGKILL)
    code, said = job.end()
    assert code == 128 + signal.SIGKILL, said[-3000:]
    assert "server0 has been started again without its value of key 't'" in said
    assert "no worker has a copy; give --snapshot-dir, where servers save it" in said


@pytest.mark.thorough
def test_restarts_are_used_up(start, tmp_path):
    """The job ends with what was the matter, and says what it has survived."""
    job, _ = begin(start, tmp_path, (2, 1, 1), "--max-restarts", "1")
    os.kill(job.workers(2)[1], signal.SIGKILL)
    (line,) = job.wait_for("incarnation 1")
    os.kill(job.pid_of(1, int(line.split()[3])), signal.SIGTERM)
    code, said = job.end()
    assert code == 128 + signal.SIGTERM, said[-3000:]
    assert "client1.0~1" in said
    assert "restarted during the job: client1 after client1.0: SIGKILL" in said


def test_a_synchronous_job_is_not_restarted(start):
    """Rounds cannot go on without a client: the first cause ends the job, as without restarts."""
    job = start("train_for_ever", (2, 1, 1), options=("--max-restarts", "2"))
    os.kill(job.workers(2)[1], signal.SIGKILL)
    code, said = job.end()
    assert code == 128 + signal.SIGKILL, said[-3000:]
    assert "client1.0" in said


@pytest.mark.thorough
def test_a_killed_client_comes_back_to_rounds_with_a_quorum(start, tmp_path):
    """It begins with the center that the other has reached alone, and takes part in the next rounds."""
    stop = tmp_path / "stop"
    job = start(stop, (2, 1, 1), script="returning_quorum.py", options=("--max-restarts", "1"))
    os.kill(job.workers(2)[0], signal.SIGKILL)
    (back,) = job.wait_for("incarnation 1")
    assert float(back.split()[-1]) < 100.0  # not the 2000 that it gives, nor the 1000 from which all began
    code, said, ends = finish(job, stop)
    assert code == 0, said[-3000:]
    assert {rank: incarnation for rank, (incarnation, _, _) in ends.items()} == {0: 1, 1: 0}
    assert "restart 1 of at most 1: client0 after client0.0: SIGKILL" in said


def test_a_killed_server_comes_back_with_its_snapshot(start, tmp_path):
    """Pushes since the snapshot are lost, none counts twice, and training goes on where it was."""
    snapshots = tmp_path / "snapshots"
    options = ("--max-restarts", "1", "--snapshot-dir", snapshots, "--snapshot-every", "1")
    job, stop = begin(start, tmp_path, (2, 1, 1), *options)
    job.workers(2)
    # The first one may be of the optimizer alone: it is written as soon as there is anything.
    job.wait_for_news(snapshots / "server0-of-1.snapshot")
    os.kill(job.services()["server0"], signal.SIGKILL)
    job.wait_for("server0 is back", 2)
    code, said, ends = finish(job, stop)
    assert code == 0, said[-3000:]
    assert "took up 1 keys" in said
    assert said.count("what is pushed to it until it is back is lost") == 2
    steps = sum(count for _, count, _ in ends.values())
    values = {value for _, _, value in ends.values()}
    assert len(values) == 1
    assert 1000.0 - steps <= values.pop() < 1000.0 - 20


def test_a_killed_server_without_a_snapshot_is_given_a_worker_s_values(start, tmp_path):
    """The first client that meets it again gives it what it has, and the update rule."""
    job, stop = begin(start, tmp_path, (2, 2, 2), "--max-restarts", "1")
    job.workers(4)
    os.kill(job.services()["server1"], signal.SIGKILL)
    job.wait_for("server1 is back", 4)
    code, said, ends = finish(job, stop)
    assert code == 0, said[-3000:]
    assert "restart 1 of at most 1: server1 after server1: SIGKILL" in said
    steps = ends[0][1] + ends[2][1]
    assert all(1000.0 - 2 * steps <= value < 1000.0 - 20 for _, _, value in ends.values())


def test_a_job_is_resumed(start, tmp_path):
    """Servers begin where others ended, rank 0 takes up their value, and clients count from the start."""
    snapshots = tmp_path / "snapshots"
    last = 1000.0
    # In slices that all servers have some of, so that they are dealt anew where there is one server more.
    for servers, more in ((2, ()), (3, ("--resume",))):
        options = ("--snapshot-dir", snapshots, "--set", "slice_elements=100", *more)
        job, stop = begin(start, tmp_path, (1, 1, servers), *options)
        first = float(job.wait_for("READY")[0].split()[-1])
        assert first == last
        code, said, ends = finish(job, stop)
        assert code == 0, said[-3000:]
        _, steps, last = ends[0]
        assert last == first - steps
        stop.unlink()


def test_a_job_that_is_told_to_end_leaves_what_it_has_come_to(start, tmp_path):
    """Its servers save when its ranks have, however long ago they last did."""
    snapshots = tmp_path / "snapshots"
    options = ("--snapshot-dir", snapshots, "--snapshot-every", "1000")
    job, _ = begin(start, tmp_path, (2, 1, 1), *options)
    job.workers(2)
    path = snapshots / "server0-of-1.snapshot"
    job.wait_for_file(path)
    first = path.stat().st_mtime_ns
    job.signal(signal.SIGTERM)
    code, said = job.end()
    assert code == 75, said[-3000:]
    assert "failed first" not in said
    assert path.stat().st_mtime_ns > first
    job, stop = begin(start, tmp_path, (2, 1, 1), *options, "--resume")
    values = [float(line.split()[-1]) for line in job.wait_for("READY", 2)]
    assert max(values) <= 1000.0 - 2 * 20
    assert finish(job, stop)[0] == 0


@pytest.mark.parametrize("told", [False, True], ids=["is_over", "is_told_to_end"])
def test_a_job_whose_last_snapshot_cannot_be_written_has_failed(start, tmp_path, told):
    """Its folder has gone; ranks have ended well, but who goes on from it would be far back, or nowhere."""
    snapshots = tmp_path / "snapshots"
    options = ("--snapshot-dir", snapshots, "--snapshot-every", "1000")
    job, stop = begin(start, tmp_path, (2, 1, 2), *options)
    job.workers(2)
    for server in range(2):
        job.wait_for_file(snapshots / f"server{server}-of-2.snapshot")
    shutil.rmtree(snapshots)
    if told:
        job.signal(signal.SIGTERM)
    else:
        stop.touch()
    code, said = job.end()
    assert code == 73, said[-3000:]
    last = said[said.rindex("failed first: exit code 73") :]
    assert f"could not be written to {snapshots}/server" in last
    assert "No such file or directory; there is no whole one before it" in last
    for server in range(2):
        assert said.count(f"server{server}| kvstore_mpi error 73 NotSavedError: server{server}: ") == 1


def test_there_must_be_something_to_resume(start, tmp_path):
    """An empty folder is the wrong folder."""
    (tmp_path / "nothing").mkdir()
    options = ("--snapshot-dir", tmp_path / "nothing", "--resume")
    code, said = start(tmp_path / "stop", (1, 1, 1), script="returning.py", options=options).end()
    assert code == 78, said[-3000:]
    assert "there is no snapshot" in said


def freeze(start, tmp_path, *options):
    """Start a job of two clients, and stop one for longer than its lease; return also its process."""
    job, stop = begin(start, tmp_path, (2, 1, 1), "--lease", "2", "--grace", "3", *options)
    pid = job.workers(2)[1]
    os.kill(pid, signal.SIGSTOP)
    job.wait_for("counts as dead (PeerLostError); training goes on without it")
    return job, stop, pid


@pytest.mark.thorough
def test_a_client_that_is_frozen_is_started_again(start, tmp_path):
    """Its lease ends and the others do not wait for it; it would not end by itself."""
    job, stop, _ = freeze(start, tmp_path, "--max-restarts", "1")
    job.wait_for("incarnation 1")
    code, said, ends = finish(job, stop)
    assert code == 0, said[-3000:]
    why = (
        "client1 after client1.0: SIGKILL (exit code 137), mpilaunch has killed it, since nothing was heard"
    )
    assert f"restart 1 of at most 1: {why}" in said
    assert {rank: incarnation for rank, (incarnation, _, _) in ends.items()} == {0: 0, 1: 1}


@pytest.mark.thorough
def test_a_client_that_stays_frozen_is_missed_at_the_end(start, tmp_path):
    """Where nothing is started again: the others finish, and the job ends with an error that names it."""
    job, stop, _ = freeze(start, tmp_path)
    code, said, ends = finish(job, stop)
    assert code == 69, said[-3000:]
    assert "client1.0" in said
    assert "counts as dead (PeerLostError); the others have finished without it" in said
    assert list(ends) == [0]


@pytest.mark.thorough
def test_a_client_that_wakes_up_too_late_learns_that_it_is_out(start, tmp_path):
    """And ends, by which the job does."""
    job, _, pid = freeze(start, tmp_path)
    os.kill(pid, signal.SIGCONT)
    code, said = job.end()
    assert code == 69, said[-3000:]
    assert "client1.0 on" in said
    assert "LeaseExpiredError" in said
