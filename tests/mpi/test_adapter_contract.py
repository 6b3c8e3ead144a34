"""The contract of the MXNet store over real workers, and the examples, under the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.often import ONE_OF_MANY

ROOT = Path(__file__).parents[2]
SUITE = ("-m", "kvstore_mpi.testing.mxnet_contract")
MPILAUNCH = str(Path(sys.executable).with_name("mpilaunch"))

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(300)]


def run(tmp_path, command, **environment):
    """Run a command to its end; return it."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ("--clients 1", 1),
        pytest.param("--clients 1 --workers 2", 2, marks=ONE_OF_MANY),
        pytest.param(
            "--clients 1 --workers 2 --servers 1 --collective-profile measure",
            2,
            marks=ONE_OF_MANY,
        ),
        ("--clients 2 --servers 1", 2),
        pytest.param("--clients 2 --servers 1 --transport ipc", 2, marks=ONE_OF_MANY),
        pytest.param("--clients 2 --workers 4 --servers 2", 4, marks=ONE_OF_MANY),
        pytest.param("--clients 1 --servers 2 --transport tcp", 1, marks=ONE_OF_MANY),
        pytest.param("--clients 1 --env MXNET_ENGINE_TYPE=NaiveEngine", 1, marks=ONE_OF_MANY),
    ],
)
def test_contract(tmp_path, options, workers):
    """Every check passes on every worker."""
    done = run(tmp_path, [MPILAUNCH, *options.split(), *SUITE])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("passed: module_trains_too") == workers


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.parametrize("collective", ["ring", "multiring", "shm", "mpi"])
@pytest.mark.parametrize("layout", ["--clients 1 --workers 2", "--clients 1 --workers 2 --servers 1"])
def test_the_contract_with_every_choice_of_collective(tmp_path, collective, layout):
    """Pure MPI, and inside a client; ``auto`` is above."""
    done = run(tmp_path, [MPILAUNCH, *layout.split(), "--collective", collective, *SUITE])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("passed: module_trains_too") == 2


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.parametrize("collective", ["ring", "multiring", "shm", "mpi"])
@pytest.mark.parametrize("layout", ["--clients 1 --workers 2", "--clients 2 --workers 4 --servers 1"])
def test_digits_with_every_choice_of_collective(tmp_path, collective, layout):
    """To the accuracy that the example asks of itself."""
    script = str(ROOT / "examples/digits_gluon.py")
    command = [MPILAUNCH, *layout.split(), "--collective", collective, script]
    done = run(tmp_path, command, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "accuracy" in done.stdout


def test_exchanges(tmp_path):
    """Exchanges of parameters, by clients of two ranks with two servers, in both modes."""
    options = ["--clients", "2", "--servers", "2", "--workers", "4"]
    done = run(tmp_path, [MPILAUNCH, *options, "-m", "kvstore_mpi.testing.mxnet_exchange"])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for mode in ("sync", "async"):
        assert done.stdout.count(f"passed: an_exchange_moves_the_center ({mode})") == 4
        assert done.stdout.count(f"passed: states_of_the_server_optimizer_are_saved ({mode})") == 4


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ("--clients 1 --workers 2", 2),
        pytest.param("--clients 2 --workers 4 --servers 2", 4, marks=ONE_OF_MANY),
        pytest.param("--clients 2 --servers 1 --transport tcp", 2, marks=ONE_OF_MANY),
        pytest.param("--clients 1 --workers 3 --servers 2", 3, marks=ONE_OF_MANY),
        pytest.param("--clients 1 --env MXNET_ENGINE_TYPE=NaiveEngine", 1, marks=ONE_OF_MANY),
    ],
)
def test_tables(tmp_path, options, workers):
    """Every check of keys of which only rows travel passes on every worker."""
    done = run(tmp_path, [MPILAUNCH, *options.split(), "-m", "kvstore_mpi.testing.mxnet_rows"])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("passed: mistakes_with_rows_are_refused") == workers


@pytest.mark.thorough
def test_tables_of_async_stores(tmp_path):
    """Every push of a client is an update, which the others see behind a barrier."""
    options = ["--clients", "2", "--workers", "4", "--servers", "2"]
    command = [MPILAUNCH, *options, "-m", "kvstore_mpi.testing.mxnet_rows", "--mode", "async"]
    done = run(tmp_path, command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("passed: the_same_array_gets_what_has_changed") == 4
    assert done.stdout.count("passed: mistakes_with_rows_are_refused") == 4


@pytest.mark.thorough
def test_async_training_with_one_client_equals_one_process(tmp_path):
    """Its ranks push together, so that an update has the rows of all of them."""
    options = ["--clients", "1", "--workers", "2", "--servers", "2"]
    suite = ["-m", "kvstore_mpi.testing.mxnet_sparse_training", "--mode", "async", "--steps", "8"]
    only = ["--only", "weights_and_momentum", "module_with_sparse_gradients"]
    done = run(tmp_path, [MPILAUNCH, *options, *suite, *only])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("passed: module_with_sparse_gradients") == 2


@pytest.mark.thorough
def test_naive_engine_is_refused_with_several_workers(tmp_path):
    """A debugging engine that could stop the job is refused with a clear message."""
    done = run(tmp_path, [MPILAUNCH, "--workers", "2", "--env", "MXNET_ENGINE_TYPE=NaiveEngine", *SUITE])
    assert done.returncode == 78
    assert "NaiveEngine" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            (MPILAUNCH, "--clients", "2", "--servers", "2", "--workers", "4", "examples/digits_gluon.py"),
            marks=ONE_OF_MANY,
        ),
        pytest.param(
            (MPILAUNCH, "--clients", "2", "--servers", "2", "--workers", "4", "examples/digits_module.py"),
            marks=ONE_OF_MANY,
        ),
        pytest.param(
            (MPILAUNCH, "--clients", "1", "--workers", "2", "examples/digits_gluon.py"),
            marks=ONE_OF_MANY,
        ),
        pytest.param((sys.executable, "examples/digits_gluon.py"), marks=ONE_OF_MANY),
        pytest.param((sys.executable, "examples/digits_module.py"), marks=ONE_OF_MANY),
        (MPILAUNCH, "--clients", "2", "--servers", "1", "--take-over", "examples/stock_script.py"),
        pytest.param(
            (
                MPILAUNCH,
                "--clients=2",
                "--servers=1",
                "examples/stock_script.py",
                "--kv-store=dist_sync_mpi",
            ),
            marks=ONE_OF_MANY,
        ),
    ],
    ids=lambda command: "-".join(Path(part).name for part in command),
)
def test_examples(tmp_path, command):
    """The examples reach their accuracy with the launcher and alone."""
    words = [str(ROOT / word) if word.startswith("examples/") else word for word in command]
    done = run(tmp_path, words, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "accuracy" in done.stdout or "right" in done.stdout
