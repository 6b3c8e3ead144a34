"""What a process records, and the file that it leaves."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import stat
import subprocess
import sys
import threading

import pytest

import kvstore_mpi
from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.private_files import DRAFT
from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.tracing import annotation, parts
from kvstore_mpi.tracing.events import Done, InFlight, Mark, Ready, Span
from kvstore_mpi.tracing.recorder import Recorder

WORKER, SERVER = NodeId(Role.WORKER, 3), NodeId(Role.SERVER, 1)


class Ticks:
    """A clock that goes on by 10 whenever it is read."""

    def __init__(self):
        self.time = 0

    def __call__(self):
        self.time += 10
        return self.time


@pytest.fixture
def recorder(tmp_path):
    return Recorder(WORKER, str(tmp_path), client=1, now=Ticks())


@pytest.fixture
def installed(recorder, monkeypatch):
    """Return a recorder that is this process's for one test, and not written at its exit."""
    monkeypatch.setattr(annotation, "_recorder", recorder)
    return recorder


def part_of(recorder, tmp_path):
    recorder.write()
    (part,) = parts.read_parts(tmp_path)
    return part


def test_everything_that_was_recorded_is_in_the_part(recorder, tmp_path):
    """Also what entries of messages have beyond a run."""
    recorder.name_key(7, 0, "weight", [(1, 60, 120), (0, 0, 60)])
    recorder.name_key(2, 1, 5)
    recorder.mark("sent", SERVER, [(7, 0, 100, 1, True), (7, 100, 120, 1, False)])
    recorder.mark("reduced", None, [(7, 0, 120, 1)], since=4)
    recorder.in_flight(SERVER, 480)
    header, events = part_of(recorder, tmp_path)
    assert events == [
        Mark(10, "sent", SERVER, [[7, 0, 100, 1, True], [7, 100, 120, 1, False]]),
        Mark(20, "reduced", None, [[7, 0, 120, 1]], 4),
        InFlight(30, SERVER, 480),
    ]
    assert (header.node, header.client, header.pid) == (WORKER, 1, os.getpid())
    assert header.keys == [(2, 1, 5), (7, 0, "weight")]
    assert header.elements == {7: 120}
    assert len(header.boot_id) == 36
    assert not header.full


def test_an_operation_is_recorded_at_both_ends(recorder, tmp_path):
    """Pushes of a key are counted, pulls are not; the caller's callback gets its error."""
    errors = []
    first = recorder.operation("pushpull", 0, "w", -1, errors.append)
    pull = recorder.operation("pull", 0, "w", -1, errors.append)
    again = recorder.operation("push", 0, "w", -1, errors.append)
    other = recorder.operation("push", 1, "w", 0, errors.append)
    failure = OSError("lost")
    for done, error in ((pull, None), (first, failure), (again, None), (other, None)):
        done(error)
    assert errors == [None, failure, None, None]
    assert part_of(recorder, tmp_path).events == [
        Ready(10, 0, "pushpull", 0, "w", -1, 1),
        Ready(20, 1, "pull", 0, "w", -1, 0),
        Ready(30, 2, "push", 0, "w", -1, 2),
        Ready(40, 3, "push", 1, "w", 0, 1),
        Done(50, 1),
        Done(60, 0),
        Done(70, 2),
        Done(80, 3),
    ]


def test_bytes_in_flight_are_recorded_when_they_change(recorder, tmp_path):
    """So that they can be noted whenever they may have changed."""
    for peer, num_bytes in ((SERVER, 5), (SERVER, 5), (WORKER, 5), (SERVER, 0), (SERVER, 0)):
        recorder.in_flight(peer, num_bytes)
    assert part_of(recorder, tmp_path).events == [
        InFlight(10, SERVER, 5),
        InFlight(20, WORKER, 5),
        InFlight(30, SERVER, 0),
    ]


