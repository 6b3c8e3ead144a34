"""Tables that come into being when touched, against twins that are dictionaries and lists."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstore_mpi.records import FREQUENT, RECENT, Retention, RowInit
from kvstore_mpi.values.row_index import RowIndex
from kvstore_mpi.values.row_init import initial_rows
from kvstore_mpi.values.row_table import RowTable

WIDTH = 3
FLOAT = np.dtype(np.float32)
BEGIN = RowInit("uniform", -1, 1, 5)

few = st.integers(0, 12)
ids_of_a_push = st.lists(st.one_of(few, few, few, st.integers(0, 2**63 - 1)), max_size=9, unique=True)


def initial(ids):
    return initial_rows(BEGIN, ids, WIDTH, FLOAT)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["create", "remove", "many"]), ids_of_a_push), max_size=30))
def test_an_index_equals_a_dictionary(steps):
    """Slots are given in order, removed ones first, and every id is found, through every rehash."""
    index, twin, free, fresh = RowIndex(), {}, [], 0
    for action, drawn in steps:
        many = action == "many"
        ids = [(i * 977 + j) % 2**63 for i in drawn for j in range(40)] if many else drawn
        there = [i for i in dict.fromkeys(ids) if i in twin]
        new = [i for i in dict.fromkeys(ids) if i not in twin]
        if action == "remove":
            index.remove(np.array(there, np.int64))
            free = sorted(free + [twin.pop(i) for i in there])
        else:
            slots = index.create(np.array(new, np.int64)).tolist()
            expected = (free + list(range(fresh, fresh + len(new))))[: len(new)]
            assert slots == expected
            free, fresh = free[len(new) :], max(fresh, *(slot + 1 for slot in slots), 0)
            twin.update(zip(new, slots))
        asked = [*ids, *twin, 1, 2**62]
        np.testing.assert_array_equal(
            index.lookup(np.array(asked, np.int64)), [twin.get(i, -1) for i in asked]
        )
        assert len(index) == len(twin)
        assert index.used_slots().tolist() == sorted(twin.values())


class Twin:
    """What a table is to do, one row after the other."""

    def __init__(self, retention):
        self.retention = retention
        self.rows = {}  # id -> [last use, uses, value, state]
        self.candidates = {}  # id -> [last push, pushes]
        self.gone = []

    def touch(self, ids, step):
        cap, age, needed, keep = self.retention
        if age and step % max(1, age // 16) == 0:
            self.evict([i for i, row in self.rows.items() if row[0] < step - age], step)
            late = [i for i, c in self.candidates.items() if c[0] < step - age]
            self.gone += [(step, i) for i in late if self.candidates.pop(i)]
        new = [i for i in ids if i not in self.rows]
        for i in ids:
            if i in self.rows:
                self.rows[i][0] = step
                self.rows[i][1] += 1
        admitted = []
        for i in new:
            pushes = self.candidates.pop(i, [0, 0])[1] + 1
            if pushes >= needed:
                admitted.append(i)
            else:
                self.candidates[i] = [step, pushes]
        excess = len(self.rows) + len(admitted) - cap
        if cap and excess > 0:
            old = [i for i, row in self.rows.items() if row[0] < step]
            old.sort(key=lambda i: (self.rows[i][1] if keep == FREQUENT else 0, self.rows[i][0], i))
            self.evict(old[: max(excess, cap // 16)], step)
        for i in admitted:
            value = initial(np.array([i], np.int64))[0]
            self.rows[i] = [step, needed, value, np.zeros(1, FLOAT)]

    def evict(self, ids, step):
        for i in ids:
            del self.rows[i]
            self.gone.append((step, i))


retentions = st.builds(
    Retention, st.sampled_from([0, 9, 33]), st.sampled_from([0, 1, 5, 40]), st.sampled_from([1, 1, 2, 3]),
    st.sampled_from([RECENT, FREQUENT]),
)  # fmt: skip


def update(table, twin, ids, step):
    """Add the number of the update to each row, and to its state."""
    slots = table.touch(np.array(ids, np.int64), step)
    twin.touch(ids, step)
    there = slots[slots >= 0]
    table.values[there] += step
    table.states[0][there] += step
    for i in set(ids) & set(twin.rows):
        twin.rows[i][2] += np.float32(step)
        twin.rows[i][3] += np.float32(step)
    assert [slot >= 0 for slot in slots.tolist()] == [i in twin.rows for i in ids]


def check(table, twin, since):
    """Compare all that a table can be asked."""
    content = list(zip(*(each.tolist() for each in table.content())))
    found = {
        i: (last, count, table.values[slot].tolist(), table.states[0][slot].tolist())
        for i, last, count, slot in content
        if slot >= 0
    }
    waiting = {i: [last, count] for i, last, count, slot in content if slot < 0}
    assert waiting == twin.candidates
    assert found == {i: (row[0], row[1], row[2].tolist(), row[3].tolist()) for i, row in twin.rows.items()}
    asked = [*twin.rows, *range(13)]
    expected = [twin.rows[i][2] if i in twin.rows else initial(np.array([i]))[0] for i in asked]
    np.testing.assert_array_equal(table.read(np.array(asked, np.int64)), expected)
    changes = table.changes(since)
    if changes is not None:
        everybody = {**twin.candidates, **twin.rows}
        expected = {i: tuple(row[:2]) for i, row in everybody.items() if row[0] > since}
        described = zip(changes.last_used.tolist(), changes.uses.tolist())
        assert dict(zip(changes.ids.tolist(), described)) == expected
        np.testing.assert_array_equal(table.slots(changes.ids), changes.slots)
        gone = {i for step, i in twin.gone if step > since} - set(everybody)
        assert changes.evicted.tolist() == sorted(gone)


@settings(deadline=None)
@given(retention=retentions, pushes=st.lists(ids_of_a_push, max_size=60), since=st.integers(0, 50))
@example(retention=Retention(0, 1, 2, RECENT), pushes=[[5], [6], [6]], since=1)  # 5 has waited for too long
def test_a_table_equals_its_twin(retention, pushes, since):
    """Rows, states, uses and evictions are those of the twin, and the cap is held, after each push."""
    table, twin = RowTable(WIDTH, FLOAT, initial, retention), Twin(retention)
    table.set_states([1], FLOAT)
    for step, ids in enumerate(pushes, 1):
        update(table, twin, ids, step)
        assert not retention.max_rows or len(table.values) <= max(retention.max_rows, 0)
        check(table, twin, since)


@settings(deadline=None)
@given(retention=retentions, pushes=st.lists(ids_of_a_push, min_size=2, max_size=40), data=st.data())
def test_increments_make_a_copy(retention, pushes, data):
    """What changed since a mark, put on a copy of that time, is the table."""
    retention = retention._replace(admit_after=1)
    table, twin = RowTable(WIDTH, FLOAT, initial, retention), Twin(retention)
    table.set_states([1], FLOAT)
    copy, mark = {}, 0
    for step, ids in enumerate(pushes, 1):
        update(table, twin, ids, step)
        if not data.draw(st.booleans()):
            continue
        changes = table.changes(mark)
        if changes is None:
            all_ids, _, _, slots = table.content()
            copy = dict(zip(all_ids.tolist(), table.values[slots].tolist()))
        else:
            copy.update(zip(changes.ids.tolist(), table.values[changes.slots].tolist()))
            for i in changes.evicted.tolist():
                copy.pop(i, None)
        mark = step
        assert copy == {i: row[2].tolist() for i, row in twin.rows.items()}


@settings(deadline=None)
@given(
    retention=retentions, pushes=st.lists(ids_of_a_push, min_size=2, max_size=40), cut=st.integers(1, 39)
)
def test_a_table_that_was_read_back_goes_on_alike(retention, pushes, cut):
    """With its content in another table the same pushes leave the same rows."""
    table, twin = RowTable(WIDTH, FLOAT, initial, retention), Twin(retention)
    table.set_states([1], FLOAT)
    for step, ids in enumerate(pushes, 1):
        if step == cut:
            ids_there, last_used, uses, old = table.content()
            other = RowTable(WIDTH, FLOAT, initial, retention)
            other.set_states([1], FLOAT)
            new = other.insert(ids_there[::-1], last_used[::-1], uses[::-1])[::-1]
            new, old = new[new >= 0], old[old >= 0]
            other.values[new], other.states[0][new] = table.values[old], table.states[0][old]
            table, twin.gone = other, []
        update(table, twin, ids, step)
        check(table, twin, len(pushes))
