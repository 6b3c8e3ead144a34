"""What a server keeps of a table that grows: updates, snapshots, and files that are not one of its own."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.records import FetchedVersions, Growth, KeySpec, Retention, RowInit, Rows
from kvstore_mpi.server.records import Update
from kvstore_mpi.server.rule import Rule
from kvstore_mpi.server.snapshot_check import problem_of
from kvstore_mpi.server.snapshot_records import (
    LAST_USED,
    PLACES,
    UPDATES,
    USES,
    VALUE,
    ArrayRecord,
    Header,
    KeyRecord,
    Layout,
    UnitRecord,
)
from kvstore_mpi.server.table_shards import TableShard
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec, build, build_for_rows, terms_of
from kvstore_mpi.values.row_sparse import BY_MODULUS, PushedRows, WantedRows
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.state_parts import NO_ARRAY

WIDTH = 2
ADAM = OptimizerSpec(name="adam", hyper=HyperParameters(lr=0.5))
RULE = Rule(ADAM, build(ADAM), terms_of(ADAM))
GROWTH = Growth(RowInit("uniform", -1, 1, 3), Retention(max_rows=12, max_age=9, admit_after=2))


def spec(dtype="float32", growth=GROWTH):
    return KeySpec(0, "t", (10**12, WIDTH), dtype, BY_MODULUS, 2, growth)


def shard(dtype="float32", incarnation=0, growth=GROWTH):
    return TableShard(m.Create(spec(dtype, growth), "sync", 0, (0, 4), []), incarnation)


def push(table, ids, number, rule=RULE):
    """Let one client push rows, of which each has its id in each element, to both pieces."""
    values = np.repeat(np.array(ids)[:, None], WIDTH, axis=1) % 1000
    rows = Rows(np.array(ids, np.int64), values.astype(table.layout.dtype))
    pushed = PushedRows(table.layout, rows)
    pushed.versions = [0, 0]
    for piece in range(2):
        contribution = SimpleNamespace(payloads=[pushed.pack(piece)])
        hyper = ADAM.hyper if rule is None else rule.spec.hyper
        unit = SimpleNamespace(slices=[SimpleNamespace(lo=2 * piece)])
        table.update(Update(unit, [contribution], hyper, number, [0]), rule)


def read(table, ids):
    wanted = WantedRows(table.layout, np.array(ids, np.int64))
    found = {}
    for piece in wanted.pieces:
        _, rows = table.layout.rows_in(table.payload(2 * piece, wanted.pack(piece)), piece)
        found.update(zip(rows.ids.tolist(), rows.values.tolist()))
    return [found[i] for i in ids]


def trained(dtype="float32", steps=range(1, 20)):
    table = shard(dtype)
    go_on(table, steps)
    return table


def go_on(table, steps):
    for step in steps:
        push(table, sorted({step % 7, step % 5 + 10, 3 * step % 19 + 10**10}), step)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("cut", [1, 2, 11, 19])
def test_what_was_read_back_goes_on_alike(dtype, cut):
    """Rows, states, ages, and pushes that wait for admission are in a snapshot."""
    table, again = trained(dtype, range(1, cut)), shard(dtype, incarnation=1)
    again.restore([(place, array.copy()) for place, array in table.contents()])
    ids = [*range(20), *range(10**10, 10**10 + 20)]
    for step in range(cut, 40):
        for each in (table, again):
            go_on(each, [step])
        assert read(again, ids) == read(table, ids)
    for lo, piece in table._growing.items():
        assert len(piece.rows) == len(again._growing[lo].rows) <= 6


def test_another_optimizer_begins_with_empty_states():
    """Rows stay, and go on growing old by the updates of both."""
    table = trained()
    before = read(table, [1])
    table.forget_optimizer()
    assert read(table, [1]) == before
    push(table, [1], 1)
    fresh = shard(growth=Growth(GROWTH.init))
    push(fresh, [1], 1)
    moved = np.subtract(read(fresh, [1]), shard()._growing[2].rows.read(np.array([0])))
    np.testing.assert_allclose(np.subtract(read(table, [1]), before), moved, rtol=1e-4)


def test_exact_updates_begin_with_a_row():
    """From its first push on a row decays and moves as in dense training, also where others were."""
    hyper = HyperParameters(lr=0.5, wd=0.25)
    sgd = OptimizerSpec(name="sgd", hyper=hyper, params={"momentum": 0.5, "lazy_update": False})
    rule = Rule(sgd, build_for_rows(sgd), terms_of(sgd))
    table, twin = shard(growth=Growth(RowInit("constant", 1), Retention(max_rows=8))), {}
    pushes = [[2], [2, 4], [4, 6, 8], [], [10, 12], [2], [2, 14], [], [16], []]
    for step, ids in enumerate(pushes, 1):
        push(table, ids, step, rule)
        there = table._growing[0].rows.slots(np.arange(10)) >= 0
        twin = {i: twin.get(i, [1.0, 0.0]) for i in range(0, 20, 2) if there[i // 2]}
        for i, row in twin.items():
            row[1] = 0.5 * row[1] - 0.5 * ((i if i in ids else 0) + 0.25 * row[0])
            row[0] += row[1]
        if step % 3 == 0 or step == len(pushes):
            expected = [[twin.get(i, [1.0])[0]] * 2 for i in range(0, 20, 2)]
            np.testing.assert_allclose(read(table, list(range(0, 20, 2))), expected, rtol=1e-5)
    assert 2 in twin
    assert 4 not in twin
    again = shard(growth=Growth(RowInit("constant", 1), Retention(max_rows=8)))
    again.restore(list(table.contents()))
    for each in (table, again):
        push(each, [18], 11, rule)
    np.testing.assert_allclose(
        read(again, list(range(0, 20, 2))), read(table, list(range(0, 20, 2))), rtol=1e-6
    )


def test_a_row_that_is_pushed_as_it_goes_begins_anew():
    """It may have another's place by then, and has missed no steps, neither its own nor of that one."""
    sgd = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.1, wd=1.0), params={"lazy_update": False})
    rule = Rule(sgd, build_for_rows(sgd), terms_of(sgd))
    table = shard(growth=Growth(RowInit("constant", 1), Retention(max_age=10)))
    for step, ids in enumerate(
        [[8], [10], *[[12]] * 10, [10]], 1
    ):  # 8 is too old in step 12, 10 in step 13
        push(table, ids, step, rule)
    np.testing.assert_allclose(read(table, [10]), [[1 - 0.1 * (10 + 1)] * WIDTH], rtol=1e-6)


