"""Keys that are no tables, in jobs that go on with another number of servers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dense_job import DenseJob

from kvstore_mpi.errors import ConfigurationError, MismatchError, UsageError
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.records import KeySpec, name_of_table
from kvstore_mpi.server.dense_recut import DenseRecut
from kvstore_mpi.server.snapshot_file import SavedChain, open_chain, read
from kvstore_mpi.server.snapshot_records import VALUE, ArrayRecord, KeyRecord, UnitRecord
from kvstore_mpi.server.snapshot_sets import newest
from kvstore_mpi.values.row_sparse import RowSparse
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.state_parts import MASTER


def specs(shapes, dtype):
    return [KeySpec(0, f"w{number}", shape, dtype) for number, shape in enumerate(shapes)]


def made(job, keys, rule):
    for spec in keys:
        job.create(spec, whole=rule == "norm")
    return job


def trained(folder, servers, keys, rule, *, steps, schedule=Schedule.P3):
    """Return a job that has trained and saved; one without a rule assigns."""
    job = DenseJob(folder, servers, schedule=schedule)
    if rule:
        job.give(rule)
    made(job, keys, rule)
    for step in range(1, steps + 1):
        job.push(step, step)
    job.save()
    return job


def resumed(folder, servers, keys, rule, *, name="b", schedule=Schedule.P3):
    job = DenseJob(folder, servers, job=name, schedule=schedule)
    job.resume()
    return made(job, keys, rule)


shapes = st.lists(
    st.one_of(st.just((0,)), st.just(()), st.tuples(st.integers(1, 30))), min_size=1, max_size=4
)
rules = st.sampled_from(
    [
        ("adam", "float32"),
        ("adam", "float64"),
        ("sgd", "float16"),
        ("elastic", "float16"),
        ("delayed-nesterov", "float32"),
        ("norm", "float32"),
        ("", "int64"),
        ("", "uint8"),
    ]
)


@settings(deadline=None, max_examples=40)
@given(
    shapes=shapes,
    kind=rules,
    servers=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    steps=st.integers(0, 3),
    schedule=st.sampled_from([Schedule.P3, Schedule.FIFO]),
)
def test_training_goes_on_as_on_one_server(tmp_path_factory, *, shapes, kind, servers, steps, schedule):
    """To the bit, with masters, states and counts; nothing that was cut anew shows."""
    folder = tmp_path_factory.mktemp("resumed")
    (rule, dtype), (before, after) = kind, servers
    keys = specs(shapes, dtype)
    trained(folder, before, keys, rule, steps=steps, schedule=schedule)
    job = resumed(folder, after, keys, rule, schedule=schedule)
    uncut = trained(tmp_path_factory.mktemp("uncut"), 1, keys, rule, steps=steps, schedule=schedule)
    assert job.content() == uncut.content()
    for step in range(1, 3):
        job.push(steps + step, step)
        uncut.push(steps + step, steps + step)
    assert job.content() == uncut.content()
    assert job.counts() == uncut.counts()
    # And once more, from what the second job has left.
    job.save()
    assert len(newest(folder)) == after
    again = resumed(folder, before, keys, rule, name="c", schedule=schedule)
    assert (again.content(), again.counts()) == (uncut.content(), uncut.counts())


@pytest.mark.parametrize("after", [1, 2, 3])
def test_sums_that_workers_applied_are_no_parameters(tmp_path, after, caplog):
    """Beside keys that servers have updated they begin as the script has them; alone they are an error."""
    sums = [KeySpec(1, "sum", (12,), "float32"), KeySpec(1, "count", (3,), "int64")]
    begun, keys = [KeySpec(1, "never pushed", (4,), "float32")], specs([(30,)], "float32")
    job = DenseJob(tmp_path, 2)
    job.give("sgd")
    made(job, [*keys, *begun, *sums], "sgd")
    job.push(1, 1, keys=[0, 2, 3])
    job.save()
    again = resumed(tmp_path, after, [*keys, *begun, *sums], "sgd")
    fresh = made(DenseJob(tmp_path / "fresh", after), [*keys, *begun, *sums], "")
    found, was, new = again.content(), job.content(), fresh.content()
    assert "the keys 'sum' begin as the script has them" in caplog.text
    assert found[2, VALUE] == new[2, VALUE] != was[2, VALUE]
    assert {place: found[place] for place in found if place[0] != 2} == {
        place: was[place] for place in was if place[0] != 2
    }


def test_nothing_but_sums(tmp_path):
    """Which no job can go on with."""
    trained(tmp_path, 2, specs([(12,), (3,)], "float16"), "", steps=1)
    with pytest.raises(ConfigurationError, match=r"server0-of-2.snapshot has no parameters .* 'w0', 'w1' "):
        resumed(tmp_path, 1, specs([(12,), (3,)], "float16"), "")


def test_slices_that_were_updated_unequally_keep_their_counts(tmp_path):
    """Servers that died at unequal moments."""
    keys = specs([(30,)], "float32")
    job = trained(tmp_path, 2, keys, "adam", steps=2)
    job.push(3, 3, servers=[1])
    job.servers[1].save()
    again = resumed(tmp_path, 3, keys, "adam")
    assert (again.content(), again.counts()) == (job.content(), job.counts())
    assert set(again.counts().values()) == {2, 3}


@pytest.mark.parametrize("ahead", [0, 1])
def test_whole_layers_have_the_greatest_count(tmp_path, ahead):
    """Layers whose parts were updated unequally have one number of updates; what had no state has zeros."""
    keys = specs([(10,)], "float32")
    job = trained(tmp_path, 2, keys, "adam", steps=0, schedule=Schedule.FIFO)
    job.push(1, 1, servers=[ahead])
    job.servers[ahead].save()
    again = resumed(tmp_path, 1, keys, "adam", schedule=Schedule.FIFO)
    assert again.counts() == {(0, 0): 1, (0, 5): 1}
    for index in (0, 1):
        parts = [[0.0] * 5, [0.0] * 5]
        parts[ahead] = job.content()[0, index]
        assert again.content()[0, index] == [*parts[0], *parts[1]]


def test_a_key_is_taken_up_also_where_nothing_of_it_is_to_be(tmp_path):
    """By servers other than those that have it, which would keep it for a later job for ever."""
    keys = specs([(30,), (2,)], "float32")
    trained(tmp_path, 2, keys, "adam", steps=2)
    resumed(tmp_path, 3, keys, "adam").save()
    assert [open_chain(path).header.waits for path in newest(tmp_path)] == [[]] * 3


def test_as_many_servers_wait_for_nothing(tmp_path, caplog):
    """Their keys lie where they were, and are saved also if the script has dropped them."""
    keys = specs([(30,), (2,)], "float32")
    before = trained(tmp_path, 2, keys, "adam", steps=2)
    resumed(tmp_path, 2, [], "adam").save()
    assert {read(path).header.job for path in newest(tmp_path)} == {"b"}
    assert not caplog.records
    assert resumed(tmp_path, 1, keys, "adam", name="c").content() == before.content()


def test_a_server_that_had_nothing_of_a_key_is_not_read(tmp_path, monkeypatch):
    """A large key may be on many servers, and each new one would otherwise read all of it."""
    keys = specs([(40,)], "float32")
    trained(tmp_path, 4, keys, "adam", steps=1)
    job = DenseJob(tmp_path, 2, job="b")
    job.resume()
    loaded, load = [], SavedChain.load
    monkeypatch.setattr(
        SavedChain, "load", lambda chain, wanted: loaded.append(chain.path.name) or load(chain, wanted)
    )
    made(job, keys, "adam")
    assert sorted(loaded) == [f"server{index}-of-4.snapshot" for index in range(4)]


def test_pieces_of_tables_are_updated_by_themselves_under_rules_for_whole_tensors(tmp_path):
    """They have nothing in common but their name, wherever they lie."""
    job = DenseJob(tmp_path, 2)
    job.give("norm")
    table = KeySpec(0, "t", (4, 3), "float32", "rows", 4)
    message = m.Create(table, "sync", 0, (0, 4), [(0, 1)])
    assert job.servers[0].state.keys.units_of(message) == [(0, 1), (2, 3)]


@pytest.mark.parametrize("shape", [(4, 3), (2, 2)], ids=str)
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_key_of_which_a_table_was_made_is_still_there(tmp_path, after, shape):
    """Both are taken up by scripts that make the one of the other again."""
    keys = specs([shape], "float32")
    table = KeySpec(0, name_of_table("w0"), shape, "float32", "rows", 1)

    def add_table(job, value):
        payload = RowSparse(table).value_of(0, np.full(shape, value, np.float32))
        job.servers[0].take(m.Create(table, "sync", 1, (0, 2), [(0, 1)]), [payload])
        for server in job.servers[1:]:
            server.take(m.Create(table, "sync", 1, (0, 0), [], seed=True), [])

    job = trained(tmp_path, 2, keys, "adam", steps=2)
    add_table(job, 7)
    job.save()
    again = resumed(tmp_path, after, keys, "adam")
    add_table(again, 8)
    assert again.content() == job.content()


# --- what cannot be resumed ---


def test_a_rule_for_whole_tensors_needs_them_whole(tmp_path):
    """One server takes it also after the keys; several would each take a part for the tensor."""
    keys = specs([(12,)], "float32")
    trained(tmp_path, 1, keys, "norm", steps=2)
    job = DenseJob(tmp_path, 2, job="b")
    job.resume()
    with pytest.raises(UsageError, match=r"whole tensors, but key 'w0' .* call set_optimizer first"):
        job.create(keys[0])
    assert resumed(tmp_path, 3, keys, "norm").content()


@pytest.mark.parametrize(
    "other",
    [
        KeySpec(0, "v", (12,), "float32"),
        KeySpec(0, "w0", (4, 3), "float32"),
        KeySpec(0, "w0", (12,), "float64"),
    ],
)
def test_another_key_in_its_place_is_refused(tmp_path, other):
    """Nothing of it is taken up, and the right one still can be."""
    keys = specs([(12,)], "float32")
    trained(tmp_path, 2, keys, "adam", steps=2)
    job = DenseJob(tmp_path, 3, job="b")
    job.resume()
    with pytest.raises(MismatchError, match=r"key number 0 is .* the snapshots have 'w0' \(12,\) float32"):
        job.create(other)
    assert resumed(tmp_path, 3, keys, "adam").content()


def test_a_table_is_no_dense_key(tmp_path):
    """Whose rows are cut otherwise: what the script makes of a key must stay what it was."""
    keys = specs([(4, 3)], "float32")
    trained(tmp_path, 2, keys, "adam", steps=2)
    job = DenseJob(tmp_path, 3, job="b")
    job.resume()
    with pytest.raises(
        MismatchError, match=r"in 2 pieces \(rows\) .* the snapshots have 'w0' \(4, 3\) float32"
    ):
        job.create(KeySpec(0, "w0", (4, 3), "float32", "rows", 2))


def saved(lo, hi, *, units=None, states=(), dtype="float32", master=False):
    """Return what a server had of a key of ten elements, which are their own numbers, and its arrays."""
    begins = units or [lo]
    value = np.arange(lo, hi).astype(dtype)
    arrays = [
        (VALUE, lo, value),
        *([(MASTER, lo, value.astype("float32") + 0.25)] if master else []),
        *states,
    ]
    records = [ArrayRecord(index, at, array.dtype.name, array.size) for index, at, array in arrays]
    counted = [UnitRecord(begin, [0], [0], begin) for begin in begins]
    spec = KeySpec(0, "w", (10,), dtype)
    return KeyRecord(spec, "sync", 0, (lo, hi), counted, records), [array for *_, array in arrays]


def recut(*parts, units=((0, 10),), dtype="float32"):
    found = DenseRecut(KeySpec(0, "w", (10,), dtype), (units[0][0], units[-1][1]), units)
    for key, arrays in parts:
        found.add(key, arrays)
    return dict(found.arrays()), found.updates


def test_only_what_is_wanted_is_read():
    """The files of servers that had nothing of it are left alone."""
    found = DenseRecut(KeySpec(0, "w", (10,), "float32"), (4, 7), [(4, 7)])
    assert [found.wants(saved(*part)[0]) for part in ((0, 4), (0, 5), (5, 6), (7, 10))] == [
        False,
        True,
        True,
        False,
    ]


def test_a_state_that_is_not_made_of_elements_stays_whole():
    """Neither a part of its unit can have it, nor one that has others' elements besides."""
    numbers = np.arange(2.0)
    part = saved(0, 10, states=[(0, 0, numbers)])
    assert recut(part)[0][0, 0].tolist() == [0, 1]
    with pytest.raises(
        ConfigurationError, match=r"'w' in the snapshots state 0 of elements 0 to 10.* 2 numbers"
    ):
        recut(part, units=[(0, 5)])


