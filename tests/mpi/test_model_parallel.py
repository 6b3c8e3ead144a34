"""Workers of several ranks, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec
import pytest
from support.part_jobs import CLIENTS, SCRIPTS, launch, launch_words

from kvstore_mpi.planner import Cluster, EpochsCurve, Link, Roofline, read_plan
from kvstore_mpi.planner.cluster import write_cluster
from kvstore_mpi.planner.epochs import write_curve
from kvstore_mpi.planner.plan_file import write_plan

DIGITS = SCRIPTS.parents[1] / "examples/digits_pipeline.py"


def processes_of(path):
    """Return the names of the processes in a trace, in their order."""
    return [
        event["args"]["name"].split(" ")[0]
        for event in json.loads(path.read_text())["traceEvents"]
        if event["name"] == "process_name"
    ]


def boxes_of(path, *kinds):
    """Return the names of boxes in a trace whose first word is one of these, without micro-batches."""
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["name"].rpartition(" ")[0] for event in events if event["ph"] == "X"]
    return {name for name in names if name.partition(" ")[0] in kinds}


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("sync", CLIENTS),
        pytest.param("sync", ("--workers", "2"), marks=[pytest.mark.thorough, pytest.mark.slow]),
        pytest.param("async", CLIENTS, marks=[pytest.mark.thorough, pytest.mark.slow]),
    ],
)
def test_each_part_is_summed_among_its_owners(tmp_path, mode, options):
    """Two workers of two ranks: with a server, in pure MPI, and asynchronously."""
    recorded = ("--trace", str(tmp_path / "trace"), "--report")
    code, text = launch(tmp_path, "owners.py", mode, "sums", options=(*options, *recorded))
    assert code == 0, text
    for part in range(2):
        for worker in range(2):
            assert f"part {part} of worker {worker} of 2" in text
            assert f"mpilaunch| worker{worker}.{part} " in text or mode == "async"
    assert "not in the trace" not in text
    names = [f"worker{worker}.{part}" for worker in range(2) for part in range(2)]
    names += ["server0.0", "server0.1", "scheduler.0", "scheduler.1"] if options == CLIENTS else []
    assert processes_of(tmp_path / "trace/trace.json") == names


@pytest.mark.mpi
def test_a_rank_that_dies_ends_the_job(tmp_path):
    """At once, with one error that names it; the rank that waits for its output is ended."""
    code, text = launch(tmp_path, "owners.py", "sync", "dies")
    assert code == 137, text
    assert "client0.1" in text
    assert "SIGKILL" in text or "signal 9" in text
    assert "has waited" not in text


@pytest.mark.mpi
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "is stuck",
            "DeadlineError: rank 0 of this worker has waited 3 s for the output of the second part",
        ),
        (
            "sends too little",
            "MismatchError: rank 0 of this worker waits .* 4 bytes have come instead of 8",
        ),
    ],
)
def test_what_does_not_come_is_an_error(tmp_path, what, words):
    """It says who waits for what."""
    code, text = launch(tmp_path, "owners.py", "sync", what, steps_wait=3)
    assert code == 3, text
    assert words.partition(" .* ")[0] in text
    assert words.rpartition(" .* ")[2] in text


@pytest.mark.mpi
@pytest.mark.thorough
@pytest.mark.slow
def test_ranks_that_make_no_workers_are_refused(tmp_path):
    """Three ranks cannot be workers of two."""
    from mpilaunch.mpi import find_mpi  # noqa: PLC0415

    mpi = find_mpi()
    done = subprocess.run(
        [
            mpi.mpiexec,
            *mpi.flavour.options,
            "-n",
            "3",
            sys.executable,
            str(SCRIPTS / "owners.py"),
            "sync",
            "sums",
        ],
        env={**os.environ, **dict(mpi.flavour.env), "KVMPI_MODEL_PARALLEL": "2"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode
    assert "3 MPI ranks cannot be divided into workers of 2" in done.stdout + done.stderr


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), ("--workers", "2"), CLIENTS],
)
@pytest.mark.thorough
def test_nets_in_parts_compute_what_one_process_does(tmp_path, options):
    """Pipelines and towers, in pure MPI and over a server; then a rank has another batch or optimizer."""
    different = "optimizer" if "--workers" in options else "batch"
    code, text = launch(tmp_path, "parts.py", "sync-mpi", different, options=options)
    assert "AssertionError" not in text
    assert code == 76, text
    assert "rank 1 of worker" in text


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        # Without momentum, and slowly: how stale gradients are depends on what else the machine does, and
        # so does what the first worker to end has of the other's (0.947 at a load of 10).
        ("--kv-store=async-mpi", "--momentum=0", "--epochs=16", "--target=0.9", "--stages=2"),
    ],
)
def test_two_clients_of_two_ranks_train_the_digits(tmp_path, arguments):
    """With a server, synchronously to the accuracy of the example, and not, to less in more epochs."""
    saved = tmp_path / "net.params"
    quick = ("--epochs", "10", "--batch-size", "64", "--micro-batches", "2", "--lr", "0.1")
    code, text = launch(tmp_path, DIGITS, *quick, *arguments, "--save", str(saved), options=CLIENTS)
    assert code == 0, text
    assert saved.exists()


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chain", "towers", "operations", "symbol"])
def test_what_is_planned_is_what_runs(tmp_path, kind):
    """A script, or a net's symbol, is planned; two clients of two ranks run the cut, and equal one process.

    What the trace of the job has computed is what the trace of the plan has.
    """
    cluster = Cluster(2, Link(1e9), 2, Link(1e10), device=Roofline(1e9, 1e9))
    (tmp_path / "cluster.toml").write_text(write_cluster(cluster))
    (tmp_path / "curve.json").write_bytes(write_curve(EpochsCurve.of({8: 4, 16: 4, 32: 400})))
    script, path = str(SCRIPTS / "planned.py"), tmp_path / "plan.json"
    told = ("--cluster", tmp_path / "cluster.toml", "--epochs-curve", tmp_path / "curve.json")
    words = (
        "--batch",
        "8",
        "--samples",
        "800",
        "--output",
        path,
        "--timeline",
        tmp_path / "plan-trace.json",
    )
    what = ("--log-dir", tmp_path, script, kind)
    if kind == "symbol":
        subprocess.run([sys.executable, script, "export", tmp_path / "net"], check=True, timeout=100)
        what = ("--shape", "data:8,1,8,8", "--shape", "data1:8,1,8,8", tmp_path / "net-symbol.json")
    code, text = launch_words("plan", *map(str, (*told, *words, *what)))
    assert code == 0, text
    assert "trace: " not in text  # that of the one worker is the plan's own
    found = read_plan(path.read_bytes())
    divided = [
        each for each in found.options if (each.configuration.data, each.configuration.ways) == (2, 2)
    ]
    if kind == "symbol":  # its times are computed; by those that they take, nets this small gain nothing
        assert found.best == divided[0]
        assert "why not data parallelism alone" in text
        assert "each worker: rank 0 has " in text
    path.write_bytes(write_plan(msgspec.structs.replace(found, options=(*divided, *found.options))))
    code, text = launch_words("--plan", str(path), "--log-dir", str(tmp_path), script, kind)
    assert code == 76, text
    assert "4 ranks on 2 host(s), 2 at most on each, and this job has them on 1 (here: 4)" in text
    # On this host all the same, and by a server, which on two hosts takes as long as an allreduce.
    options = [each for each in divided if each.configuration.servers == 1]
    here = msgspec.structs.replace(found, options=(*options, *found.options), devices=4)
    path.write_bytes(write_plan(here))
    recorded = ("--trace", str(tmp_path / "trace"), "--report")
    code, text = launch_words("--plan", str(path), *recorded, "--log-dir", str(tmp_path), script, kind)
    assert code == 0, text
    computed = boxes_of(tmp_path / "trace/trace.json", "forward", "backward")
    assert computed == boxes_of(tmp_path / "plan-trace.json", "forward", "backward")
    assert "mpilaunch| worker1.1 " in text
    for rank in range(2):
        for worker in range(2):
            assert f"rank {rank} of worker {worker} of 2: as planned, as one" in text
    other = "towers" if kind == "chain" else "chain"
    code, text = launch_words("--plan", str(path), "--log-dir", str(tmp_path), script, other)
    assert code == 64, text
    assert "plan this script with mpilaunch plan" in text
