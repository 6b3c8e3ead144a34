"""Gluon's data sets and samplers, dealt out to workers."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi import shard  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.mxnet

data = mx.gluon.data


def labels(loader):
    """Return the labels of each batch."""
    return [batch[1].asnumpy().astype(int).tolist() for batch in loader]


def dataset(size):
    """Return a data set of pairs; the labels are the positions."""
    return data.ArrayDataset(mx.nd.arange(2 * size).reshape((size, 2)), mx.nd.arange(size))


def test_a_shard_of_a_data_set_is_a_data_set():
    """It has what Gluon's data sets have, for its own elements."""
    part = shard(dataset(10), 3, 1)
    assert isinstance(part, data.Dataset)
    assert not isinstance(part, data.ArrayDataset)
    doubled = part.transform_first(lambda image: 2 * image)
    assert [(image.asnumpy().tolist(), int(label)) for image, label in doubled] == [
        ([4, 6], 1),
        ([16, 18], 4),
        ([28, 30], 7),
    ]
    assert [int(label) for _, label in part.take(2)] == [1, 4]
    assert [int(label) for _, label in part.shard(3, 2)] == [7]


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_take_shards(workers):
    """Also those that load in processes of their own; the number of batches is the same for all."""
    parts = [shard(dataset(11), 2, index, remainder="drop") for index in range(2)]
    loaders = [data.DataLoader(part, batch_size=2, num_workers=workers) for part in parts]
    assert [labels(loader) for loader in loaders] == [[[0, 2], [4, 6], [8]], [[1, 3], [5, 7], [9]]]
    assert [len(loader) for loader in loaders] == [3, 3]


def test_a_loader_shuffles_within_its_shard():
    """So shards remain disjoint in every epoch."""
    loader = data.DataLoader(shard(dataset(11), 2, 1), batch_size=2, shuffle=True)
    for _ in range(2):
        assert sorted(label for batch in labels(loader) for label in batch) == [1, 3, 5, 7, 9]


def test_samplers_of_elements_and_of_batches():
    """Each is a sampler again, of elements or of whole batches."""
    part = shard(data.SequentialSampler(10), 4, 1)
    assert isinstance(part, data.Sampler)
    assert list(data.BatchSampler(part, 2)) == [[1, 5], [9]]
    assert list(dataset(10).sample(part)[2][0].asnumpy()) == [18, 19]
    batches = shard(data.BatchSampler(data.SequentialSampler(10), 2), 2, 1)
    assert len(batches) == 2
    assert labels(data.DataLoader(dataset(10), batch_sampler=batches)) == [[2, 3], [6, 7]]


def test_a_random_sampler_with_one_seed_everywhere_gives_disjoint_shards():
    """Its order is NumPy's, which every worker seeds alike."""
    seen = []
    for index in range(3):
        np.random.seed(5)  # noqa: NPY002 (the sampler draws from it)
        seen += list(shard(data.RandomSampler(10), 3, index))
    assert sorted(seen) == list(range(10))


def test_an_array_of_mxnet_stays_one():
    """For iterators that take whole arrays."""
    part = shard(mx.nd.arange(10), 3, 1)
    assert isinstance(part, mx.nd.NDArray)
    assert part.asnumpy().tolist() == [1, 4, 7]
    assert shard(mx.nd.arange(4), 3, 2, remainder="repeat").asnumpy().tolist() == [2, 1]


def test_iterators_over_batches_are_sharded_where_they_are_made():
    """The error says how."""
    iterator = mx.io.NDArrayIter(mx.nd.arange(10), batch_size=2)
    with pytest.raises(UsageError, match="num_parts and part_index"):
        shard(iterator, 2, 0)
