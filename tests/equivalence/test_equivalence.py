"""Synchronous training on any layout equals one process with the same global batch (design section 6)."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.made_once import made_once
from support.often import ONE_OF_MANY, often
from support.places import Here

from kvstore_mpi.config import COLLECTIVES, SCHEDULES
from mpilaunch.mpi import find_mpi

SCRIPT = Path(__file__).with_name("train.py")
LAYOUTS = [
    # clients, workers in each, servers
    *((1, 1, servers) for servers in (0, 1, 2)),
    *((1, 2, servers) for servers in (0, 1, 2)),
    *((1, 4, servers) for servers in (0, 1, 2)),
    *((2, 1, servers) for servers in (1, 2)),
    *((2, 2, servers) for servers in (1, 2)),
]
OFTEN = {(1, 2, 2), (2, 1, 1)}
"""Layouts that every change trains on; tests below do with two clients and two servers, and in pure MPI."""

CROWDED = {(1, 2, 2), (1, 4, 0)}
"""Layouts that make 10 steps here; with as many ranks there are jobs of 50 in thorough runs."""

STEPS, FEW_STEPS = 50, 10

BOTH, ONE = ("mlp", "cnn"), ("cnn",)
"""Models that a job trains. Every change trains both on some layouts, and what is an option with one."""

CASES = 4  # of each model: two optimizers, updated on the store or by the workers
TOLERANCE = 1e-5
QUICK = ("ring", (1, 3, 0))
"""The way to sum inside a client that every change runs; ``auto`` of most jobs is shared memory."""

TWO = [("shm", (1, 2, 1)), ("multiring", (1, 2, 1)), ("mpi", (1, 2, 0))]
ALL = [(collective, layout) for collective in COLLECTIVES for layout in ((1, 3, 0), (1, 3, 1))]
"""Three ranks: what one has made of a sum goes on to another, and not only back."""


def name(layout):
    """Return how a test calls a layout, as in ``2x1x2``."""
    return "x".join(map(str, layout))


@pytest.fixture(scope="session", name="reference")
def _reference(shared_folder):
    """What one process comes to, as a file; trained once for the jobs of all of pytest's processes."""

    def make(file):
        command = [sys.executable, str(SCRIPT), "--reference", str(file)]
        steps = ["--steps", str(STEPS), str(FEW_STEPS)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *steps], timeout=400, check=True, env=environment)

    return made_once(shared_folder / "reference.npz", make)


@pytest.fixture(name="run")
def _run(tmp_path, reference, place):
    """Return a function that trains on a layout and returns the records of all workers."""
    return trains(tmp_path, reference, place)


@pytest.fixture(name="run_here")
def _run_here(tmp_path, reference):
    """Return such a function, for what is about one host."""
    return trains(tmp_path, reference, Here())


def trains(folder, reference, place):
    """Return a function that trains on a layout, each time with a folder of its own."""
    jobs = itertools.count()
    mine = shutil.copy(reference, folder)  # hosts see this folder, and no other in /tmp

    def run(layout, *, options=(), steps=STEPS, models=BOTH):
        logs = folder / str(next(jobs))
        options = (*place.options(layout), *options)
        return train(logs, mine, layout, options=options, steps=steps, models=models, place=place)

    return run


def train(folder, reference, layout, *, options, steps, models, place):
    """Train in one job; check that no case is left out."""
    clients, per_client, servers = layout
    command = [
        str(Path(sys.executable).with_name("mpilaunch")),
        *("--clients", str(clients), "--workers", str(clients * per_client), "--servers", str(servers)),
        *("--log-dir", str(folder), "--env", "OMP_NUM_THREADS=1", *options),
        *(str(SCRIPT), "--reference", str(reference), "--steps", str(steps), "--models", *models),
    ]
    argv = place.command(command)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    lines = [line.partition("RESULT ")[2] for line in done.stdout.splitlines() if "RESULT " in line]
    records = [json.loads(line) for line in lines]
    assert len(records) == CASES * len(models) * clients * per_client
    assert len({record["case"] for record in records}) == CASES * len(models)
    return records


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "layout",
    often(OFTEN, LAYOUTS),
    ids=name,
)
def test_equals_one_process(run, layout):
    """After all steps the weights are those of one process, and the same bits on all workers."""
    records = run(layout, steps=FEW_STEPS if layout in CROWDED else STEPS)
    check_distances(records)
    digests(records)


def check_distances(records):
    """Check that all weights are those of one process, to rounding."""
    assert {
        record["case"]: record["distance"] for record in records if record["distance"] > TOLERANCE
    } == {}


