"""Data dealt out to workers; what Gluon makes of it is in ``tests/contract/test_mxnet_sharding.py``."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi import shard
from kvstore_mpi.errors import UsageError

REPEATABLE = settings(deadline=None, derandomize=True)


class Dataset:
    """What a framework's data sets begin with."""

    def doubled(self):
        """Return what a framework would make of a data set."""
        return [2 * self[each] for each in range(len(self))]


class Squares(Dataset):
    """A data set of a user."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, position):
        if not 0 <= position < self.size:
            raise IndexError(position)
        return position**2


class Sampler:
    """What a framework's samplers begin with."""


class Downwards(Sampler):
    """A sampler that begins each epoch elsewhere."""

    def __init__(self, size):
        self.size = size
        self.epoch = 0

    def __len__(self):
        return self.size

    def __iter__(self):
        self.epoch += 1
        return (100 * self.epoch + each for each in reversed(range(self.size)))


def kinds(size):
    """Return the same numbers as each kind of data."""
    return {"list": list(range(size)), "array": np.arange(size), "iterable": Endless(size)}


class Endless:
    """An iterable that does not know its length."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


KINDS = ["list", "array", "iterable"]
REPEATABLE_SHARDS = given(
    size=st.integers(0, 23), num_shards=st.integers(1, 5), kind=st.sampled_from(KINDS)
)


@REPEATABLE
@REPEATABLE_SHARDS
def test_shards_are_disjoint_complete_and_equal_to_within_one(size, num_shards, kind):
    """Also if they are more than the elements."""
    shards = [list(shard(kinds(size)[kind], num_shards, index)) for index in range(num_shards)]
    assert sorted(each for part in shards for each in part) == list(range(size))
    assert [len(each) for each in shards] == sorted((len(each) for each in shards), reverse=True)
    assert len(shards[0]) - len(shards[-1]) <= 1


@REPEATABLE
@REPEATABLE_SHARDS
@pytest.mark.parametrize("remainder", ["drop", "repeat"])
def test_shards_of_equal_size(remainder, size, num_shards, kind):
    """Less than one element for each shard is left out, or comes twice."""
    data = kinds(size)[kind]
    if size < (num_shards if remainder == "drop" else 1):
        with pytest.raises(UsageError, match=f"{size} elements are too few for {num_shards} shards"):
            list(shard(data, num_shards, 0, remainder=remainder))
        return
    shards = [list(shard(data, num_shards, index, remainder=remainder)) for index in range(num_shards)]
    each = size // num_shards if remainder == "drop" else -(-size // num_shards)
    assert [len(part) for part in shards] == [each] * num_shards
    rounds = [part[position] for position in range(each) for part in shards]
    assert rounds == [position % size for position in range(each * num_shards)]


@pytest.mark.parametrize("remainder", ["keep", "drop", "repeat"])
@pytest.mark.parametrize("num_shards", [1, 2, 3, 4, 5])
def test_a_sampler_is_dealt_out_anew_in_each_epoch(num_shards, remainder):
    """Its length is known before, and it begins where the sampler does."""
    samplers = [Downwards(13) for _ in range(num_shards)]
    mine = [shard(each, num_shards, index, remainder=remainder) for index, each in enumerate(samplers)]
    for epoch in (1, 2):
        parts = [list(each) for each in mine]
        assert [len(part) for part in parts] == [len(each) for each in mine]
        seen = {each for part in parts for each in part}
        size = 13 - 13 % num_shards if remainder == "drop" else 13
        assert seen == {100 * epoch + each for each in list(reversed(range(13)))[:size]}


def test_a_shard_is_what_the_data_is():
    """Of a data set it is one, with what the framework's class has, and a sampler of a sampler."""
    part = shard(Squares(10), 3, 1)
    assert isinstance(part, Dataset)
    assert not isinstance(part, Squares)
    assert part.doubled() == [2, 32, 98]
    assert isinstance(shard(Downwards(4), 2, 0), Sampler)
    assert isinstance(shard(np.arange(4), 2, 0), np.ndarray)


def test_elements_of_a_shard_by_position():
    """As of any sequence: NumPy's integers, from the end, a range of them; and no others."""
    part = shard(Squares(10), 3, 1)
    assert [part[0], part[np.int64(1)], part[-1], part[-3]] == [1, 16, 49, 1]
    assert list(part[1:]) == [16, 49]
    for position in (3, -4):
        with pytest.raises(IndexError):
            part[position]
    assert shard(Squares(4), 3, 2, remainder="repeat")[1] == 1


