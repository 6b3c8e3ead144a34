"""Jobs that go on with other numbers of servers and pieces, from the snapshots of all former servers."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dense_job import DenseJob
from support.table_job import TableJob, table
from support.table_server import LEADER

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import ConfigurationError, MismatchError
from kvstore_mpi.records import (
    Growth,
    KeySpec,
    Mode,
    NodeId,
    Retention,
    Role,
    RowInit,
    Shard,
    Topology,
    name_of_table,
)
from kvstore_mpi.server.snapshot_sets import newest, path_of, remove_older
from kvstore_mpi.values.row_payloads import CHANGED
from kvstore_mpi.values.row_sparse import RowSparse
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker.servers import Servers

GROWING = Growth(RowInit("uniform", -1, 1, 3), Retention(max_age=40, admit_after=2))
MOD, RANGE = "rows", "row_ranges"


def ids_of(step):
    return {step % 7, step % 5 + 10, 3 * step % 19 + 20}


def trained(folder, servers, spec, rule, steps):
    """Return a job that has trained, and that has saved some of the last steps and its end."""
    job = TableJob(folder, servers)
    job.give(rule)
    job.create(spec)
    for step in range(1, steps + 1):
        job.push(ids_of(step), step)
        if step % 8 == 7:
            job.save()
    job.save()
    return job


def resumed(folder, servers, spec, name="b"):
    job = TableJob(folder, servers, job=name)
    job.resume()
    job.create(spec)
    return job


cuts = st.tuples(st.integers(1, 4), st.sampled_from([MOD, RANGE]), st.integers(1, 9))
tables = st.tuples(
    st.sampled_from([None, Growth(RowInit("normal", 0, 1, 5)), GROWING]),
    st.sampled_from(
        [("adam", "float32"), ("sgd", "float32"), ("groupadagrad", "float64"), ("half", "float16")]
    ),
)


@settings(deadline=None, max_examples=30)
@given(kind=tables, before=cuts, after=cuts, steps=st.integers(0, 20))
def test_training_goes_on_as_without_the_break(tmp_path_factory, kind, before, after, steps):
    """To the bit, with states, ages, what waits to be admitted, and counts."""
    folder = tmp_path_factory.mktemp("resumed")
    growth, (rule, dtype) = kind
    spec, other = (table(growth, 40, dtype, cut[1:]) for cut in (before, after))
    job = trained(folder, before[0], spec, rule, steps)
    again = resumed(folder, after[0], other)
    assert again.content() == job.content()
    for number in range(1, 9):
        job.push(ids_of(steps + number), steps + number)
        again.push(ids_of(steps + number), number)
    assert again.content() == job.content()
    # And once more, from what the second job has left.
    again.save()
    assert resumed(folder, before[0], spec, "c").content() == job.content()


def test_rows_that_stayed_with_their_servers_go_to_those_of_another_job(tmp_path):
    """Whose numbers are others; so it was cut after the first tries of its job."""
    spec, other = (
        replace(table(GROWING, 40, "float32", (MOD, pieces)), homes=servers)
        for servers, pieces in [(2, 6), (3, 3)]
    )
    job = trained(tmp_path, 2, spec, "adam", 20)
    again = resumed(tmp_path, 3, other)
    assert again.content() == job.content()
    for number in range(1, 9):
        job.push(ids_of(20 + number), 20 + number)
        again.push(ids_of(20 + number), number)
    assert again.content() == job.content()


@pytest.mark.parametrize(
    ("growth", "rule", "dtype"),
    [(None, "nag", "float32"), (GROWING, "nag", "float32"), (None, "half", "float16")],
)
def test_what_rows_have_missed_and_masters_move_along(tmp_path, growth, rule, dtype):
    """Rows of exact updates are caught up with by the server that they leave."""
    job = trained(tmp_path, 2, table(growth, 40, dtype, (MOD, 4)), rule, 20)
    assert resumed(tmp_path, 3, table(growth, 40, dtype, (RANGE, 6))).content() == job.content()


def test_ages_go_on_where_pieces_were_updated_unequally(tmp_path):
    """Servers that died at unequal moments: rows keep their ages, and pieces the greatest count."""
    spec = table(GROWING, 40, "float32", (MOD, 2))
    job = trained(tmp_path, 2, spec, "adam", 24)
    saved = {row: 24 - found[1] for row, found in job.servers[0].content().items()}
    for step in (25, 26):
        job.push(ids_of(step), step)
    job.servers[1].save()
    saved |= {row: 26 - found[1] for row, found in job.servers[1].content().items()}
    again = resumed(tmp_path, 1, spec).content()
    assert {found[0] for found in again.values()} == {26}
    assert {row: 26 - found[1] for row, found in again.items()} == saved


# --- what may not be resumed ---


def test_another_table_in_its_place_is_refused(tmp_path):
    """Only how it is cut may differ."""
    spec = table(None, 40, "float32", (MOD, 4))
    trained(tmp_path, 2, spec, "sgd", 3)
    for other in (
        table(None, 41, "float32", (MOD, 4)),
        table(None, 40, "float64", (MOD, 4)),
        table(GROWING, 40, "float32", (MOD, 4)),
        KeySpec(0, "u", (40, 2), "float32", MOD, 4),
    ):
        with pytest.raises(MismatchError, match=r"key number 0 is .* the snapshots have 't' \(40, 2\)"):
            resumed(tmp_path, 3, other)
    assert resumed(tmp_path, 3, spec).content()


def test_a_key_that_the_former_job_did_not_have_is_new(tmp_path):
    """As in a job that is not resumed."""
    spec = table(None, 40, "float32", (MOD, 4))
    trained(tmp_path, 2, spec, "sgd", 3)
    job = resumed(tmp_path, 3, spec)
    job.create(spec, key_id=1)
    assert job.content()[1, 39][1:] == [[78.0, 79.0]]


def test_a_piece_that_no_server_has_saved_is_named(tmp_path):
    """One died before it had the table."""
    spec = table(None, 40, "float32", (MOD, 4))
    job = TableJob(tmp_path, 2)
    job.give("sgd")
    job.servers[0].create(spec, (0, 4), np.zeros((40, 2), np.float32))
    job.save()
    with pytest.raises(ConfigurationError, match="of key 't' in the snapshots pieces are missing: 2, 3"):
        resumed(tmp_path, 1, spec)


def test_clients_must_be_as_many_as_before(tmp_path):
    """What they have counted, and how their gradients are weighted, is theirs."""
    spec = table(None, 40, "float32", (MOD, 4))
    trained(tmp_path, 2, spec, "sgd", 3)
    job = TableJob(tmp_path, 3, job="b")
    job.servers[0].snapshots._layout = job.servers[0].layout._replace(clients=2)
    with pytest.raises(ConfigurationError, match="give the same --clients and --workers"):
        job.resume()


def test_a_file_under_the_name_of_another_server_s_is_named_with_both(tmp_path):
    """What it is of, and what it would be of."""
    trained(tmp_path, 2, table(None, 40, "float32", (MOD, 4)), "sgd", 3)
    copy = path_of(str(tmp_path), 1, 2)
    copy.write_bytes(path_of(str(tmp_path), 0, 2).read_bytes())
    said = r"server1-of-2\S+ is of server 0 of 2 .*, and here it would be of server 1 of 2 .* its own name"
    for server in TableJob(tmp_path, 2, job="b").servers:
        with pytest.raises(ConfigurationError, match=said):
            server.restore(resume=True, first=True)


# --- when snapshots are taken again ---


def files(folder):
    return sorted(path.name for path in folder.iterdir())


OLD = [
    "server0-of-2.snapshot",
    "server0-of-2.snapshot.1",
    "server1-of-2.snapshot",
    "server1-of-2.snapshot.1",
]
NEW = [f"server{index}-of-3.snapshot" for index in range(3)]


@pytest.fixture
def old(tmp_path):
    """A folder with the snapshots of two servers."""
    job = trained(tmp_path, 2, table(None, 400, "float32", (MOD, 4)), "sgd", 8)
    assert files(tmp_path) == OLD
    return job


def test_former_snapshots_stay_until_all_servers_have_written(old, tmp_path):
    """Whenever a job dies there is a whole set."""
    job = resumed(tmp_path, 3, table(None, 400, "float32", (MOD, 6)))
    for index, server in enumerate(job.servers, 1):
        assert newest(tmp_path) == [tmp_path / name for name in OLD if name.endswith("snapshot")]
        server.save()
        assert files(tmp_path) == (sorted([*NEW[:index], *OLD]) if index < 3 else NEW)
    assert newest(tmp_path) == [tmp_path / name for name in NEW]


# --- keys that snapshots lack ---


def tick(job):
    """Let each server look whether a snapshot is due."""
    for server in job.servers:
        server.snapshots.save_if_due(0.0, server.state, server.store)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_keys_that_snapshots_lack_are_named_once_together(tmp_path, caplog, after):
    """As soon as no more come, by one server for all; what is saved nowhere, or is as it was, is not."""
    known, *new = (KeySpec(0, name, (12,), "float32") for name in ("w", "u", "v"))
    job = DenseJob(tmp_path, 2)
    job.give("sgd")
    job.create(known)
    job.save()
    again = DenseJob(tmp_path, after, job="b")
    again.resume()
    for spec in (known, *new):
        again.create(spec)
        tick(again)
    again.create(replace(known, key="scratch", scratch=True))
    again.create(replace(known, key=name_of_table("w")))
    assert not caplog.records
    for _ in range(3):
        tick(again)
    again.create(replace(known, key="late"))
    again.save()
    begin = "begin as the script has them: the snapshots of the job that is resumed do not have them"
    told = [f"the keys {names} {begin}" for names in ("'u', 'v'", "'late'")]
    assert [each.message for each in caplog.records] == told


def test_a_server_that_lacks_its_own_part_of_a_key_says_so(tmp_path, caplog):
    """It died before it had saved it, and half of the key goes on."""
    spec = KeySpec(0, "w", (12,), "float32")
    job = DenseJob(tmp_path, 2)
    job.give("sgd")
    job.servers[1].save()
    job.create(spec)
    job.servers[0].save()
    again = DenseJob(tmp_path, 2, job="b")
    again.resume()
    again.create(spec)
    again.save()
    [told] = [each.message for each in caplog.records]
    assert told.startswith("the keys 'w' begin as the script has them")


def test_a_script_that_is_late_loses_nothing(old, tmp_path):
    """Files that were removed meanwhile are open."""
    job = TableJob(tmp_path, 3, job="b")
    job.resume()
    for path in tmp_path.iterdir():
        path.unlink()
    job.create(table(None, 400, "float32", (RANGE, 5)))
    assert job.content() == old.content()


def test_who_asked_before_is_answered(old, tmp_path):
    """A worker that learns of the table before rank 0's message is here."""
    spec = table(None, 400, "float32", (MOD, 6))
    job = TableJob(tmp_path, 3, job="b")
    job.resume()
    server, asked = job.servers[0], RowSparse(spec).request(CHANGED, -1)
    assert server.state.pull(LEADER, m.Pull([(0, 2, 3, 0)], 0), [asked]) == []
    message = m.Create(spec, "sync", 0, (0, 4), [(0, 1)])
    server.snapshots.take_up([message], server.state, server.store)
    answers = server.state.create(LEADER, message, [b""])
    assert [(each.entry, each.request) for each in answers] == [((0, 0, 1, 0), None), ((0, 2, 3, 0), asked)]


