"""The layout of a table: pieces, payloads, and payloads that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.records import FetchedVersions, KeySpec, Rows, Shard
from kvstore_mpi.values.coding import ROW_CODINGS
from kvstore_mpi.values.row_payloads import ALL, CHANGED, HEADER_BYTES, NEWER, SOME, WANTED, request_in
from kvstore_mpi.values.row_sparse import (
    BY_MODULUS,
    BY_RANGE,
    TABLE_LAYOUTS,
    PushedRows,
    RowSparse,
    WantedRows,
)


def layout(rows=23, width=3, partitions=4, by=BY_MODULUS, dtype="float32", *, homes=1):
    return RowSparse(KeySpec(0, "t", (rows, width), dtype, by, partitions, homes=homes))


def some_rows(table, ids):
    ids = np.array(ids, np.int64)
    values = np.arange(ids.size * table.width).reshape(ids.size, table.width).astype(table.dtype)
    return Rows(ids, values)


@given(
    rows=st.integers(1, 60),
    width=st.integers(0, 4),
    by=st.sampled_from(TABLE_LAYOUTS),
    dtype=st.sampled_from(["float16", "float32", "float64", "int8"]),
    data=st.data(),
)
def test_what_is_pushed_comes_back_by_its_ids(rows, width, by, dtype, data):
    """Every row in one piece, in the order of its ids, whatever the table is like and how they travel."""
    homes = data.draw(st.integers(1, rows))
    partitions = homes * data.draw(st.integers(1, rows // homes))
    table = layout(rows, width, partitions, by, dtype, homes=homes)
    ids = sorted(data.draw(st.sets(st.integers(0, rows - 1))))
    pushed = some_rows(table, ids)
    source = PushedRows(table, pushed)
    source.versions = range(10, 10 + table.partitions)
    source.coding = table.coding_for(data.draw(st.sampled_from([0, 8, *ROW_CODINGS])))
    found = {}
    for piece in range(table.partitions):
        payload = source.pack(piece)
        assert len(payload) == source.num_bytes(piece)
        table.check(payload, 2 * piece, 2 * piece + 1)
        version, part = table.rows_in(bytes(payload), piece)
        assert version == 10 + piece
        assert (table.pieces_of(part.ids) == piece).all()
        assert list(part.ids) == sorted(part.ids)
        found.update(zip(part.ids.tolist(), part.values.tolist()))
        assert part.values.dtype == dtype
        request = table.unpack(request_in(payload))
        assert (*request[:2], request.coding) == (CHANGED, 10 + piece, source.coding)
    assert found == dict(zip(ids, pushed.values.tolist()))


@given(
    rows=st.integers(1, 2**63 - 1),
    by=st.sampled_from(TABLE_LAYOUTS),
    homes=st.integers(1, 9),
    each=st.lists(st.integers(1, 9), min_size=2, max_size=2),
    data=st.data(),
)
def test_rows_stay_with_their_servers_when_they_are_dealt_anew(rows, by, homes, each, data):
    """Each has as many neighbouring pieces; and the first rows, which are the frequent ones, are on all."""
    ids = np.array(sorted(data.draw(st.sets(st.integers(0, rows - 1), max_size=20))), np.int64)
    servers = []
    for number in each:
        table = layout(rows, 1, homes * number, by, homes=homes)
        pieces = table.pieces_of(ids)
        servers.append((pieces // number).tolist())
        dealt = [(table.ids_of(piece, places), piece) for piece, _, places in table.deal(ids)]
        assert sorted(i for these, _ in dealt for i in these.tolist()) == ids.tolist()
        assert all((table.pieces_of(these) == piece).all() for these, piece in dealt)
        assert sum(map(table.rows_of, range(homes * number))) == rows
    assert servers[0] == servers[1]
    if by == BY_MODULUS:
        assert servers[0] == (ids % homes).tolist()


def test_rows_are_dealt_to_more_pieces_than_two_bytes_can_number():
    """Each row of these is the first, and only, row of a piece of its own."""
    pieces = (1 << 16) + 2
    ids = [0, 1, pieces - 2, pieces - 1]
    dealt = layout(pieces, partitions=pieces).deal(np.array(ids))
    found = [(piece, which.tolist()) for piece, which, _ in dealt if which.size]
    assert found == [(piece, [place]) for place, piece in enumerate(ids)]


def test_payloads_have_nothing_that_was_in_memory_before(monkeypatch):
    """Also where places of four bytes end within a word."""
    table = layout(width=1, partitions=1, dtype="float64")
    payloads = []
    for left in (0, 255):
        monkeypatch.setattr(np, "empty", lambda size, dtype, left=left: np.full(size, left, dtype))
        places = np.array([1, 4, 5])
        whole = table.pack(7, places, np.ones((3, 1)))
        payloads.append((bytes(whole), bytes(table.request(SOME, 7, places))))
    assert payloads[0] == payloads[1]


@given(rows=st.integers(1, 60), by=st.sampled_from(TABLE_LAYOUTS), data=st.data())
def test_pieces_make_up_the_table(rows, by, data):
    """Each row is in one of them, and what a server is given first are its rows."""
    table = layout(rows, 2, data.draw(st.integers(1, rows)), by)
    value = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    again = np.zeros_like(value)
    for piece in range(table.partitions):
        payload = table.value_of(piece, value)
        table.check_value(payload, 2 * piece)
        part = np.frombuffer(payload, np.float32).reshape(-1, 2)
        assert len(part) == table.rows_of(piece)
        again[table.ids_of(piece, np.arange(len(part)))] = part
    np.testing.assert_array_equal(again, value)


def test_pieces_are_nobodys_neighbours():
    """So that two of them never share an entry of a message."""
    cut = layout().cut(7, [Shard(1, 0, 4), Shard(0, 4, 8)], 1)
    assert [(server, slice_.lo, slice_.hi) for server, slice_ in cut] == [
        (1, 0, 1),
        (1, 2, 3),
        (0, 4, 5),
        (0, 6, 7),
    ]


def test_pieces_without_wanted_rows_are_not_asked():
    """Unless it is to learn whether they are there."""
    table = layout()
    assert list(WantedRows(table, np.array([1, 5])).pieces) == [1]
    assert list(WantedRows(table, np.array([1, 5]), everywhere=True).pieces) == [0, 1, 2, 3]
    assert list(WantedRows(table, None).pieces) == [0, 1, 2, 3]
    request = WantedRows(table, np.array([1, 5])).pack(1)
    packed = table.unpack(request)
    assert (packed.form, packed.places.tolist()) == (WANTED, [0, 1])


def test_rows_that_were_fetched_are_asked_for_by_the_versions_that_came():
    """Of pieces of which none has come, and of a table that was cut anew, all are."""
    since, ids = FetchedVersions(), np.array([1, 2])

    def forms(table):
        wanted = WantedRows(table, ids, since=since)
        return [table.unpack(wanted.pack(piece)) for piece in (1, 2)]

    table = layout()
    assert [packed.form for packed in forms(table)] == [WANTED, WANTED]
    since.of_pieces[1] = 7
    newer, wanted = forms(table)
    assert (newer.form, newer.version, newer.places.tolist()) == (NEWER, 7, [0])
    assert wanted.form == WANTED
    assert [packed.form for packed in forms(layout())] == [WANTED, WANTED]


def test_all_rows_need_no_places():
    """They come in order."""
    table = layout(partitions=1, by=BY_RANGE)
    payload = table.pack(5, None, np.ones((23, 3), np.float32))
    assert len(payload) == HEADER_BYTES + 23 * 12
    assert table.unpack(payload).form == ALL
    version, rows = table.rows_in(payload, 0)
    assert (version, rows.ids.tolist()) == (5, list(range(23)))


@pytest.mark.parametrize("coding", ROW_CODINGS)
@pytest.mark.parametrize(
    ("dtype", "fits"), [("float64", True), ("float32", True), ("float16", False), ("int32", False)]
)
def test_rows_travel_in_half_precision_where_that_is_shorter(coding, dtype, fits):
    """Integers are never rounded, and a peer that sends them so is none of ours."""
    table = layout(partitions=1, dtype=dtype)
    assert table.coding_for(coding) == fits * coding
    request = WantedRows(table, np.array([2]))
    request.coding = coding
    if not fits:
        with pytest.raises(MismatchError, match="key 't'"):
            table.check(request.pack(0), 0, 1)
        return
    assert table.unpack(request.pack(0)).coding == coding
    value = np.arange(69, dtype=dtype).reshape(23, 3) + 1000.3
    for places, which in [(None, slice(None)), (np.array([3, 7]), np.array([3, 7]))]:
        payload = table.pack(5, places, value, which, coding)
        assert len(payload) == table.size_of(0 if places is None else 2, len(value[which]), coding)
        exact = table.pack(5, places, value, which)
        assert len(exact) - len(payload) == value[which].size * (value.itemsize - 2)
        rounded = np.empty_like(value[which], ROW_CODINGS[coding].wire_type)
        ROW_CODINGS[coding].narrow(value[which], rounded)
        _, rows = table.rows_in(payload, 0)
        np.testing.assert_array_equal(rows.values, ROW_CODINGS[coding].widen(rounded))
        np.testing.assert_allclose(rows.values, value[which], rtol=1 / 256)


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: payload[:-1],
        lambda payload: payload + b"\0",
        lambda payload: payload[:10],
        lambda payload: b"",
        lambda payload: b"\7" + payload[1:],
        lambda payload: payload[:1] + b"\3" + payload[2:],
        lambda payload: payload[:2] + b"\10" + payload[3:],  # a coding, but of slices
        lambda payload: payload[:2] + b"\20" + payload[3:],  # of rows of another size
        lambda payload: payload[:16] + b"\xff" * 8 + payload[24:],
        lambda payload: payload[:28] + b"\6\0\0\0" + payload[32:],  # the piece has six rows
        lambda payload: payload[:24] + payload[28:32] + payload[24:28] + payload[32:],
        lambda payload: payload[:24] + payload[28:32] + payload[28:],
    ],
)
def test_a_payload_that_cannot_be_is_refused(change):
    """Too short or long, of no form, with places that are none, in another order, or twice."""
    table = layout()
    good = bytes(table.pack(0, table.places(np.array([2, 4])), np.ones((2, 3), np.float32)))
    table.check(good, 0, 1)
    with pytest.raises(MismatchError, match="key 't'"):
        table.check(change(good), 0, 1)
    with pytest.raises(MismatchError, match="has 72 bytes, but 71 came"):
        table.check_value(bytes(71), 0)