def test_states_for_a_file_are_none():
    """Another job has other rows; what there is says how many updates there were."""
    unit = SimpleNamespace(key=SimpleNamespace(key_id=0), slices=[SimpleNamespace(lo=0, hi=1)], updates=19)
    ((piece, payload),) = trained().read_states(unit)
    assert (piece.array, piece.count, payload.nbytes) == (NO_ARRAY, 19, 0)


def test_gradients_of_rows_that_are_not_admitted_are_dropped():
    """Each row has its own from its second push on."""
    sgd = OptimizerSpec(name="sgd", hyper=ADAM.hyper)
    table = shard(growth=Growth(RowInit(), Retention(admit_after=2)))
    for step, ids in enumerate(([6], [2, 4, 6, 8], [2, 8]), 1):
        push(table, ids, step, Rule(sgd, build(sgd), terms_of(sgd)))
    assert read(table, [2, 4, 6, 8]) == [[-1.0] * 2, [0.0] * 2, [-3.0] * 2, [-4.0] * 2]


def test_everything_is_what_is_there():
    """Who asks for no ids gets the rows that have been pushed, in order of their places."""
    table = shard(growth=Growth(GROWTH.init))
    for step, ids in enumerate(([8, 4], [2, 6, 3]), 1):
        push(table, sorted(ids), step)
    version, rows = table.layout.rows_in(table.payload(0, None), 0)
    assert (version, rows.ids.tolist()) == (2, [2, 4, 6, 8])


def test_rows_that_are_fetched_again_are_those_that_were_asked_for():
    """Which of them have changed nothing remembers, but others are not sent."""
    table, since = trained(), FetchedVersions()
    for _ in range(2):
        wanted = WantedRows(table.layout, np.array([2, 4]), since=since)
        version, rows = table.layout.rows_in(table.payload(0, wanted.pack(0)), 0)
        assert rows.ids.tolist() == [2, 4]
        since.of_pieces[0] = version