def test_servers_without_a_part_are_told_of_a_key(tmp_path):
    """Otherwise they would wait for it, and take no snapshots. Of other keys only where a job goes on."""

    def servers_of(config):
        return Servers(config, Topology(1, 1, 3), lambda _: None, num_pushers=1, mpi_rank=0)

    servers = servers_of(NodeConfig())
    spec = table(None, 40, "float32", (MOD, 2))
    key = SimpleNamespace(table=object(), spec=spec, mode=Mode.SYNC, key_id=7)
    (sent,) = servers.tell_others(key, [Shard(0, 0, 2), Shard(2, 2, 4)])
    assert sent.peer == NodeId(Role.SERVER, 1)
    assert sent.message == m.Create(spec, "sync", 7, (0, 0), [], seed=True)
    key.table = None
    assert servers.tell_others(key, [Shard(0, 0, 2)]) == []
    resuming = servers_of(NodeConfig(snapshot_dir=str(tmp_path), resume=True))
    told = resuming.tell_others(key, [Shard(1, 0, 2)])
    assert [(each.peer.index, each.message.runs) for each in told] == [(0, []), (2, [])]
    # Nothing comes to be on the server by that, nor is it answered.
    server = TableJob("nowhere", 1).servers[0]
    assert server.state.create(LEADER, sent.message, []) == []
    assert not list(server.state.keys)