def test_a_shard_of_a_shard():
    """First for the machine, then for its ranks."""
    parts = [list(shard(shard(list(range(20)), 2, a), 3, b)) for a in range(2) for b in range(3)]
    assert sorted(each for part in parts for each in part) == list(range(20))


def test_a_shard_is_read_when_it_is_used():
    """A data set that reads files is not read for being dealt out."""

    class Files(Dataset):
        def __len__(self):
            return 10**9

        def __getitem__(self, position):
            return f"file {position}"

    part = shard(Files(), 4, 3)
    assert len(part) == 250_000_000
    assert part[1] == "file 7"


def test_sparse_arrays():
    """SciPy's have rows that can be chosen, and no length; of MXNet's the numbers of rows are dealt out."""
    scipy_sparse = pytest.importorskip("scipy.sparse", reason="the extra dev installs it")
    dense = np.arange(14).reshape(7, 2)
    for remainder in ("keep", "drop", "repeat"):
        part = shard(scipy_sparse.csr_matrix(dense), 3, 1, remainder=remainder)
        np.testing.assert_array_equal(part.toarray(), shard(dense, 3, 1, remainder=remainder))
    sparse = SimpleNamespace(stype="csr", shape=(7, 2), __len__=lambda: 7)
    with pytest.raises(UsageError, match=r"shard range\(len\(data\)\), the numbers of its rows"):
        shard(sparse, 3, 1)


def test_an_array_is_not_copied():
    """Unless some of it comes twice."""
    array = np.arange(12)
    assert shard(array, 3, 1).base is array
    assert shard(array, 5, 4, remainder="repeat").tolist() == [4, 9, 2]


@pytest.mark.parametrize("data", [Squares(10), Downwards(10)])
def test_processes_of_a_loader_can_be_given_a_shard(data):
    """Where they are not forked they are sent it."""
    part = shard(data, 3, 1, remainder="drop")
    copy = pickle.loads(pickle.dumps(part))
    assert type(copy).__mro__[-2] is type(part).__mro__[-2]
    assert list(copy) == list(part)


class Iterator:
    """Like MXNet's iterators over batches."""

    provide_data = ()

    def __iter__(self):
        return self


@pytest.mark.parametrize(
    ("data", "asked", "text"),
    [
        ([1], {"num_shards": 0, "index": 0}, "shard 0 of 0"),
        ([1], {"num_shards": 2, "index": 2}, "shard 2 of 2"),
        ([1], {"num_shards": 2, "index": -1}, "shard -1 of 2"),
        ([1], {"num_shards": 2, "index": 0, "remainder": "pad"}, "keep, drop, repeat, not 'pad'"),
        ([1], {"num_shards": 2, "index": 0, "remainder": "drop"}, "too few .* remainder='repeat' gives"),
        ({1: 2}, {"num_shards": 2, "index": 0}, "a dict has no shards"),
        (7, {"num_shards": 2, "index": 0}, "a int has no shards"),
        (Iterator(), {"num_shards": 2, "index": 0}, "num_parts and part_index"),
        (np.array(3), {"num_shards": 2, "index": 0}, "a ndarray has no shards"),
        ([1, 2], {"num_shards": "2", "index": 0}, "shard 0 of '2': shards are numbered"),
        ([1, 2], {"num_shards": 2.0, "index": 0}, r"shard 0 of 2\.0"),
        ([1, 2], {"num_shards": 2, "index": None}, "shard None of 2"),
    ],
)
def test_what_cannot_be_dealt_out(data, asked, text):
    """One clear error."""
    with pytest.raises(UsageError, match=text):
        shard(data, **asked)


class _Loader:
    """Has what its constructor makes, and needs it at its end."""

    def __init__(self):
        self.made = [1, 2, 3]

    def __iter__(self):
        return iter(self.made)

    def __del__(self):
        self.made.clear()


def test_a_loader_s_shard_is_no_loader():
    """Its end would look for what the loader's constructor makes."""
    mine = shard(_Loader(), 2, 0)
    assert list(mine) == [1, 3]
    assert not isinstance(mine, _Loader)
