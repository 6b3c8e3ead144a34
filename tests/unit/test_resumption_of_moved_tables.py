"""Jobs that go on with tables that were cut anew, or left the servers, while the former job trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.table_job import TableJob, table

from kvstore_mpi.records import name_of_table
from kvstore_mpi.server.retired_keys import RetiredKeys

MOD, RANGE = "rows", "row_ranges"
FIRST = table(None, 40, "float32", (MOD, 3))
ANEW = replace(table(None, 40, "float32", (RANGE, 5)), key=name_of_table("t"))


def trained(folder):
    """Return a job of two servers that has trained a table."""
    job = TableJob(folder, 2)
    job.give("adam")
    job.create(FIRST)
    for step in range(1, 4):
        job.push({step, step + 9, 39}, step)
    return job


def cut_anew(job):
    """Let another table take the place of the first, and train that."""
    job.create(ANEW, key_id=7)
    job.push({2, 11, 38}, 1, key_id=7)


def retire(job, keep=False):
    """Nobody uses the first table any more."""
    for server in job.servers:
        if keep:
            server.state.keys.retired.put(0, 0.0)
        else:
            server.store.drop(server.state.keys.retire(0, 0.0))


def resumed(folder, servers=3):
    job = TableJob(folder, servers, job="b")
    job.resume()
    job.create(FIRST)
    return job


def of(job, key_id):
    return {row: found for (key, row), found in job.content().items() if key == key_id}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_the_newest_table_counts(tmp_path, keep, again):
    """Under the name and number that the script has for it; whether the former one was freed or not."""
    job = trained(tmp_path)
    job.save()
    cut_anew(job)
    retire(job, keep)
    job.save()
    newest = of(job, 7)
    if again:
        job.create(replace(FIRST, key=name_of_table("t", 2)), key_id=9)
        job.push({5}, 1, key_id=9)
        job.save()
        newest = of(job, 9)
    assert of(resumed(tmp_path), 0) == newest


@pytest.mark.parametrize("pushed", [0, 1])
def test_pieces_without_their_states_do_not_count(tmp_path, pushed):
    """A job that was killed between values and states of new pieces goes on with the former ones."""
    job = trained(tmp_path)
    expected = of(job, 0)
    job.create(ANEW, key_id=7)
    if pushed:  # as if the states of some pieces had come
        (server,) = (each for each in job.servers if each.state.keys.unit(7, 0) is not None)
        server.state.keys.unit(7, 0).updates = 3
    job.save()
    assert of(resumed(tmp_path), 0) == expected


def test_snapshots_of_different_moments_have_the_former_one_in_common(tmp_path):
    """One server was saved before the table was cut anew, the other after that."""
    job = trained(tmp_path)
    expected = of(job, 0)
    job.servers[0].save()
    cut_anew(job)
    job.servers[1].save()
    assert of(resumed(tmp_path), 0) == expected
    # Also if the other one has heard that nobody uses it any more: it keeps it for a while.
    retire(job, keep=True)
    job.servers[1].save()
    assert of(resumed(tmp_path), 0) == expected


def test_a_table_that_went_to_the_workers_is_not_taken_up(tmp_path):
    """What servers kept of it is old: the script's value counts, as of all that workers have."""
    job = trained(tmp_path)
    retire(job, keep=True)
    job.save()
    fresh = TableJob(tmp_path / "nothing", 3)
    fresh.give("adam")
    fresh.create(FIRST)
    again = resumed(tmp_path)
    assert of(again, 0) == of(fresh, 0)
    # And one that came back from them is.
    job.create(ANEW, key_id=7)
    job.push({1, 30}, 1, key_id=7)
    job.save()
    assert of(resumed(tmp_path), 0) == of(job, 7)


def test_a_key_is_kept_for_a_while_after_its_end():
    """And then freed once."""
    keys = RetiredKeys(delay=20.0)
    keys.put(3, 1.0)
    keys.put(5, 2.0)
    assert [keys.due(now) for now in (20.0, 21.0, 21.5, 22.0, 40.0)] == [[], [3], [], [5], []]
    assert keys.numbers == [3, 5]


def test_a_key_that_was_replaced_before_its_store_is_over_counts_once():
    """Whether it was freed or not; and whoever hears twice that a store is over keeps no more of it."""
    keys = RetiredKeys(delay=20.0)
    keys.put(3, 1.0)
    assert keys.due(21.0) == [3]
    keys.put(5, 22.0)
    for _ in range(2):
        keys.close([3, 5, 7])
    assert (keys.numbers, keys.closed, keys.due(60.0)) == ([3, 5, 7], {3, 5, 7}, [])