# --- sets of files ---


def write(folder, servers, *, at, leave_out=()):
    for index in set(range(servers)) - set(leave_out):
        path = path_of(str(folder), index, servers)
        path.touch()
        os.utime(path, ns=(at, at))


def test_the_whole_set_that_was_written_last_counts(tmp_path):
    """One that was begun does not, however new its files are."""
    assert newest(str(tmp_path / "none")) == []
    write(tmp_path, 3, at=10, leave_out=[1])
    assert newest(str(tmp_path)) == []
    write(tmp_path, 2, at=5)
    assert [path.name for path in newest(str(tmp_path))] == [
        "server0-of-2.snapshot",
        "server1-of-2.snapshot",
    ]
    write(tmp_path, 11, at=4)
    assert len(newest(str(tmp_path))) == 2
    write(tmp_path, 11, at=6)
    assert [path.name for path in newest(str(tmp_path))][-2:] == [
        "server9-of-11.snapshot",
        "server10-of-11.snapshot",
    ]
    # One file of the three is new, and the others of an earlier training.
    write(tmp_path, 3, at=3)
    write(tmp_path, 3, at=20, leave_out=[1])
    assert len(newest(str(tmp_path))) == 11
    # Of no server that a set of this size has.
    (tmp_path / "server11-of-11.snapshot").touch()
    assert len(newest(str(tmp_path))) == 11


