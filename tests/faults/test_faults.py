"""What goes wrong ends the whole job in time with one clear error; what comes from strangers is ignored."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

import psutil
import pytest
from support.often import often, often_of

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(300)]

SOON_S = 60
"""What ends within this time has not waited for a deadline of the job."""


NEVER_JOINED = ("joined", "no store was made; give the Trainer or Module one")
DISAGREEMENTS = {
    "shapes_differ": ({76}, ("'w'", "(3, 3)", "(3, 2)", "client")),
    "dtypes_differ": ({76}, ("'w'", "float64", "float32", "client")),
    "unequal_batches": ({69, 76}, ("'w'", "unequal numbers of batches")),
    "unequal_batches_last": ({69, 76}, ("'w'", "unequal numbers of batches")),
    "unequal_batches_then_a_barrier": (
        {76},
        ("waits at barrier", "unequal numbers of batches", "what to do: the workers disagree"),
    ),
}
"""Exit codes and words of each."""

CLIENTS, PURE_MPI = (2, 1, 1), (1, 2, 0)


@pytest.mark.parametrize(
    ("fault", "layout"),
    often_of(
        [
            ("shapes_differ", CLIENTS),
            ("dtypes_differ", PURE_MPI),
            ("unequal_batches", CLIENTS),
            ("unequal_batches_last", PURE_MPI),
            ("unequal_batches_then_a_barrier", CLIENTS),
        ],
        DISAGREEMENTS,
        [CLIENTS, PURE_MPI, (1, 2, 1)],
    ),
)
def test_workers_that_disagree(run, fault, layout):
    """The error names the key, what differs and who; all processes end."""
    codes, words = DISAGREEMENTS[fault]
    returncode, _, said = run(fault, layout)
    assert returncode in codes, said[-3000:]
    for word in words:
        assert word in said, f"{word} is not in: {said[-3000:]}"


@pytest.mark.parametrize(
    ("fault", "layout", "seconds"),
    [
        pytest.param("keys_differ", (1, 2, 0), 12, marks=pytest.mark.thorough),
        pytest.param("keys_differ_and_rank_0_ends", (2, 1, 1), 120, marks=pytest.mark.thorough),
        pytest.param("keys_differ", (2, 1, 1), 60, marks=pytest.mark.thorough),
        pytest.param("keys_differ", (1, 2, 1), 60, marks=pytest.mark.thorough),
    ],
    ids=lambda v: "x".join(map(str, v)) if isinstance(v, tuple) else str(v),
)
def test_sets_of_keys_that_differ(run, fault, layout, seconds):
    """Rank 0 is waited for to create the key as long as for all to join, unless it has ended.

    In pure MPI the time to join begins when all ranks have met, so that little of it is enough. Where there
    are servers MXNet is imported in it.
    """
    returncode, _, said = run(fault, layout, KVMPI_CONNECT_TIMEOUT=str(seconds))
    assert returncode == 76, said[-3000:]
    for word in ("'extra'", "client", "rank 0"):
        assert word in said, f"{word} is not in: {said[-3000:]}"


@pytest.mark.parametrize(
    ("fault", "layout", "code", "words"),
    [
        pytest.param(
            "push_before_init", (2, 1, 1), 64, ("'w'", "init", "worker"), marks=pytest.mark.thorough
        ),
        ("push_before_init", (1, 1, 0), 64, ("'w'", "init", "worker")),
        pytest.param(
            *("init_again", (2, 1, 1), 64, ("'w'", "(3,)", "(4,)", "duplicate init")),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *("async_without_optimizer", (2, 1, 1), 64, ("'w'", "async", "set_optimizer")),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "async_without_optimizer", (1, 2, 0), 64, ("async", "servers"), marks=pytest.mark.thorough
        ),
        ("unknown_optimizer", (2, 1, 1), 64, ("Mine", "register")),
        ("never_joins", (2, 1, 1), 78, NEVER_JOINED),
        pytest.param("never_joins", (1, 2, 0), 78, NEVER_JOINED, marks=pytest.mark.thorough),
    ],
)
def test_wrong_use(run, fault, layout, code, words):
    """The error says what was wrong and what to do."""
    returncode, _, said = run(fault, layout)
    assert returncode == code, said[-3000:]
    for word in words:
        assert word in said, f"{word} is not in: {said[-3000:]}"


@pytest.mark.parametrize("shows_where", often([""], ["", "1"]), ids=["plain", "with its place"])
def test_a_crash_is_told_as_one(run, shows_where):
    """MXNet would end the process as if by ``os._exit(255)``; Python shows where it was, if it is asked."""
    returncode, _, said = run("crashes", PURE_MPI, PYTHONFAULTHANDLER=shows_where)
    assert returncode == 128 + signal.SIGSEGV, said[-3000:]
    assert "client0.1" in said
    assert "failed first: SIGSEGV (exit code 139)" in said
    assert "what to do: native code crashed; run the script with PYTHONFAULTHANDLER=1" in said
    assert ("Fatal Python error: Segmentation fault" in said) == bool(shows_where)
    assert (" in crashes\n" in said) == bool(shows_where)


@pytest.mark.parametrize("layout", often([(2, 1, 1)], [(2, 1, 1), (1, 2, 0)]), ids=str)
def test_nan_passes_through(run, layout):
    """NaN and infinity travel like other values."""
    returncode, _, said = run("nan_passes", layout)
    assert returncode == 0, said[-3000:]


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)],
    ids=lambda number: number.name,
)
def test_a_job_that_is_told_to_end_saves(start, number):
    """In the middle of a step, with ranks waiting for each other, all come to save, and soon."""
    job = start("save_at_the_end", (2, 2, 1), grace=120)
    job.workers(4)
    begin = time.monotonic()
    job.signal(number)
    code, said = job.end()
    assert code == 75, said[-3000:]
    assert said.count("SAVED") == 4, said[-3000:]
    assert time.monotonic() - begin < SOON_S


def test_strangers_are_ignored(start_here):
    """Port scans, garbage and foreign protocols on every port change nothing."""
    job = start_here("train_a_while", (2, 1, 1))
    workers = job.workers(2)
    ports = {
        connection.laddr.port
        for pid in job.services().values()
        for connection in psutil.Process(pid).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert len(ports) == 2
    for port in ports:
        _annoy(port)
    os.kill(workers[0], signal.SIGUSR2)  # one tells all; the other may be past its handler by then
    code, said = job.end()
    assert code == 0, said[-3000:]
    assert said.count("DONE") == 2


def _annoy(port):
    random = bytes(range(256)) * 8
    for data in (b"", b"GET / HTTP/1.0\r\n\r\n", random, b"\xff" + b"\0" * 8 + b"\x01\x7f" + random):
        stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
        with stranger, contextlib.suppress(OSError):
            stranger.sendall(data)
