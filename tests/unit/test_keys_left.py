"""Keys of a job that is resumed which the script creates late, or not at all: a job after it has them."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from support.dense_job import DenseJob
from support.table_job import TableJob, table
from support.table_server import RULES, TableServer

from kvstore_mpi.errors import ConfigurationError, NotSavedError
from kvstore_mpi.records import Growth, KeySpec, Retention, RowInit
from kvstore_mpi.server.snapshot_file import open_chain
from kvstore_mpi.server.snapshot_sets import newest, path_of

MOD, RANGE = "rows", "row_ranges"
GROWING = Growth(RowInit("uniform", -1, 1, 3), Retention(max_age=40, admit_after=2))
KEYS = [KeySpec(0, "w", (30,), "float32"), KeySpec(0, "b", (3,), "float32")]


def other(spec):
    """Return a table beside a table."""
    return replace(spec, key="other", growth=None)


def table_job(folder, servers, name, *tables):
    """Return a job that goes on with some of its tables, by their numbers."""
    job = TableJob(folder, servers, job=name)
    job.resume()
    for number, spec in tables:
        job.create(spec, number)
    return job


def trained_tables(folder, servers, spec, steps=6):
    job = TableJob(folder, servers)
    job.give("adam")
    job.create(other(spec), 0)
    job.create(spec, 1)
    for step in range(1, steps + 1):
        for number in (0, 1):
            job.push([step % 7, 3 * step % 19 + 20], step, number)
    job.save()
    return job


def of_table(job, number=1):
    return {place: row for place, row in job.content().items() if place[0] == number}


@pytest.mark.parametrize("growth", [None, GROWING], ids=["fixed", "growing"])
@pytest.mark.parametrize("servers", [(2, 2, 2), (1, 3, 2), (4, 2, 3), (3, 1, 1)], ids=str)
def test_a_table_that_was_not_created_in_one_job_is_as_before_in_the_next(tmp_path, growth, servers):
    """To the bit, though another one was trained, bases and links were written, and pieces are others."""
    before, between, after = servers
    spec = table(growth, 40, "float32", (MOD, 4))
    was = of_table(trained_tables(tmp_path, before, spec))
    job = table_job(tmp_path, between, "b", (0, other(spec)))
    for step in range(1, 4):
        job.push([step], step, 0)
        job.save()
    assert len(newest(tmp_path)) == len([*tmp_path.glob("*.snapshot")]) == between
    cut = replace(spec, layout=RANGE, partitions=6)
    job = table_job(tmp_path, after, "c", (0, other(spec)))
    job.save()  # and once more
    job.create(cut, 1)
    assert of_table(job) == was
    job.save()
    again = table_job(tmp_path, before, "d", (0, other(spec)), (1, cut))
    assert again.content() == job.content()


@pytest.mark.parametrize("rule", ["adam", "norm"])
@pytest.mark.parametrize("servers", [(2, 3, 2), (3, 2, 2), (2, 1, 3), (1, 2, 1)], ids=str)
def test_so_is_a_key_that_is_no_table(tmp_path, servers, rule):
    """Also one that would lie where it was if it were not a part of another server's."""
    before, between, after = servers
    whole = rule == "norm"
    first = DenseJob(tmp_path, before)
    first.give(rule)
    for spec in KEYS:
        first.create(spec, whole=whole)
    for step in (1, 2):
        first.push(step, step)
    first.save()
    second = DenseJob(tmp_path, between, job="b")
    second.resume()
    second.create(KEYS[0], whole=whole)
    second.push(3, 1)
    second.save()
    first.push(3, 3, keys=[0])
    third = DenseJob(tmp_path, after, job="c")
    third.resume()
    for spec in KEYS:
        third.create(spec, whole=whole)
    assert (third.content(), third.counts()) == (first.content(), first.counts())


# --- snapshots of unequal moments ---


@pytest.mark.parametrize("cut", [(MOD, 4), (RANGE, 6)], ids=str)
@pytest.mark.parametrize("between", [2, 3])
def test_a_key_that_one_server_has_saved_since_it_was_created_is_whole(tmp_path, between, cut):
    """With the part of the others as it was, or, where these do not make one key, all of it."""
    spec = table(None, 40, "float32", (MOD, 4))
    was = of_table(trained_tables(tmp_path, 2, spec))
    job = table_job(tmp_path, between, "b", (0, other(spec)))
    job.save()
    job.create(replace(spec, layout=cut[0], partitions=cut[1]), 1)
    job.servers[0].snapshots._chain.name = ""  # another base, as where links have grown long
    job.servers[0].save()
    [*_, last] = open_chain(path_of(str(tmp_path), 0, between)).header.keys
    assert last.key_id == 1
    again = table_job(tmp_path, 2, "c", (0, other(spec)), (1, spec))
    assert of_table(again) == was


