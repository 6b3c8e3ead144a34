"""A step as planned and as it was, in one picture."""

from __future__ import annotations

import json

import pytest

step_picture = pytest.importorskip("kvstore_mpi.tracing.step_picture", reason="needs matplotlib")

from support.trace_events import process  # noqa: E402

from kvstore_mpi.planner.step_trace import Box, step_trace  # noqa: E402

PLANNED = step_trace(
    [Box("gpu0", "forward a 0", "forward", 0, 4_000), Box("gpu1", "forward b 0", "forward", 5_000, 9_000)],
    [Box("gpu0 -> gpu1", "output 0 of a", "transfer", 4_000, 5_000)],
)


def box(cat, name, ts, dur, pid):
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": 1, "ts": ts, "dur": dur, "args": {}}


def events_of(pid, shift):
    return [
        box("iteration", "iteration 0", shift, 20.0, pid),
        box("iteration", "iteration 1", 20.0 + shift, 20.0, pid),
        box("mark", "iteration", 20.0 + shift, 0.0, pid),
        box("mark", "forward a 0", 21.0 + shift, 8.0, pid),
        box("mark", "forward a 0", 1.0 + shift, 8.0, pid),
        box("operation", "pushpull w", 25.0, 2.0, pid),
    ]


TRACE = {
    "traceEvents": [
        *(process(pid, name) for pid, name in enumerate(("worker0.0", "worker0.1", "worker1.0"), 1)),
        *(event for pid in (1, 2, 3) for event in events_of(pid, float(pid))),
    ]
}


def test_devices_and_ranks_have_a_row_each():
    """Of the plan what is computed, of the job what was marked in that step."""
    planned = step_picture.planned(PLANNED)
    assert [(row.title, [event["ts"] for event in row.events]) for row in planned.rows] == [
        ("gpu0", [0.0]),
        ("gpu1", [5.0]),
    ]
    assert planned.until == 9.0
    measured = step_picture.measured(TRACE, "worker0", 1)
    assert (measured.since, measured.until) == (21.0, 42.0)
    assert [(row.title, [event["ts"] for event in row.events]) for row in measured.rows] == [
        ("worker0.0", [22.0]),
        ("worker0.1", [23.0]),
    ]


def test_it_is_drawn_or_what_is_missing_is_named(tmp_path, capsys):
    """With what to choose instead."""
    files = tmp_path / "plan.json", tmp_path / "trace.json"
    for path, content in zip(files, (PLANNED, TRACE)):
        path.write_text(json.dumps(content))
    arguments = [*map(str, files), "--out", str(tmp_path / "docs/x.png")]
    assert step_picture.main([*arguments, "--first", "1"]) == 0
    assert (tmp_path / "docs/x.png").read_bytes().startswith(b"\x89PNG")
    assert step_picture.main(arguments) == 64
    assert "no step 10 on every rank" in capsys.readouterr().err
    assert step_picture.main([*arguments, "--worker", "worker7"]) == 64
    assert "no ranks of 'worker7'" in capsys.readouterr().err
