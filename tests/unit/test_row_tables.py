"""Tables of which rows come into being when touched: initial values, memory, bad input."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from scipy import stats

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import FREQUENT, Retention, RowInit
from kvstore_mpi.values import row_index
from kvstore_mpi.values.row_index import RowIndex
from kvstore_mpi.values.row_init import check_init, initial_rows
from kvstore_mpi.values.row_table import RowTable, check_retention

FLOAT = np.dtype(np.float32)
KEPT = Retention()


def zeros(ids):
    return np.zeros((ids.size, 4), np.float32)


def table_with(retention, pushes):
    table = RowTable(4, FLOAT, zeros, retention)
    for step, ids in enumerate(pushes, 1):
        table.touch(np.array(ids, np.int64), step)
    return table


def ids_in(table):
    return sorted(table.content()[0].tolist())


# --- the index ---


def test_a_million_of_any_ids():
    """Memory is for the ids there are, and all are found, also behind removed ones."""
    rng = np.random.default_rng(1)
    ids = np.unique(rng.integers(0, 2**63 - 1, 200_000))
    index = RowIndex()
    slots = index.create(ids)
    np.testing.assert_array_equal(slots, np.arange(ids.size))
    assert index.num_bytes < 40 * ids.size
    index.remove(ids[::3])
    kept = np.ones(ids.size, np.bool_)
    kept[::3] = False
    np.testing.assert_array_equal(index.lookup(ids), np.where(kept, slots, -1))


def test_memory_does_not_grow_with_what_comes_and_goes():
    """Places of removed ids are used again: a table under a cap has churn for ever."""
    index = RowIndex()
    for start in range(0, 100_000, 500):
        index.create(np.arange(start, start + 500))
        if start:
            index.remove(np.arange(start - 500, start))
    assert index.num_slots <= 1_000
    assert index.num_bytes < 100_000


@pytest.mark.parametrize("gap", [1, 2, 7, 64, 2**20, 2**40])
def test_ids_with_regular_gaps_have_short_ways(gap, monkeypatch):
    """Ids of one piece differ by multiples; they must not meet in the table."""
    passes = []
    onward = RowIndex._next_places
    monkeypatch.setattr(RowIndex, "_next_places", lambda *args: passes.append(1) or onward(*args))
    index = RowIndex()
    ids = np.arange(20_000) * gap
    index.create(ids)
    passes.clear()
    index.lookup(ids)
    assert len(passes) <= 30 * math.ceil(ids.size / row_index._BLOCK)


def test_too_many_slots(monkeypatch):
    """A piece beyond the slots' type is an error that says what to do."""
    monkeypatch.setattr(row_index, "_MAX_SLOTS", 10)
    index = RowIndex()
    index.create(np.arange(10))
    with pytest.raises(UsageError, match="more than 10 rows; use more partitions"):
        index.create(np.arange(10, 11))


# --- initial values ---

RANDOM = [RowInit("uniform", -2, 3, 1), RowInit("normal", 1, 0.5, 2), RowInit("xavier", seed=3)]


@pytest.mark.parametrize("init", RANDOM, ids=lambda init: init.name)
@pytest.mark.parametrize("width", [1, 7, 64])
def test_rows_are_the_same_in_any_company(init, width):
    """Whatever other rows are asked for, in whatever order and number, row i has the same bits."""
    ids = np.random.default_rng(0).integers(0, 2**63 - 1, 5_000)
    together = initial_rows(init, ids, width, FLOAT)
    for pieces in (1, 3, 4):
        for piece in range(pieces):
            mine = ids % pieces == piece
            np.testing.assert_array_equal(initial_rows(init, ids[mine], width, FLOAT), together[mine])
    order = np.random.default_rng(1).permutation(ids.size)
    np.testing.assert_array_equal(initial_rows(init, ids[order], width, FLOAT), together[order])


def test_the_bits_never_change():
    """A job that is resumed with a later version makes the rows that it had: these numbers are for ever."""
    ids = np.array([0, 1, 2**40], np.int64)
    found = [initial_rows(init, ids, 2, FLOAT) for init in RANDOM]
    golden = [
        [[1077564730, 3208148876], [1076400190, 3198569096], [1064521816, 1073662510]],
        [[1063414295, 1066454367], [1052555278, 1065949100], [1066498752, 1065355509]],
        [[1051956064, 3210622402], [1044748072, 3197662856], [1062664086, 1041235520]],
    ]
    np.testing.assert_array_equal(np.array(found).view(np.uint32), golden)


