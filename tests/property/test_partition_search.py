"""The search for a number of pieces, whatever times it is fed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.hybrid.fit import Sample, fit
from kvstore_mpi.hybrid.partitions import PartitionSearch

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=100)
TIMES = st.floats(0, 1e4, allow_nan=False)


@REPEATABLE
@given(
    start=st.integers(1, 64),
    largest=st.integers(1, 4096),
    least=st.integers(1, 64),
    multiple=st.integers(1, 16),
    seconds=st.lists(st.lists(TIMES, min_size=1, max_size=4), min_size=20, max_size=20),
)
def test_every_search_ends_soon_within_what_it_has_tried(start, largest, least, multiple, seconds):
    """No number is tried twice, none but the first out of bounds, and the result is fair to all servers."""
    search = PartitionSearch(start, largest, least=least, multiple=multiple)
    tried = []
    while search.found is None:
        tried.append(search.pieces)
        search.feed(seconds[len(tried) - 1])
    assert len(tried) == len(set(tried)) <= largest.bit_length() + 1
    assert max(tried) <= largest
    assert min(tried) >= min(least, tried[0])
    found = search.found
    assert min(tried) <= found.pieces <= max(tried)
    assert found.pieces < multiple or found.pieces % multiple == 0 or found.pieces in tried
    assert search.pieces == found.pieces
    assert [each.pieces for each in found.samples] == tried
    # No worse than what was seen, as far as the samples can tell.
    best = min(found.samples, key=lambda each: each.seconds)
    assert found.seconds <= best.seconds + 2 * best.error


@REPEATABLE
@given(st.lists(st.tuples(st.integers(1, 4096), TIMES), min_size=1, max_size=12))
def test_a_fit_has_no_negative_term_and_fits_no_worse_than_a_constant(points):
    """Any samples have a curve."""
    samples = [Sample(pieces, seconds, 0.01 * seconds + 1e-9) for pieces, seconds in points]
    curve = fit(samples)
    assert min(curve) >= 0

    def misfit(time_of):
        return sum(((time_of(each.pieces) - each.seconds) / each.error) ** 2 for each in samples)

    weights = [each.error**-2 for each in samples]
    mean = sum(weight * each.seconds for weight, each in zip(weights, samples)) / sum(weights)
    assert misfit(curve.seconds) <= misfit(lambda _: mean) * (1 + 1e-6) + 1e-6