def test_the_newest_events_are_kept(tmp_path):
    """A ring that is full says so, because older events may be missing."""
    recorder = Recorder(WORKER, str(tmp_path), capacity=3, now=Ticks())
    for size in range(5):
        recorder.in_flight(SERVER, size)
    header, events = part_of(recorder, tmp_path)
    assert [event.num_bytes for event in events] == [2, 3, 4]
    assert header.full


def test_threads_lose_nothing(tmp_path):
    """Several threads record at once, while one writes."""
    recorder = Recorder(WORKER, str(tmp_path))
    begin = threading.Barrier(4)

    def record():
        begin.wait(30)
        for number in range(2000):
            recorder.operation("push", 0, threading.get_ident(), 0, lambda _: None)(None)
            if number % 500 == 0:
                recorder.write()

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    events = part_of(recorder, tmp_path).events
    ready = [event for event in events if isinstance(event, Ready)]
    assert len(events) == 2 * len(ready) == 2 * 4 * 2000
    assert len({event.number for event in ready}) == len(ready)
    for thread in threads:
        assert [e.sequence for e in ready if e.key == thread.ident] == list(range(1, 2001))


def test_the_offset_of_the_clock_is_in_the_part(recorder, tmp_path):
    """With the bound of its error; a process that never asked says that it does not know."""
    assert part_of(recorder, tmp_path).header.offset_error_ns is None
    recorder.clock.add(10, 1000, 30)
    header = part_of(recorder, tmp_path).header
    assert (header.offset_ns, header.offset_error_ns) == (980, 10)


def test_a_trace_that_cannot_be_written_does_not_fail_the_job(recorder, tmp_path, caplog):
    """The log says what went wrong."""
    parts.folder_of_parts(tmp_path).write_text("a file where the folder should be")
    with caplog.at_level(logging.ERROR):
        recorder.write()
    (said,) = caplog.records
    assert "the part of worker3 cannot be written below" in said.message
    assert said.exc_info is None


def test_a_trace_is_its_users_alone(recorder, tmp_path):
    """The parts, the merged trace and the folder that was made for them."""
    folder = tmp_path / "trace"
    parts.clear(folder)
    Recorder(WORKER, str(folder), client=1, now=Ticks()).write()
    parts.write_trace(folder, {"traceEvents": []})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {"trace": 0o700, "parts": 0o700, "worker3.jsonl": 0o600, "trace.json": 0o600}


def test_a_forked_child_writes_nothing(recorder, tmp_path, monkeypatch):
    """It has inherited the recorder of its parent, and its exit handlers."""
    monkeypatch.setattr(os, "getpid", lambda: -1)
    recorder.write()
    assert parts.read_parts(tmp_path) == []


def test_a_file_that_is_no_part_is_named(tmp_path):
    """Whoever reads it is told which file it was."""
    folder = parts.folder_of_parts(tmp_path)
    folder.mkdir()
    (folder / "worker0.jsonl").write_text('{"node": 5}\n')
    with pytest.raises(ConfigurationError, match=r"worker0\.jsonl is not a part of a trace"):
        parts.read_parts(tmp_path)