def test_memory_of_a_table_that_goes_is_free_at_once():
    """Gigabytes would else wait until cycles are collected, which many small objects bring about."""
    table = trained()
    rows = [weakref.ref(piece.rows) for piece in table._growing.values()]
    gc.disable()
    try:
        del table
        assert [each() for each in rows] == [None, None]
    finally:
        gc.enable()


def test_without_an_optimizer():
    """One clear error."""
    with pytest.raises(UsageError, match="call set_optimizer before the first push"):
        push(shard(), [1], 1, rule=None)


# --- files that are whole, and are not what a server can have written ---


def header_of(table):
    arrays = [
        ArrayRecord(index, lo, array.dtype.name, array.size) for (index, lo), array in table.contents()
    ]
    units = [UnitRecord(lo, [19], [19], 19) for lo in (0, 2)]
    key = KeyRecord(spec(table.layout.dtype.name), "sync", 0, (0, 4), units, arrays)
    return Header("job", Layout(0, 1, 1, 1, 5), {}, {0: ADAM.to_dict()}, [key])


def num_bytes(table):
    return sum(array.nbytes for _, array in table.contents())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_snapshot_of_ones_own_is_right(dtype):
    """Of rows and states, and of nothing at all."""
    for table in (trained(dtype), shard(dtype)):
        assert problem_of(header_of(table), num_bytes(table)) == ""


@pytest.mark.parametrize("homes", [0, 3])
def test_pieces_that_are_not_as_many_on_each_server(homes):
    """Some rows would have no piece."""
    header = header_of(shard())
    other = replace(header.keys[0].spec, homes=homes)
    header.keys[0] = msgspec.structs.replace(header.keys[0], spec=other)
    assert f"2 pieces cannot be dealt to {homes} servers alike" in problem_of(header, 0)


JUNK = st.sampled_from([-1, 0, 1, 2**40, "x", "object", "float64", "int64", None, [], [0]])


def places_in(container):
    """Yield where something stands in nested lists and dictionaries."""
    for key in container if isinstance(container, dict) else range(len(container)):
        yield container, key
        if isinstance(container[key], (dict, list)):
            yield from places_in(container[key])


@settings(deadline=None)
@given(data=st.data())
def test_whatever_a_header_says_there_is_no_other_error(data):
    """It is taken up, or the check says what is wrong."""
    table = trained()
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(header_of(table)))
    container, key = data.draw(st.sampled_from(list(places_in(plain["keys"][0]))))
    container[key] = data.draw(JUNK)
    try:
        header = msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=Header)
    except msgspec.ValidationError:
        return
    if problem_of(header, num_bytes(table)):
        return
    found = header.keys[0]
    again = TableShard(m.Create(found.spec, found.mode, found.key_id, found.shard, []), 0)
    arrays = [array for _, array in table.contents()]
    try:
        again.restore([((each.index, each.lo), array) for each, array in zip(found.arrays, arrays)])
    except ConfigurationError:
        return
    read(again, [1, 2])


@pytest.mark.parametrize(
    ("index", "change", "says"),
    [
        (PLACES, lambda array: array - 10**6, "not rows of it"),
        (PLACES, lambda array: array + 10**12, "not rows of it"),
        (PLACES, np.zeros_like, "not rows of it"),
        (LAST_USED, lambda array: array + 20, "from a later time"),
        (USES, np.zeros_like, "0 rows are there"),
        (UPDATES, np.zeros_like, "from a later time"),
        (VALUE, lambda array: array[WIDTH:], "the values of others"),
    ],
)
def test_arrays_that_cannot_be(index, change, says):
    """What the check cannot see in a header is refused when it is taken up."""
    arrays = [
        (place, change(array) if place[0] == index else array) for place, array in trained().contents()
    ]
    with pytest.raises(ConfigurationError, match=f"of key 't' piece 0: .*{says}"):
        shard().restore(arrays)


def test_too_many_rows_for_a_piece_name_their_table():
    """Among all keys of a job nobody would find it."""
    table = shard(growth=Growth(GROWTH.init, Retention(max_rows=4)))
    with pytest.raises(
        UsageError, match="key 't': a push has 3 rows of a piece of a table that may keep 2"
    ):
        push(table, [0, 2, 4], 1)
