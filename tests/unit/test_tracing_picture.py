"""What of a trace is drawn, and that it is drawn."""

from __future__ import annotations

import json

import pytest
from support.trace_events import process

picture = pytest.importorskip("kvstore_mpi.tracing.picture", reason="needs matplotlib")

PNG = b"\x89PNG"


def box(cat, ts, dur, *, pid=1, tid=1, name="w [0, 9)", **args):
    event = {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return {**event, "args": {"key": "w", "peer": "worker0", **args}}


TRACE = {
    "traceEvents": [
        process(1, "worker0"),
        process(2, "worker1"),
        process(3, "server0"),
        *(box("iteration", at, 100.0, name=f"iteration {i}") for i, at in enumerate((0.0, 100.0, 200.0))),
        box("mark", 110.0, 20.0, tid=2, name="forward"),
        box("operation", 120.0, 90.0, tid=3, name="pushpull w", priority=-1),
        box("wire", 20.0, 10.0, tid=4),
        box("wire", 90.0, 20.0, tid=5),
        box("wire", 130.0, 20.0, tid=9),
        box("wire", 140.0, 10.0, pid=2, tid=4),
        box("round", 150.0, 10.0, pid=3, tid=1),
        box("round", 150.0, 10.0, pid=3, tid=2, peer="worker1"),
    ]
}


def test_only_what_happened_in_the_iterations_of_the_worker_is_drawn():
    """Its own boxes and those on servers for it, in as many lanes as they need."""
    chosen = picture.choose(TRACE, "p3", "worker0", first=1, iterations=1)
    assert (chosen.title, chosen.since, chosen.until) == ("p3", 100.0, 200.0)
    rows = [(row.title, [event["ts"] for event in row.events], row.lanes) for row in chosen.rows]
    assert rows == [
        ("marks", [110.0], [0]),
        ("pending", [120.0], [0]),
        ("on the wire", [90.0, 130.0], [0, 1]),
        ("at the servers", [150.0], [0]),
    ]


def test_marks_of_one_kind_have_one_colour():
    """Whatever they are called further."""
    named = [box("mark", 0.0, 1.0, name=name) for name in ("forward", "forward layer 3", "forwards")]
    first, second, other = (picture._colour(each, []) for each in named)
    assert first == second != other


def test_two_traces_in_one_picture(tmp_path):
    """A file is written; the traces are called by their folders."""
    for name in ("fifo", "p3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trace.json").write_text(json.dumps(TRACE))
    traces = [str(tmp_path / name / "trace.json") for name in ("fifo", "p3")]
    assert picture.main([*traces, "--out", str(tmp_path / "docs/x.png"), "--iterations", "2"]) == 0
    assert (tmp_path / "docs/x.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--first", "3"], "fewer than 6 whole iterations"),
        (["--worker", "worker7"], "no process 'worker7'"),
    ],
)
def test_what_is_not_there_cannot_be_drawn(tmp_path, capsys, arguments, words):
    """The message says which option to change."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE))
    assert picture.main([str(path), "--out", str(tmp_path / "x.png"), *arguments]) == 64
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"), [(None, "No such file"), ("{", "cannot be read"), ("[]", "is no trace")]
)
def test_what_is_no_trace_is_one_line(tmp_path, capsys, content, words):
    """Nor what is not there."""
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content)
    assert picture.main([str(path), "--out", str(tmp_path / "x.png")]) == 64
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path, capsys):
    """A folder is in its place."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE))
    (tmp_path / "x.png").mkdir()
    assert picture.main([str(path), "--out", str(tmp_path / "x.png"), "--iterations", "2"]) == 78
    assert capsys.readouterr().err.endswith("cannot be written: Is a directory\n")