def test_a_new_job_finds_nothing_of_the_last_one(recorder, tmp_path):
    """Parts, drafts and the merged trace go; what else lies there stays."""
    recorder.write()
    parts.write_trace(tmp_path, {"traceEvents": []})
    (parts.folder_of_parts(tmp_path) / f"worker9{DRAFT}").touch()
    (tmp_path / f"{parts.TRACE}.1{DRAFT}").touch()
    (tmp_path / "notes.txt").touch()
    parts.clear(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["notes.txt", "parts"]


# --- annotate ---


def test_a_mark_is_a_span_of_its_thread(installed, tmp_path):
    """Marks nest, and end when their block fails."""
    annotate = kvstore_mpi.annotate
    with annotate("forward"), contextlib.suppress(ZeroDivisionError), annotate("wait"):
        1 / 0  # noqa: B018
    thread = threading.get_ident()
    assert part_of(installed, tmp_path).events == [
        Span(20, 30, "wait", thread),
        Span(10, 40, "forward", thread),
    ]


def test_a_function_can_be_marked(installed, tmp_path):
    """Each of its calls, also one inside another."""

    @kvstore_mpi.annotate("backward")
    def descend(depth):
        return descend(depth - 1) if depth else "bottom"

    assert descend(1) == "bottom"
    names = [(event.name, event.since) for event in part_of(installed, tmp_path).events]
    assert names == [("backward", 20), ("backward", 10)]


def test_without_a_trace_a_mark_does_nothing():
    """A script with marks runs everywhere, and its errors pass."""
    assert annotation.installed() is None
    with pytest.raises(KeyError), kvstore_mpi.annotate("forward"):
        raise KeyError


INSTALL = """
import sys
import kvstore_mpi
from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.tracing import annotation
from kvstore_mpi.tracing.recorder import Recorder
annotation.install(Recorder(NodeId(Role.WORKER), sys.argv[1]))
with kvstore_mpi.annotate("forward"):
    pass
sys.exit(3)
"""


def test_the_part_of_a_process_is_written_at_its_exit(tmp_path):
    """Also when nobody has asked for it, and the script fails."""
    done = subprocess.run([sys.executable, "-c", INSTALL, str(tmp_path)], timeout=280, check=False)
    assert done.returncode == 3
    (part,) = parts.read_parts(tmp_path)
    assert [event.name for event in part.events] == ["forward"]


def test_what_is_kept_is_nothing_to_the_collector(recorder):
    """Objects that stay make Python's collector go through all of a process: tens of milliseconds."""
    gc.collect()
    before = len(gc.get_objects())
    for sequence in range(1000):
        recorder.mark("sent", SERVER, [[7, 0, 100, sequence, True]])
        recorder.in_flight(SERVER, sequence)
        recorder.operation("push", 0, "w", -1, lambda _: None)(None)
        recorder.span("forward", 1)
    assert len(gc.get_objects()) - before < 100


def test_what_marks_of_computing_hide_is_counted_as_it_happens(tmp_path):
    """Not what is waited for inside of them, nor twice where marks are nested, nor other threads' marks."""
    recorder = Recorder(NodeId(Role.WORKER), str(tmp_path))
    pending = iter([0.0, 1.0, 3.0, 3.5, 4.0, 6.0, 10.0, 11.0])
    recorder.pending = lambda: next(pending)
    forward = recorder.begins("forward")
    inner = recorder.begins("layer")
    wait = recorder.begins("wait")
    recorder.ends("wait", wait)
    recorder.ends("layer", inner)
    recorder.ends("forward", forward)
    assert recorder.hidden_seconds == 6.0 - 0.5
    outside = recorder.begins("wait")
    recorder.ends("wait", outside)
    assert recorder.hidden_seconds == 5.5
    recorder.pending = lambda: 99.0
    loading = threading.Thread(target=lambda: recorder.ends("load", recorder.begins("load")))
    loading.start()
    loading.join()
    assert recorder.hidden_seconds == 5.5


def test_a_mark_of_an_iteration_computes_nothing(tmp_path):
    """Neither around a whole iteration, nor does it end the mark of computing that it stands in."""
    recorder = Recorder(NodeId(Role.WORKER), str(tmp_path))
    pending = iter([0.0, 1.0, 3.0, 5.0, 9.0, 12.0])
    recorder.pending = lambda: next(pending)
    whole = recorder.begins("iteration 7")
    forward = recorder.begins("forward")
    recorder.ends("forward", forward)
    assert recorder.hidden_seconds == 2.0
    recorder.ends("iteration 7", whole)
    assert recorder.hidden_seconds == 2.0
    recorder.ends("backward", recorder.begins("backward"))
    assert recorder.hidden_seconds == 5.0
