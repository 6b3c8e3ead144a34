"""A worker's cache of rows: what is asked for, what is used, and what it saves on Zipf ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Rows
from kvstore_mpi.values.row_cache import RowCache

FLOAT = np.dtype(np.float32)


def ids(*numbers):
    return np.array(sorted(numbers), np.int64)


def rows_at(clock, wanted):
    """Return rows as a server would send them: each says when it was asked for."""
    return Rows(wanted, np.stack([wanted, np.full(wanted.size, clock)], axis=1).astype(FLOAT))


def run(staleness, batches, ahead):
    """Use batches, asked for one step ahead or when used; return what was asked, and the cache."""
    cache, asked = RowCache(staleness, 2, FLOAT), []
    for clock, batch in enumerate(batches):
        wanted = cache.ask(batch, clock, clock)
        cache.fill(rows_at(clock, wanted))
        asked.append(wanted.size)
        values = cache.take(batch, clock)
        np.testing.assert_array_equal(values[:, 0], batch.astype(FLOAT))
        assert (values[:, 1] >= clock - staleness).all()
        if ahead and clock + 1 < len(batches) and cache.may_ask(clock, clock + 1):
            wanted = cache.ask(batches[clock + 1], clock, clock + 1)
            cache.fill(rows_at(clock, wanted))
            asked[-1] += wanted.size
    return asked, cache


@settings(deadline=None)
@given(
    staleness=st.integers(0, 4),
    batches=st.lists(st.sets(st.integers(0, 9), max_size=6), max_size=20),
    ahead=st.booleans(),
)
def test_no_row_is_older_than_allowed(staleness, batches, ahead):
    """Whatever is used was asked for within the bound, and nothing is asked for that is young enough."""
    asked, cache = run(staleness, [ids(*batch) for batch in batches], ahead)
    for clock, number in enumerate(asked):
        recent = set().union(*batches[max(0, clock - staleness) : clock])
        if not ahead:
            assert number >= len(batches[clock] - recent)
    last = set().union(*batches[max(0, len(batches) - 1 - staleness) :])
    assert len(cache) <= len(last)
    if staleness == 0:
        assert asked == [len(batch) for batch in batches]


def test_how_often_a_row_is_asked_for():
    """A row of every batch is asked for at every third clock, if it may be two steps old."""
    asked, _ = run(2, [ids(5)] * 7, ahead=False)
    assert asked == [1, 0, 0, 1, 0, 0, 1]


def test_what_is_on_its_way_is_not_asked_for_again():
    """Two intents for one batch are one request."""
    cache = RowCache(1, 2, FLOAT)
    assert cache.ask(ids(1, 2), 0, 1).tolist() == [1, 2]
    assert cache.ask(ids(2, 3), 0, 1).tolist() == [3]
    assert cache.ask(ids(1, 2, 3), 1, 1).tolist() == []


def test_too_early_to_ask():
    """Without staleness rows of the next batch cannot be asked for before this one's push."""
    assert not RowCache(0, 2, FLOAT).may_ask(3, 4)
    assert RowCache(0, 2, FLOAT).may_ask(4, 4)
    assert RowCache(1, 2, FLOAT).may_ask(3, 4)


def test_a_row_that_comes_too_late_is_left():
    """It may have been asked for by an intent for a batch that never came."""
    cache = RowCache(0, 2, FLOAT)
    late = cache.ask(ids(1), 0, 0)
    cache.take(ids(), 5)
    cache.fill(rows_at(0, late))
    assert len(cache) == 0


def test_negative_staleness():
    """One clear error."""
    with pytest.raises(UsageError, match="-1 steps old"):
        RowCache(-1, 2, FLOAT)


@pytest.mark.parametrize(("num_rows", "tokens", "least"), [(30_000, 4_096, 0.5), (100_000, 16_384, 0.5)])
def test_bytes_that_are_saved_on_zipf_ids(num_rows, tokens, least):
    """With a staleness of 8 at most half of the rows are asked for, as many as the formula says."""
    rng = np.random.default_rng(3)
    weights = 1 / np.arange(1, num_rows + 1)
    weights /= weights.sum()
    batches = [np.unique(rng.choice(num_rows, tokens, p=weights)) for _ in range(60)]
    asked, _ = run(8, batches, ahead=False)
    used = [batch.size for batch in batches]
    saved = 1 - sum(asked[20:]) / sum(used[20:])
    present = 1 - (1 - weights) ** tokens
    expected = 1 - (present / (1 + 8 * present)).sum() / present.sum()
    assert saved >= least
    assert abs(saved - expected) < 0.02
    assert sum(run(0, batches[:5], ahead=False)[0]) == sum(used[:5])
