"""The trip of one slice through a real job: how much it passes, and that the document names all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.trip import files_of, objects_of, trace_trip

DOCUMENT = Path(__file__).parents[2] / "docs/how-a-gradient-travels.md"
MOST = 20
"""Files and kinds of objects that a reader may have to know to follow a slice; 44 and 38 were too many."""

BESIDE_THE_TRIP = ("kvstore_mpi/adapters/", "kvstore_mpi/transport/", "kvstore_mpi/comm/")
"""What the document names as well: the way above the worker, and what the traced job replaces."""


@pytest.fixture(scope="module")
def trip():
    """Trace 2 clients of 2 ranks and 2 servers."""
    return trace_trip()


def named_in_the_document():
    """Return the files that the way's table names."""
    text = DOCUMENT.read_text(encoding="utf-8")
    way = text[text.index("## The way") : text.index("## The copies")]
    return set(re.findall(r"`(kvstore_mpi/[\w/]+\.py)`", way))


def test_a_slice_passes_few_files(trip):
    """Out, through a server and back, with all that the wire does."""
    files = files_of(trip)
    assert len(files) <= MOST, sorted(files)


def test_a_slice_passes_few_kinds_of_objects(trip):
    """Objects of which it runs a method."""
    objects = objects_of(trip)
    assert len(objects) <= MOST, sorted(objects)


def test_the_document_names_every_file_of_the_trip(trip):
    """And no other below the adapter."""
    passed = {f"kvstore_mpi/{file}" for file in files_of(trip)}
    named = {file for file in named_in_the_document() if not file.startswith(BESIDE_THE_TRIP)}
    assert named == passed


def test_the_trip_goes_through_every_role(trip):
    """The trace is of the real thing: every worker pushes, and a server updates."""
    passed = {(call.file, call.function.partition(".")[2]) for call in trip}
    assert {("worker/worker.py", "pushpull"), ("server/rounds.py", "push")} <= passed
    assert sum(call.function == "Worker.pushpull" for call in trip) == 4