def test_a_master_that_a_part_had_not_yet_is_its_value():
    """As it would have begun."""
    arrays, _ = recut(
        saved(0, 4, dtype="float16", master=True), saved(4, 10, dtype="float16"), dtype="float16"
    )
    assert arrays[MASTER, 0].tolist() == [0.25, 1.25, 2.25, 3.25, 4, 5, 6, 7, 8, 9]


def test_units_are_counted_by_their_elements():
    """Also where they are cut in other places; states that are missing are zeros."""
    old = saved(0, 10, units=[0, 3, 7], states=[(0, 3, np.full(4, 2.0))])
    arrays, updates = recut(old, units=[(1, 3), (3, 5), (5, 9)])
    assert updates == [(1, 0), (3, 3), (5, 7)]
    assert {at: array.tolist() for (index, at), array in arrays.items() if index == 0} == {
        3: [2, 2],
        5: [2, 2, 0, 0],
    }
    assert arrays[VALUE, 1].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_elements_that_no_server_has_saved_are_named():
    """One died before it had its part of the key."""
    with pytest.raises(
        ConfigurationError, match="of key 'w' in the snapshots elements are missing: 2 to 5, 9 to 10"
    ):
        recut(saved(5, 9), saved(0, 2))
    with pytest.raises(ConfigurationError, match="elements are missing: 0 to 10"):
        recut()


def test_what_was_crafted_is_refused():
    """Files that are as they were written may still not go together."""
    whole = saved(0, 10)
    other = msgspec.structs.replace(whole[0], spec=KeySpec(0, "v", (10,), "float32"))
    with pytest.raises(ConfigurationError, match=r"some are of 'v' \(10,\) float32"):
        recut((other, whole[1]))
    for part in (
        saved(0, 10, units=[1]),
        saved(0, 10, units=[0, 5, 3]),
        saved(0, 10, states=[(0, 4, np.zeros(4))]),
    ):
        with pytest.raises(ConfigurationError, match="what was updated together begins at"):
            recut(part)
    parts = [
        saved(lo, hi, states=[(0, lo, np.zeros(5, kind))]) for lo, hi, kind in ((0, 5, "f4"), (5, 10, "f8"))
    ]
    with pytest.raises(ConfigurationError, match="state 0 is float32 in one part and float64 in another"):
        recut(*parts)
