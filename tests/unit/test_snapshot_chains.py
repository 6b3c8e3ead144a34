"""Snapshots that have only what has changed of tables: a base, and links after it."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.table_server import RULES, TableServer, again, begin, chain_of_three, push

from kvstore_mpi import private_files
from kvstore_mpi.errors import NotSavedError
from kvstore_mpi.records import FREQUENT, Growth, KeySpec, Retention, RowInit, Rows
from kvstore_mpi.server import snapshot_file as file
from kvstore_mpi.server.snapshot_chain import Chain

GROWTHS = [
    Growth(RowInit("uniform", -1, 1, 3)),
    Growth(RowInit("uniform", -1, 1, 3), Retention(max_rows=12, max_age=9, admit_after=2)),
    Growth(RowInit("constant", 1), Retention(max_rows=10, keep=FREQUENT)),
]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def chained(tmp_path):
    """A server with a base and two links, and its content at each."""
    return chain_of_three(tmp_path)


ids_of_a_push = st.lists(st.integers(0, 19), max_size=5, unique=True)
"""All may be of one piece of two, which keeps half of ``max_rows``: more would be an error of the push."""

rules = st.sampled_from(["sgd", "adam", "groupadagrad", "nag"])
kinds = st.one_of(
    st.tuples(st.none(), rules, st.just("float32")),
    st.tuples(st.none(), st.just("half"), st.just("float16")),
    st.tuples(
        st.sampled_from(GROWTHS),
        rules,
        st.sampled_from(["float32", "float16"]),
    ),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=kinds,
    steps=st.lists(
        st.one_of(ids_of_a_push, ids_of_a_push, st.sampled_from(["save", "save", "full disk", "rule"])),
        max_size=25,
    ),
)
def test_any_chain_is_what_the_server_had(tmp_path_factory, kind, steps):
    """Values, states, counts, ages, and what went; also after a snapshot that could not be written."""
    folder = tmp_path_factory.mktemp("chain")
    growth, rule, dtype = kind
    server = begin(folder, growth, rule, 20, dtype)
    saved, number = None, 0
    for step in steps:
        if step == "save":
            server.save()
            saved = server.content()
        elif step == "full disk":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(file.os, "fsync", _no_room)
                with pytest.raises(NotSavedError):
                    server.save()
        elif step == "rule":
            server.give(0, RULES["sgd" if dtype == "float32" else "half"].to_dict())
        else:
            number += 1
            push(server, step, number)
    if saved is not None:
        assert again(folder).content() == saved


def _no_room(_descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("growth", [None, *GROWTHS])
def test_training_goes_on_alike_from_a_chain(tmp_path, growth):
    """To the bit, where momentum, ages and pushes that wait for admission count."""
    server = begin(tmp_path, growth, "adam", 40)
    for step in range(1, 30):
        push(server, {step % 7, step % 5 + 10, 3 * step % 19 + 20}, step)
        if step > 12 and step % 4 == 0:
            server.save()
    other = again(tmp_path)
    for step in range(29, 50):
        for each in (server, other) if step > 29 else (other,):
            push(each, {step % 7, step % 5 + 10, 3 * step % 19 + 20}, step)
    assert other.content() == server.content()


# --- how much is written ---


class Killed(BaseException):
    """The process is gone: nothing more of it is carried out."""


def sizes(folder):
    return {path.name: path.stat().st_size for path in folder.iterdir()}


@pytest.mark.parametrize("growth", [None, Growth()])
@pytest.mark.parametrize(
    ("rows", "touched"),
    [(4000, 0), (4000, 20), (4000, 400), pytest.param(10**6, 10**4, marks=pytest.mark.thorough)],
)
def test_a_link_is_as_large_as_what_was_touched(tmp_path, growth, rows, touched):
    """Rows, their states, and at most 28 bytes beside each."""
    width = 64
    server = TableServer(tmp_path)
    server.give(0, RULES["sgd"].to_dict())
    table = KeySpec(0, "t", (rows, width), "float32", "rows", 2, growth)
    server.create(table, (0, 4), None if growth else np.zeros((rows, width), np.float32))
    for step, count in enumerate((rows, touched), 1):
        ids = np.linspace(0, rows - 1, count).astype(np.int64)
        server.push(Rows(ids, np.ones((count, width), np.float32)), step)
        server.save()
    found = sizes(tmp_path)
    assert found["server0-of-1.snapshot"] >= rows * width * 8
    link = found["server0-of-1.snapshot.1"]
    assert touched * width * 8 <= link <= touched * (width * 8 + 28) + 2000


def test_a_chain_is_no_longer_than_its_base(tmp_path):
    """When links would come to more than the base, all is written once more, and they go."""
    server = begin(tmp_path, rule="sgd", rows=200)
    push(server, range(200), 1)
    seen = []
    for step in range(2, 14):
        push(server, range(step, step + 50), step)
        server.save()
        found = sizes(tmp_path)
        base = found.pop("server0-of-1.snapshot")
        assert sum(found.values()) <= base + 1000 * len(found)
        seen.append(len(found))
    assert seen == [0, 1, 2, 3] * 3
    assert again(tmp_path).content() == server.content()


def test_a_chain_has_a_bound_of_its_own(tmp_path, monkeypatch):
    """Links in which nothing has changed cost a file each."""
    monkeypatch.setattr(Chain, "most_links", 3)
    server = begin(tmp_path, rule="sgd", rows=40)
    push(server, range(40), 1)
    seen = []
    for _ in range(6):
        server.save()
        seen.append(len(files(tmp_path)))
    assert seen == [1, 2, 3, 4, 1, 2]


def test_half_of_the_rows_are_worth_a_base(tmp_path):
    """A link of that size would save less than it costs whoever reads it."""
    server = begin(tmp_path, rule="sgd", rows=40)
    for step, count in enumerate((40, 20, 19), 1):
        push(server, range(count), step)
        server.save()
    assert files(tmp_path) == ["server0-of-1.snapshot", "server0-of-1.snapshot.1"]


# --- deaths and disks ---


def test_a_server_that_dies_anywhere_leaves_a_whole_state(tmp_path_factory):
    """The one before, or the one that it was writing: at each call to the system, of links and bases."""

    def run(folder, last):
        server = begin(folder, rule="sgd", rows=40)
        push(server, range(40), 1)
        states, calls = [None], 0

        def counted(function):
            def call(*arguments, **keywords):
                nonlocal calls
                calls += 1
                if calls == last:
                    raise Killed
                return function(*arguments, **keywords)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for owner, name in (
                *((file.os, name) for name in ("open", "fsync", "close")),
                *((Path, name) for name in ("replace", "unlink", "glob")),
            ):
                patch.setattr(owner, name, counted(getattr(owner, name)))
            patch.setattr(Chain, "most_links", 2)
            try:
                for step, ids in enumerate(([], [3, 4], [4, 5], [6], [7]), 2):
                    push(server, ids, step)
                    states.append(server.content())
                    server.save()
            except Killed:
                return calls, states[-2:]
        return calls, states[-1:]

    total, _ = run(tmp_path_factory.mktemp("whole"), 0)
    assert total > 30
    for last in range(1, total + 1):
        folder = tmp_path_factory.mktemp("killed")
        _, states = run(folder, last)
        other = TableServer(folder)
        found = other.content() if other.restore() else None
        assert found in states, last


def test_a_disk_that_is_full_in_the_middle_leaves_the_chain(chained, tmp_path, monkeypatch):
    """The next link that can be written has what the one that could not was to have."""
    server, contents = chained
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    real, written = private_files.os.fdopen, []

    def disk(*arguments):
        stream = real(*arguments)
        write = stream.raw.write

        def little(data):
            written.append(len(data))
            if len(written) > 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(data)

        return _Stream(stream, little)

    monkeypatch.setattr(private_files.os, "fdopen", disk)
    push(server, [8], 5)
    with pytest.raises(NotSavedError):
        server.save()
    assert server.snapshots.failing
    assert len(written) == 2
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert again(tmp_path).content() == contents[-1]
    monkeypatch.undo()
    push(server, [9], 6)
    server.save()
    assert len(files(tmp_path)) == 4
    assert again(tmp_path).content() == server.content()


class _Stream:
    """A file of which the second write fails."""

    def __init__(self, stream, write):
        self._stream, self.write = stream, write

    def __enter__(self):
        return self

    def __exit__(self, *arguments):
        self._stream.close()

    def __getattr__(self, name):
        return getattr(self._stream, name)


def test_links_are_their_users_alone(chained, tmp_path):
    """As bases are."""
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