def test_a_key_that_all_have_saved_is_as_they_have_it(tmp_path):
    """And is left no longer."""
    spec = table(None, 40, "float32", (MOD, 4))
    trained_tables(tmp_path, 2, spec)
    job = table_job(tmp_path, 2, "b", (0, other(spec)))
    job.save()
    job.create(replace(spec, partitions=6), 1)
    job.push([1, 2, 3], 1, 1)
    for kept in (True, False):
        for server in job.servers:
            server.snapshots._chain.name = ""
            server.save()
        assert all(bool(open_chain(path).left) == kept for path in newest(tmp_path))
        again = table_job(tmp_path, 3, "c", (0, other(spec)), (1, spec))
        assert of_table(again) == of_table(job)


# --- a server that is started again ---


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_server_that_is_started_again_still_has_what_is_left(tmp_path, servers):
    """It takes it up, and its snapshots have it."""
    spec = table(None, 40, "float32", (MOD, 4))
    was = of_table(trained_tables(tmp_path, 2, spec))
    job = table_job(tmp_path, servers, "b", (0, other(spec)))
    job.save()
    for index in range(servers):
        server = TableServer(tmp_path, index, servers, job="b")
        assert server.restore(resume=True)
        server.save()
        job.servers[index] = server
    assert of_table(table_job(tmp_path, 2, "c", (0, other(spec)), (1, spec))) == was
    job.create(spec, 1)
    assert of_table(job) == was


# --- when they are taken, and what is said ---


def test_the_first_snapshot_waits_for_keys_until_it_is_due(tmp_path, caplog):
    """Whoever pushes; no server is without snapshots for a key that never comes, and one says so once."""
    spec = table(None, 40, "float32", (MOD, 4))
    trained_tables(tmp_path, 2, spec)
    job = table_job(tmp_path, 3, "b", (0, other(spec)))

    def ticks(now):
        for server in job.servers:
            for _ in range(2):
                server.snapshots.save_if_due(now, server.state, server.store)

    ticks(9.0)
    assert not any(server.snapshots.busy for server in job.servers)
    assert not caplog.records
    ticks(10.0)
    assert all(server.snapshots.busy for server in job.servers)
    job.save()
    [told] = [record.message for record in caplog.records]
    assert told.startswith("the job that is resumed had the keys 't', which this script has not created")


def test_the_first_snapshot_follows_the_last_key(tmp_path):
    """As in any job, since nothing is written twice then."""
    spec = table(None, 40, "float32", (MOD, 4))
    trained_tables(tmp_path, 2, spec)
    job = table_job(tmp_path, 2, "b", (0, other(spec)))
    for server in job.servers:
        server.snapshots.save_if_due(0.0, server.state, server.store)
    job.create(spec, 1)
    for server in job.servers:
        for _ in range(2):
            server.snapshots.save_if_due(1.0, server.state, server.store)
        assert server.snapshots.busy


def test_a_former_file_that_has_become_shorter_is_told(tmp_path, caplog):
    """Training goes on without a snapshot, and only the last one is an error; so is a key of it."""
    spec = table(None, 40, "float32", (MOD, 4))
    trained_tables(tmp_path, 2, spec)
    job = table_job(tmp_path, 3, "b", (0, other(spec)))
    former = path_of(str(tmp_path), 1, 2)
    os.truncate(former, former.stat().st_size // 2)
    server = job.servers[1]
    server.snapshots.save_if_due(10.0, server.state, server.store)
    while server.snapshots.busy:
        server.snapshots.go_on()
    server.snapshots._writer.join()
    why = f"{former} cannot be taken up: it has become shorter"
    assert why in caplog.text
    assert server.snapshots.failing
    with pytest.raises(NotSavedError, match=why):
        server.save()
    with pytest.raises(ConfigurationError, match=why):
        job.create(spec, 1)


def test_a_restart_keeps_the_rule_of_what_is_left(tmp_path):
    """Keys of a store of which nothing is created yet go on with their optimizer."""
    spec = table(None, 40, "float32", (MOD, 4))
    trained_tables(tmp_path, 1, spec)
    table_job(tmp_path, 1, "b").save()
    job = table_job(tmp_path, 1, "c")
    assert dict(job.servers[0].store.specs())[0].name == RULES["adam"].name
