"""Chains of snapshots that are not what a server has left: each is named, with what is wrong."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.crafted_files import change_at_random, craft, seal
from support.table_server import TableServer, again, begin, chain_of_three, push

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.records import Growth, Retention, RowInit
from kvstore_mpi.server import snapshot_file as file
from kvstore_mpi.server.snapshot_records import PLACES
from kvstore_mpi.server.snapshot_sets import path_of

GROWTH = Growth(RowInit(), Retention(max_rows=12, max_age=9, admit_after=2))


@pytest.fixture
def chained(tmp_path):
    """A server with a base and two links, and its content at each."""
    return chain_of_three(tmp_path)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_link_that_is_missing_is_named(chained, tmp_path):
    """And one is told how to go on without it."""
    path = tmp_path / "server0-of-1.snapshot.1"
    path.unlink()
    with pytest.raises(ConfigurationError, match=rf"{path} is missing, although {tmp_path}/.*shot\.2 is"):
        TableServer(tmp_path).restore()
    (tmp_path / "server0-of-1.snapshot.2").unlink()
    assert again(tmp_path).content() == chained[1][0]


def test_a_base_that_is_missing_is_named(chained, tmp_path):
    """Its links alone are nothing."""
    path_of(tmp_path, 0, 1).unlink()
    with pytest.raises(ConfigurationError, match=r"\.snapshot is missing, although .*\.1 is there"):
        TableServer(tmp_path).restore()


@pytest.mark.parametrize(
    ("length", "header", "words"),
    [
        (100_004, b"\x81\xa1x" + 100_000 * b"\x91" + b"\xc0", "recursion"),
        (1 << 60, b"\x80", "its header would have 1,152,921,504,606,846,976 bytes"),
        (2, b"\x80", "its header would have 2 bytes"),
    ],
)
def test_a_header_that_no_server_has_written_is_named(chained, tmp_path, length, header, words):
    """However deep it is nested, and however long it would be."""
    path = path_of(tmp_path, 0, 1)
    seal(path, length, header)
    with pytest.raises(ConfigurationError, match=words) as caught:
        TableServer(tmp_path).restore()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("keep", [0, 20, -1])
def test_a_link_that_is_cut_off_is_named(chained, tmp_path, keep):
    """Without it and what follows, the state before it is taken up."""
    path = tmp_path / "server0-of-1.snapshot.2"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ConfigurationError, match=str(path)):
        TableServer(tmp_path).restore()
    path.unlink()
    assert again(tmp_path).content() == chained[1][1]


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_link_that_is_no_file_is_refused_at_once(chained, tmp_path, put):
    """As a base that is none."""
    path = tmp_path / "server0-of-1.snapshot.3"
    put(path)
    with pytest.raises(ConfigurationError, match=str(path)):
        TableServer(tmp_path).restore()


def test_links_of_an_earlier_base_count_for_nothing(chained, tmp_path):
    """A server that was killed before it could remove them."""
    left = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".snapshot"}
    server = again(tmp_path)
    push(server, [3, 4, 5], 5)
    server.save()
    assert files(tmp_path) == ["server0-of-1.snapshot"]
    for path, data in left.items():
        path.write_bytes(data)
    assert again(tmp_path).content() == server.content()


def test_names_that_are_almost_those_of_links_are_left_alone(chained, tmp_path):
    """A user may keep copies beside them."""
    _, contents = chained
    for name in ("00", "0", "01", "\u0663", "old", "1.old"):
        (tmp_path / f"server0-of-1.snapshot.{name}").write_bytes(b"mine")
    assert again(tmp_path).content() == contents[-1]


def key_of(header):
    return header["keys"][0]


def array(index, **fields):
    return lambda header: key_of(header)["arrays"][index].update(fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header: header.update(link=3), "not the link that its name says"),
        (lambda header: header.update(job="b"), "not the link that its name says"),
        (lambda header: header.update(link=0), "what has changed is there, and not what has not"),
        (array(0, dtype="int32"), "rows of piece 0 are not described"),
        (array(0, size=-1), "rows of piece 0 are not described"),
        (array(0, size=2), "value of piece 0 is not 4 elements"),
        (array(1, size=3), "value of piece 0 is not 2 elements"),
        (array(1, dtype="float64"), "value of piece 0 is not 2 elements of float32"),
        (array(2, dtype="int32"), "a link has other arrays than the base"),
        (lambda header: key_of(header)["arrays"].pop(2), "bytes of arrays are there instead of"),
        (lambda header: key_of(header)["spec"].update(key="v"), "piece 0 is in no snapshot before"),
    ],
)
def test_a_crafted_link_is_refused(chained, tmp_path, change, words):
    """With a name, and what is wrong."""
    craft(tmp_path / "server0-of-1.snapshot.2", change)
    with pytest.raises(ConfigurationError, match=words) as caught:
        TableServer(tmp_path).restore()
    assert str(path_of(tmp_path, 0, 1)) in str(caught.value)


@pytest.mark.parametrize("place", [-1, 20, 2**62])
def test_rows_that_are_none_of_the_piece(chained, tmp_path, place):
    """What the check cannot see in a header is refused when links are put together."""
    _rewrite(tmp_path / "server0-of-1.snapshot.2", PLACES, lambda found: np.full_like(found, place))
    with pytest.raises(ConfigurationError, match="a link has rows that the base has not"):
        TableServer(tmp_path).restore()


def _rewrite(path, index, change):
    """Change the arrays of one kind in a file."""
    snapshot = file._open(path, "").load()
    records = [each for key in snapshot.header.keys for each in key.arrays]
    arrays = [
        change(each) if record.index == index else each for record, each in zip(records, snapshot.arrays)
    ]
    file._write(path, snapshot._replace(arrays=arrays))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize(
    "growth", [None, Growth(RowInit(), Retention(max_rows=12, max_age=9, admit_after=2))]
)
def test_whatever_a_link_says_there_is_no_other_error(tmp_path_factory, growth, data):
    """A server takes the chain up or says what is wrong."""
    folder = tmp_path_factory.mktemp("crafted")
    server = begin(folder, growth, "sgd", 40)
    for step, ids in enumerate((range(12), range(12), [3, 4, 20]), 1):
        push(server, ids, step)
        if step > 1:
            server.save()
    assert len(files(folder)) == 2

    craft(folder / "server0-of-1.snapshot.1", change_at_random(data))
    try:
        TableServer(folder).restore()
    except ConfigurationError as error:
        assert str(folder) in str(error)  # noqa: PT017  there need not be one


def test_snapshots_of_versions_without_chains_are_taken_up(chained, tmp_path):
    """They are bases without a name."""
    chained[0].save()
    path = path_of(tmp_path, 0, 1)
    for number in (1, 2, 3):
        (tmp_path / f"server0-of-1.snapshot.{number}").unlink()
    craft(path, lambda header: [header.pop("chain"), header.pop("link")])
    assert file.read(path).header.chain == ""
    assert again(tmp_path).content() == chained[1][0]