def test_a_set_that_is_not_whole_is_an_error_that_names_what_is_missing(tmp_path):
    """Of the set that was written to last, on every server."""
    write(tmp_path, 2, at=10, leave_out=[1])
    write(tmp_path, 3, at=5, leave_out=[0])
    for server in TableJob(tmp_path, 2).servers:
        missing = (
            r"no snapshot \S+server1-of-2\.snapshot, although \S+server0-of-2\.snapshot is there.* put it"
        )
        with pytest.raises(ConfigurationError, match=missing):
            server.restore(resume=True, first=True)


def test_what_is_newer_or_begun_is_not_removed(tmp_path):
    """Nor what only looks like a snapshot."""
    write(tmp_path, 2, at=5)
    write(tmp_path, 3, at=7)
    write(tmp_path, 4, at=3, leave_out=[0])
    for name in ("server00-of-2.snapshot", "server0-of-02.snapshot", "server0-of-2.snapshot.1"):
        (tmp_path / name).touch()
    remove_older(str(tmp_path), 2)
    assert len(files(tmp_path)) == 11
    remove_older(str(tmp_path), 3)
    assert [name for name in files(tmp_path) if "of-2" in name or "of-02" in name] == [
        "server0-of-02.snapshot",
        "server00-of-2.snapshot",
    ]
    assert len(files(tmp_path)) == 8
