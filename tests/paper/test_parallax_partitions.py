"""The search for the number of pieces, on the figures that Parallax gives."""

from __future__ import annotations

import pytest

from kvstore_mpi.hybrid.fit import Sample, fit
from kvstore_mpi.hybrid.partitions import PartitionSearch

pytestmark = pytest.mark.paper("Parallax Table 2")

PIECES = [8, 16, 32, 64, 128, 256]
THOUSAND_WORDS_PER_S = {
    "LM": [50.5, 78.6, 96.5, 96.1, 98.9, 93.2],
    "NMT": [90.7, 97.0, 96.5, 101.6, 98.5, 100.0],
}


def samples(model, error):
    """Return the figures as samples with an error that is a share of each."""
    figures = zip(PIECES, THOUSAND_WORDS_PER_S[model])
    return {pieces: Sample(pieces, 1 / speed, error / speed) for pieces, speed in figures}


def searched(model, error):
    """Return what a search comes to, and the numbers of pieces that it tries."""
    figures = samples(model, error)
    search = PartitionSearch(start=8, largest=256)
    tried = []
    while search.found is None:
        tried.append(search.pieces)
        search.feed_sample(figures[search.pieces])
    return search.found.pieces, tried


@pytest.mark.parametrize(("model", "stops"), [("LM", 64), ("NMT", 32)])
def test_the_rule_of_the_paper_takes_half_a_percent_for_a_rise(model, stops):
    """With no allowance for noise the search ends early, and far from the best."""
    pieces, tried = searched(model, 1e-6)
    assert tried[-1] == stops
    assert pieces < stops


@pytest.mark.parametrize(("model", "seen"), [("LM", 256), ("NMT", 128)])
@pytest.mark.parametrize("error", [0.005, 0.01, 0.02])
def test_a_rise_that_may_be_noise_ends_no_search(model, seen, error):
    """Errors as small as the rise itself are enough for the search to go on."""
    pieces, tried = searched(model, error)
    assert max(tried) >= seen
    assert pieces >= 64


@pytest.mark.parametrize(("model", "best"), [("LM", 87), ("NMT", 133)])
def test_all_figures_together_have_the_best_where_the_paper_finds_it(model, best):
    """The curve through all six has its least time among the two or three fastest samples."""
    curve = fit([each._replace(error=1.0) for each in samples(model, 1.0).values()])
    assert min(range(8, 257), key=curve.seconds) == best


def test_the_search_finds_that_best_where_it_sees_all_figures():
    """The scatter of the figures about their own curve is 2 percent."""
    assert searched("LM", 0.02)[0] in range(80, 97)
    assert searched("NMT", 0.02)[0] in range(120, 141)