@pytest.mark.parametrize(
    ("init", "distribution"),
    [
        (RowInit("uniform", -2, 3, 1), stats.uniform(-2, 5)),
        (RowInit("normal", 1, 0.5, 2), stats.norm(1, 0.5)),
        (RowInit("xavier", seed=3), stats.uniform(-math.sqrt(3 / 64), 2 * math.sqrt(3 / 64))),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.parametrize("gap", [1, 4, 2**33])
def test_distributions(init, distribution, gap):
    """The numbers pass for independent ones: over all, by column, beside the next row and another seed."""
    ids = np.arange(4_000) * gap
    rows = initial_rows(init, ids, 64, FLOAT)
    assert stats.kstest(rows.ravel(), distribution.cdf).pvalue > 1e-3
    # The least of 64 is above this in 999 of 1000 cases.
    assert min(stats.kstest(column, distribution.cdf).pvalue for column in rows.T) > 1e-3 / 64
    other = initial_rows(init._replace(seed=77), ids, 64, FLOAT)
    four_sigma = 4 / math.sqrt(rows.size - 64)
    for beside in (other, np.roll(rows, 1, axis=0), np.roll(rows, 1, axis=1)):
        assert abs(np.corrcoef(rows.ravel(), beside.ravel())[0, 1]) < four_sigma


def test_tails_of_normal_numbers():
    """Far out the straight pieces of the table are short enough: counts agree within five deviations."""
    numbers = np.abs(initial_rows(RowInit("normal", 0, 1, 4), np.arange(30_000), 64, FLOAT)).ravel()
    for bound in (1, 2, 3, 4):
        expected = 2 * stats.norm.sf(bound) * numbers.size
        assert abs((numbers > bound).sum() - expected) < 5 * math.sqrt(expected)


def test_values_without_chance():
    """Zeros and constants, in the type that is asked for."""
    ids = np.arange(3)
    np.testing.assert_array_equal(initial_rows(RowInit(), ids, 2, np.dtype("float16")), np.zeros((3, 2)))
    constant = initial_rows(RowInit("constant", 0.5), ids, 2, np.dtype("float64"))
    np.testing.assert_array_equal(constant, np.full((3, 2), 0.5))
    assert constant.dtype == np.float64


def test_plain_data_can_travel():
    """Both descriptions survive a message."""
    for record in (*RANDOM, Retention(5, 6, 2, FREQUENT)):
        data = msgspec.msgpack.encode(record)
        assert msgspec.msgpack.decode(data, type=type(record)) == record


@pytest.mark.parametrize(
    ("init", "says"),
    [
        (RowInit("gauss"), "cannot begin as 'gauss'; there are zeros, constant"),
        (RowInit("uniform", 1, 0), "give the smaller number first"),
        (RowInit("normal", 0, -1), "standard deviation of -1"),
        (RowInit("constant", math.nan), "finite numbers"),
        (RowInit("normal", 0, 1, 2**70), "a whole number of 64 bits"),
        (RowInit("normal", 0, 1, 1.5), "the seed 1.5"),
    ],
)
def test_wrong_initial_values(init, says):
    """One clear error each."""
    with pytest.raises(UsageError, match=says):
        check_init(init)
    for right in (*RANDOM, RowInit(), RowInit("constant", 1)):
        check_init(right)


# --- the table ---


def test_memory_is_for_rows_that_were_pushed():
    """Of a hundred million rows, those that were pushed need memory; those that were read need none."""
    rng = np.random.default_rng(2)
    table = RowTable(4, FLOAT, zeros, KEPT)
    table.set_states([4], FLOAT)
    for step in range(1, 11):
        table.touch(np.unique(rng.integers(0, 10**8, 10_000)), step)
    table.read(rng.integers(0, 10**8, 200_000))
    assert len(table) > 99_000
    # Doubled at most, and what is known about a row: its id, its place, its last use and their number.
    assert table.num_bytes < 2 * len(table) * (2 * 16 + 12) + 40 * len(table)


def test_rows_that_are_taken_up_do_not_begin_first():
    """Their values follow, and to make a million initial ones takes as long as many steps."""
    made = []
    table = RowTable(4, FLOAT, lambda ids: made.append(ids) or zeros(ids), Retention(admit_after=2))
    ids = np.arange(6)
    slots = table.insert(ids, np.ones(6, np.int64), np.array([1, 2, 3, 1, 2, 3], np.int32))
    assert (slots == row_index.ABSENT).tolist() == [True, False, False] * 2
    assert not made


def test_too_many_rows_for_a_push():
    """A push that could not be kept changes nothing."""
    table = table_with(Retention(max_rows=4), [[1, 2, 3]])
    with pytest.raises(UsageError, match="5 rows of a piece of a table that may keep 4"):
        table.touch(np.arange(5), 2)
    assert ids_in(table) == [1, 2, 3]


def test_ids_that_are_not_admitted_need_no_room():
    """Only rows do, and an id becomes one by the push that admits it."""
    table = table_with(Retention(max_rows=4, admit_after=2), [[1, 2], [1, 2]])
    assert (table.touch(np.arange(10), 3) >= 0).sum() == 2
    with pytest.raises(UsageError, match="10 rows of a piece of a table that may keep 4"):
        table.touch(np.arange(10), 4)
    assert len(table) == 2
    assert (table.touch(np.array([0, 2, 3, 4, 77]), 5) >= 0).sum() == 4


def test_what_a_full_table_keeps():
    """By default the rows of the last pushes, otherwise those of most pushes; lower ids go first."""
    pushes = [[1, 9], [1, 9], [4, 3, 2], [5, 6]]
    assert ids_in(table_with(Retention(max_rows=5), pushes)) == [2, 3, 4, 5, 6]
    assert ids_in(table_with(Retention(max_rows=5, keep=FREQUENT), pushes)) == [1, 4, 5, 6, 9]
    pushes = [[2, 3], [2, 3], [2, 3], [1], [1, 4]]
    assert ids_in(table_with(Retention(max_rows=3, keep=FREQUENT), pushes)) == [1, 3, 4]


def test_an_old_row_begins_anew():
    """A row that went has its initial value and an empty state when it comes back."""
    table = RowTable(4, FLOAT, zeros, Retention(max_age=2))
    table.set_states([4], FLOAT)
    (slot,) = table.touch(np.array([7]), 1)
    table.values[slot] = table.states[0][slot] = 1
    for step in (2, 3):
        table.touch(np.array([8]), step)
    assert ids_in(table) == [7, 8]
    table.touch(np.array([8]), 4)
    assert ids_in(table) == [8]
    assert table.changes(3).evicted.tolist() == [7]
    (slot,) = table.touch(np.array([7]), 5)
    assert not table.values[slot].any()
    assert not table.states[0][slot].any()
    assert table.changes(3).evicted.tolist() == []


def test_admission_needs_memory_for_no_more_ids_than_rows(monkeypatch):
    """Ids that come once are forgotten, the older half at a time; those of this push are counted."""
    monkeypatch.setattr("kvstore_mpi.values.row_candidates._FEWEST_CANDIDATES", 100)
    table = RowTable(4, FLOAT, zeros, Retention(admit_after=2))
    for step in range(1, 200):
        assert (table.touch(np.arange(20) + 20 * step, step) < 0).all()
    assert len(table) == 0
    assert table.num_bytes < 20_000
    assert (table.touch(np.arange(20) + 20 * 199, 200) >= 0).all()
    assert (table.touch(np.arange(300), 201) < 0).all()
    assert (table.touch(np.arange(300), 202) >= 0).all()


def test_what_went_long_ago_is_not_known():
    """The list of rows that went is no longer than the table; who needs more is told to take all."""
    table = table_with(Retention(max_rows=64), [np.arange(32) + 32 * step for step in range(20)])
    assert table.changes(3) is None
    assert table.changes(19).evicted.size == 32


@pytest.mark.parametrize("wrong", [{"max_rows": -1}, {"max_age": -1}, {"admit_after": 0}])
def test_wrong_retention(wrong):
    """One clear error each."""
    with pytest.raises(UsageError, match="must not be negative"):
        check_retention(Retention(**wrong))
    [name] = wrong
    for none in (1e6, 2.5, 2**63):
        with pytest.raises(UsageError, match="must be whole numbers"):
            check_retention(Retention(**{name: none}))
    with pytest.raises(UsageError, match="'recent' or 'frequent'"):
        check_retention(Retention(keep="all"))
    check_retention(Retention(1, 1, 1))