def digests(records):
    """Return the digest of each case; all workers must have the same."""
    found = {}
    for record in records:
        assert found.setdefault(record["case"], record["digest"]) == record["digest"], record["case"]
    return found


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(420)
def test_repeated_jobs_are_bit_identical(run):
    """A second job, with other processes and other timing, gives the same bits, near one process's.

    In pure MPI; the next test does so with servers.
    """
    first, second = (run((1, 4, 0), models=ONE) for _ in range(2))
    check_distances(first)
    assert digests(first) == digests(second)


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.parametrize(("transport", "models"), [("auto", ONE), ("tcp", BOTH)])
def test_neither_a_repetition_nor_who_pushes_changes_a_bit(run, transport, models):
    """A job again, with one leader for each client; and with all ranks as leaders.

    Through shared memory, and with slices that travel.
    """
    found = []
    for leaders in ("one", "one", "all"):
        options = ("--leaders", leaders, "--set", "slice_elements=400", "--transport", transport)
        records = run((2, 2, 2), options=options, steps=FEW_STEPS, models=models)
        check_distances(records)
        found.append(digests(records))
    assert found == [found[0]] * len(found)


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("collective", "layout", "models"),
    [
        pytest.param(*QUICK, ONE, id=f"{QUICK[0]}-{name(QUICK[1])}"),
        *(
            pytest.param(*way, BOTH, id=f"{way[0]}-{name(way[1])}-both", marks=ONE_OF_MANY)
            for way in dict.fromkeys([*TWO, *ALL])
        ),
    ],
)
def test_every_collective_gives_the_weights_of_one_process(run, collective, layout, models):
    """In pure MPI, and inside a client whose leader pushes the sums."""
    records = run(layout, options=("--collective", collective), steps=FEW_STEPS, models=models)
    check_distances(records)
    digests(records)


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("leaders", "layout", "models"),
    [
        pytest.param("all", (1, 4, 1), ONE, id="all-leaders"),
        pytest.param("all", (1, 4, 1), BOTH, id="all-leaders-both", marks=ONE_OF_MANY),
        pytest.param("one", (1, 3, 0), BOTH, id="pure-mpi-both", marks=ONE_OF_MANY),
    ],
)
def test_clients_on_two_hosts_give_the_weights_of_one_process(run_here, leaders, layout, models):
    """Even and odd ranks are hosts of their own for MPICH, one of them with a rank more or not."""
    if find_mpi().flavour.name != "Hydra":
        pytest.skip("only MPICH can be told to see several hosts in one")
    options = ("--env", "MPIR_CVAR_NUM_CLIQUES=2", "--leaders", leaders)
    records = run_here(layout, options=options, steps=FEW_STEPS, models=models)
    check_distances(records)
    digests(records)


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("layout", "leaders", "models"),
    [
        # The layout of many ranks whose clients are on two hosts is in every run: the test before.
        pytest.param((2, 2, 2), ("all",), ONE, id="2x2x2-all", marks=pytest.mark.thorough),
        pytest.param((2, 2, 2), ("one", "all"), BOTH, id="2x2x2-both", marks=ONE_OF_MANY),
        pytest.param((1, 4, 2), ("all",), BOTH, id="1x4x2-both", marks=ONE_OF_MANY),
    ],
)
def test_what_ranks_with_a_host_each_have_under_way_together_is_right(run_here, layout, leaders, models):
    """Ranks that sleep while they wait; of two, the bits are those of one collective after the other."""
    if find_mpi().flavour.name != "Hydra":
        pytest.skip("only MPICH can be told to see several hosts in one")
    _, per_client, _ = layout
    apart = ("--env", f"MPIR_CVAR_NUM_CLIQUES={per_client}", "--set", "slice_elements=400")
    waits = [(who, sleeps) for who in leaders for sleeps in ("0", "1")]
    found = []
    for who, sleeps in waits:
        options = (*apart, "--leaders", who, "--env", f"MPIR_CVAR_ENABLE_HEAVY_YIELD={sleeps}")
        records = run_here(layout, options=options, steps=FEW_STEPS, models=models)
        check_distances(records)
        found.append(digests(records))
    if per_client == 2:
        assert found == [found[0]] * len(waits)


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("layout", "models"),
    [
        pytest.param((2, 1, 2), BOTH, id="2x1x2-both"),
        pytest.param((1, 2, 1), BOTH, id="1x2x1-both"),
    ],
)
def test_schedules_are_bit_identical(run, layout, models):
    """By priority, in slices and in layers, with small slices that travel one by one: the same bits."""
    found = []
    for schedule in SCHEDULES:
        settings = (f"schedule={schedule}", "slice_elements=400", "window_bytes=1600")
        options = ("--transport", "tcp", *(f"--set={each}" for each in settings))  # else nothing travels
        records = run(layout, options=options, steps=FEW_STEPS, models=models)
        check_distances(records)
        found.append(digests(records))
    assert found == [found[0]] * len(SCHEDULES)
