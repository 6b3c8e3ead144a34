"""What limits a job, by its figures; and two runs beside each other."""

from __future__ import annotations

import io

import msgspec
import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.tracing.report import Iteration, WorkerReport
from kvstore_mpi.tracing.verdict import Figures, Summary, judge, summarise
from mpilaunch.seeing import compare

BALANCED = Figures(
    name="all",
    iterations=9,
    marked=True,
    time=100.0,
    low=95.0,
    high=110.0,
    compute=0.5,
    hidden=0.2,
    exposed=0.28,
    other=0.02,
    computing=70.0,
    communication=40.0,
    resource="the link out of worker0",
    fits=0.0,
)


def figures(**changed):
    return msgspec.structs.replace(BALANCED, **changed)


def said(*workers, **changed):
    return str(judge(workers, figures(**changed)))


@pytest.mark.parametrize(
    ("changed", "begins", "advises"),
    [
        ({"exposed": 0.04, "compute": 0.74}, "computing:", "a faster network does not"),
        ({"other": 0.4, "compute": 0.2}, "what is neither computing", "load data in the background"),
        ({"other": 0.5, "waited": 0.3}, "waiting, while nothing of the store", "a more even cut"),
        ({"other": 0.7, "waited": 0.3}, "what is neither computing", "load data in the background"),
        ({"fits": 0.9}, "latency, or waiting for other workers:", "larger batches"),
        ({}, "the order of communication:", "each layer wait for its own weights"),
        ({"communication": 90.0}, "the link out of worker0:", "compress="),
        ({"communication": 90.0, "resource": "server0's updates"}, "server0's updates", "--servers"),
        ({"communication": 90.0, "resource": "its collectives"}, "its collectives", "--clients"),
        ({"marked": False}, "communication, for at most 28%", 'annotate("forward")'),
        ({"marked": False, "exposed": 0.01}, "computing, or whatever else", 'annotate("backward") to know'),
    ],
)
def test_each_limit_has_its_sentence(changed, begins, advises):
    """The limit, the evidence in figures, and what to try."""
    text = said(**changed)
    assert text.startswith(f"this job is limited by {begins}")
    assert advises in text
    assert "100.0 ms" in text or "1%" in text


def test_a_worker_that_computes_for_long_is_named():
    """All wait for it; one that is only a little slower is not blamed, nor the only one there is."""
    fast, slow = figures(name="worker0", computing=70.0), figures(name="worker1", computing=90.0)
    assert "limited by worker1: it computes for 90.0 ms" in said(fast, slow)
    assert "28% of the time is waited" in said(fast, slow)
    near = figures(name="worker1", computing=80.0)
    assert "limited by the order of communication" in said(fast, near)
    assert "limited by the order of communication" in said(slow)
    assert "limited by computing" in said(fast, slow, exposed=0.01, compute=0.77)
    assert "25% of the time is waited" in said(fast, slow, exposed=0.01, waited=0.24)


def test_figures_are_medians_of_the_iterations():
    """Of three, and of two workers together for all; one without any counts nowhere."""
    steps = [
        Iteration(t * 1_000_000, 0.5, 0.1, 0.3, 0.1, 4_000_000, 2_000_000, "x", 5_000_000)
        for t in (10, 12, 20)
    ]
    reports = [
        WorkerReport("worker0", marked=True, iterations=(*steps,)),
        WorkerReport("worker1", True, ()),
    ]
    summary = summarise(reports, "train.py")
    [one] = summary.workers
    assert (one.name, one.time, one.fits, one.resource) == ("worker0", 12.0, 1.0, "x")
    assert (one.computing, one.communication, one.exposed) == (4.0, 2.0, 0.3)
    assert summary.whole.iterations == 3
    assert summarise([], "train.py").verdict == "nothing was measured"


# --- mpilaunch compare ---


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves the report of a run as the launcher does."""

    def save(name, **changed):
        folder = tmp_path / name
        folder.mkdir()
        summary = Summary(f"{name}.py", [], figures(**changed), f"verdict of {name}")
        (folder / "report.json").write_bytes(msgspec.json.encode(summary))
        return str(folder)

    return save


@pytest.mark.parametrize(("time", "allowed", "code"), [(102.0, "3%", 0), (104.0, "3%", 1), (104.0, "5", 0)])
def test_a_run_that_is_slower_than_allowed_fails(saved, time, allowed, code):
    """By the medians of all iterations."""
    out = io.StringIO()
    arguments = [saved("a"), saved("b", time=time) + "/report.json", "--fail-if-slower", allowed]
    assert compare.run(arguments, out) == code
    assert f"b takes {time / 100:.3f} times as long as a" in out.getvalue()
    assert "verdict of b" in out.getvalue()


def test_without_a_bound_nothing_fails(saved):
    """It only shows both."""
    assert compare.run([saved("a"), saved("b", time=500.0)], io.StringIO()) == 0


def test_what_is_not_known_without_marks_is_not_compared(saved):
    """Hidden communication and computing are not 0 there."""
    out = io.StringIO()
    compare.run([saved("a"), saved("b", marked=False)], out)
    assert "exposed %" in out.getvalue()
    assert "computing ms" not in out.getvalue()


def test_what_is_no_report_is_named(saved, tmp_path):
    """One error that says which, and what would be one."""
    with pytest.raises(UsageError, match=r"nowhere.* is not the report of a run with mpilaunch --rep"):
        compare.run([saved("a"), str(tmp_path / "nowhere")], io.StringIO())
    with pytest.raises(UsageError, match=r"has neither report\.json nor the parts of a trace"):
        compare.run([saved("b"), str(tmp_path)], io.StringIO())
    with pytest.raises(UsageError, match="3%"):
        compare.run([saved("c"), saved("d"), "--fail-if-slower", "some"], io.StringIO())
    with pytest.raises(UsageError, match="nan%: give a number of percent"):
        compare.run([saved("e"), saved("f"), "--fail-if-slower", "nan%"], io.StringIO())
