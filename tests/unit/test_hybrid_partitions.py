"""Into how many pieces tables are cut: the fit, the search, and what users may ask for."""

from __future__ import annotations

import math
import random
import re

import numpy as np
import pytest

from kvstore_mpi.hybrid.fit import Curve, Sample, fit, is_slower, sample_of
from kvstore_mpi.hybrid.partitions import (
    SAMPLE_STEPS,
    WARM_UP_STEPS,
    PartitionSearch,
    SteadySearch,
    StepTimes,
    first_partitions,
    most_partitions,
    partitions_problem,
    planned_partitions,
)

LARGEST = 1024


def exact(curve, pieces):
    """Return samples that lie on a curve."""
    return [Sample(each, curve.seconds(each), 0.001) for each in pieces]


def random_curve(rng):
    """Return a curve with its least time anywhere from 1 to 512 pieces, flat or deep."""
    constant, best, depth = rng.uniform(0.05, 0.5), 2 ** rng.uniform(0, 9), rng.uniform(0.05, 3)
    linear = depth * constant / 2 / best
    return Curve(constant, linear * best * best, linear)


def run(search, seconds):
    """Feed a search from a function of the number of pieces; return the numbers that it tries."""
    tried = []
    while search.found is None:
        tried.append(search.pieces)
        search.feed(seconds(search.pieces))
    return tried


def noisy(curve, rng, noise=0.02):
    """Return a function that makes the times of a sample's steps."""
    return lambda pieces: [curve.seconds(pieces) * (1 + rng.gauss(0, noise)) for _ in range(SAMPLE_STEPS)]


# --- the fit ---


@pytest.mark.parametrize(
    "curve", [Curve(0.1, 0.8, 0.002), Curve(0.1, 0.8, 0.0), Curve(0.0, 0.0, 0.5), Curve(0.3, 0.0, 0.0)]
)
def test_a_curve_is_found_from_points_on_it(curve):
    """Also where some terms are missing: they are 0 and not a small something."""
    assert fit(exact(curve, [2, 4, 8, 16, 32])) == pytest.approx(curve, abs=1e-9)


def test_no_term_is_negative():
    """Times that fall faster than 1 / P would otherwise give a curve that falls below 0."""
    curve = fit([Sample(1, 1.0, 0.01), Sample(2, 0.1, 0.01), Sample(4, 0.1, 0.01), Sample(8, 0.1, 0.01)])
    assert min(curve) == 0.0


@pytest.mark.parametrize("numbers", [[4], [4, 8]])
def test_few_samples_are_met_exactly(numbers):
    """One or two samples do not determine three terms; the curve goes through them all the same."""
    curve = fit(exact(Curve(0.1, 0.8, 0.002), numbers))
    for each in numbers:
        assert curve.seconds(each) == pytest.approx(Curve(0.1, 0.8, 0.002).seconds(each))


def test_a_sample_with_a_large_error_counts_little():
    """The curve goes by the others."""
    points = exact(Curve(0.1, 0.8, 0.002), [2, 4, 8, 16])
    wrong = Sample(32, 5.0, 10.0)
    assert fit([*points, wrong]).seconds(32) == pytest.approx(Curve(0.1, 0.8, 0.002).seconds(32), rel=0.01)


def test_a_step_that_was_disturbed_changes_neither_time_nor_error():
    """Medians do not see that something else ran."""
    calm = sample_of(8, [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99])
    disturbed = sample_of(8, [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 9.0, 0.99])
    assert disturbed.seconds == calm.seconds
    assert disturbed.error <= 2 * calm.error


def test_times_that_a_clock_cannot_tell_apart_are_times():
    """A clock may show 0 for a step."""
    search = PartitionSearch(2, 4)
    assert run(search, lambda _: [0.0] * 5) == [2, 4, 1]
    assert search.found.pieces == 1


def test_the_error_is_that_of_the_median():
    """Its spread over many samples of normal times is what one sample says of itself."""
    rng = random.Random(1)
    samples = [sample_of(1, [rng.gauss(1.0, 0.05) for _ in range(50)]) for _ in range(400)]
    mean = sum(each.seconds for each in samples) / 400
    spread = (sum((each.seconds - mean) ** 2 for each in samples) / 399) ** 0.5
    assert sum(each.error for each in samples) / 400 == pytest.approx(spread, rel=0.15)


def test_slower_is_what_two_errors_of_both_do_not_explain():
    """Errors add as squares."""
    best = Sample(8, 1.0, 0.03)
    assert not is_slower(Sample(16, 1.099, 0.04), best)
    assert is_slower(Sample(16, 1.101, 0.04), best)
    assert not is_slower(Sample(16, 0.5, 0.0), best)


# --- the search ---


def test_the_search_doubles_until_a_step_is_slower():
    """And then tries no fewer pieces than it began with, if these were slower than others already."""
    search = PartitionSearch(start=4, largest=LARGEST)
    curve = Curve(0.1, 1.6, 0.001)
    assert run(search, lambda pieces: [curve.seconds(pieces)] * 5) == [4, 8, 16, 32, 64]
    assert search.found.pieces == search.pieces == 40


def test_the_search_halves_where_more_pieces_are_slower_from_the_beginning():
    """Until a step is slower there, too, or there is one piece."""
    assert run(PartitionSearch(16, LARGEST), lambda pieces: [1.0 + pieces] * 5) == [16, 32, 8, 4, 2, 1]
    curve = Curve(0.0, 16, 1.0)
    search = PartitionSearch(16, LARGEST)
    assert run(search, lambda pieces: [curve.seconds(pieces)] * 5) == [16, 32, 8, 4, 2]
    assert search.found.pieces == 4


def test_no_more_pieces_are_tried_than_allowed():
    """Where a step is faster the more pieces there are, the largest number is taken."""
    search = PartitionSearch(4, 100)
    assert run(search, lambda pieces: [1.0 + 10 / pieces] * 5) == [4, 8, 16, 32, 64]
    assert search.found.pieces == 64
    assert PartitionSearch(8, 3).pieces == 3


def test_where_the_number_makes_no_difference_few_pieces_are_taken():
    """Equal times end no search, and of equal ones the least counts."""
    search = PartitionSearch(4, 64)
    assert run(search, lambda _: [1.0] * 5) == [4, 8, 16, 32, 64, 2, 1]
    assert search.found.pieces == 1


def test_pieces_are_dealt_evenly_to_the_servers():
    """Between multiples of the servers' number one of these would have more than the others."""
    search = PartitionSearch(start=3, largest=LARGEST, multiple=3)
    curve = Curve(0.1, 1.6, 0.001)
    run(search, lambda pieces: [curve.seconds(pieces)] * 5)
    assert search.found.pieces == 39
    search = PartitionSearch(start=3, largest=LARGEST, multiple=3)
    run(search, lambda pieces: [1.0 + 3.9 / pieces + pieces] * 5)
    assert search.found.pieces == 2


def test_what_was_measured_counts_where_steps_do_not_follow_the_curve():
    """One number of pieces is far better than the curve: it is taken, and its time reported."""
    times = {4: 1.0, 8: 0.98, 16: 0.5, 32: 0.96}
    search = PartitionSearch(4, LARGEST)
    run(search, lambda pieces: [times[pieces]] * 5)
    assert (search.found.pieces, search.found.seconds) == (16, 0.5)


def test_the_search_comes_within_5_percent_of_the_best_of_a_sweep():
    """In at least 95 of 100 searches on curves with 2 percent of noise on each step."""
    good = 0
    for seed in range(100):
        rng = random.Random(seed)
        curve, search = random_curve(rng), PartitionSearch(8, LARGEST)
        run(search, noisy(curve, rng))
        best = min(curve.seconds(pieces) for pieces in range(1, LARGEST + 1))
        good += curve.seconds(search.found.pieces) <= 1.05 * best
    assert good >= 95


def test_the_search_does_so_with_as_much_noise_on_each_sample():
    """Samples of one time each, which is all that a loaded machine may be good for."""
    good = 0
    for seed in range(100):
        rng = random.Random(seed)
        curve, search = random_curve(rng), PartitionSearch(8, LARGEST)
        while search.found is None:
            exactly = curve.seconds(search.pieces)
            search.feed_sample(Sample(search.pieces, exactly * (1 + rng.gauss(0, 0.02)), 0.02 * exactly))
        best = min(curve.seconds(pieces) for pieces in range(1, LARGEST + 1))
        good += curve.seconds(search.found.pieces) <= 1.05 * best
    assert good >= 95


def test_searches_that_are_fed_alike_agree():
    """Ranks need not tell each other what they came to."""
    curve = random_curve(random.Random(5))
    searches = [PartitionSearch(8, LARGEST) for _ in range(2)]
    for search in searches:
        run(search, noisy(curve, random.Random(7)))
    assert searches[0].found == searches[1].found


def test_steps_after_a_change_do_not_count():
    """While rows move and buffers are made, steps say nothing of the new number of pieces."""
    times = StepTimes()
    assert not any(times.add(100.0) for _ in range(WARM_UP_STEPS))
    assert [times.add(1.0) for _ in range(SAMPLE_STEPS)] == [False] * (SAMPLE_STEPS - 1) + [True]
    assert times.take() == [1.0] * SAMPLE_STEPS
    times.add(7.0)
    assert times.take() == []


# --- what users ask for ---


@pytest.mark.parametrize("partitions", [0, 1, 5, 10])
def test_partitions_of_a_table_with_ten_rows(partitions):
    """From one on, or to be chosen."""
    assert partitions_problem(partitions, 10) == ""


@pytest.mark.parametrize(
    ("partitions", "text"),
    [
        (11, "10 rows .* 11 "),
        (-1, "not -1"),
        (2.0, "not 2.0"),
        (True, "not True"),
        (10**7, "ask for 16384 at most"),
    ],
)
def test_partitions_that_cannot_be(partitions, text):
    """What is said of them tells what may be asked for."""
    assert re.search(text, partitions_problem(partitions, 10))


@pytest.mark.parametrize(
    ("rows", "row_bytes", "pieces"),
    [
        (1 << 16, 16, 4),  # four times 256 KB
        (1 << 14, 16, 4),
        ((1 << 14) - 1, 16, 1),
        (3, 1 << 20, 1),  # fewer rows than servers
        (1 << 20, 64, 4),  # four times 16 MB
        ((1 << 20) + 1, 64, 8),
        (5, 32 << 20, 5),
    ],
)
def test_a_table_is_cut_at_once_if_its_pieces_are_neither_small_nor_large(rows, row_bytes, pieces):
    """Four servers have as many pieces each, or one has the table."""
    assert first_partitions(rows, row_bytes, 4) == pieces
    assert partitions_problem(pieces, rows) == ""


@pytest.mark.parametrize(
    ("planned", "rows", "row_bytes", "pieces"),
    [
        (0, 1 << 16, 16, 4),  # nothing is planned
        (1, 1 << 16, 16, 1),
        (8, 1 << 16, 16, 8),
        (16, 1 << 16, 16, 16),  # 64 KB each
        (32, 1 << 16, 16, 4),
        (8, 5, 32 << 20, 5),  # fewer rows
        (1, (1 << 20) + 1, 16, 4),  # more than 16 MB
    ],
)
def test_a_planned_number_counts_for_tables_that_it_fits(planned, rows, row_bytes, pieces):
    """Others are cut for four servers as if nobody had said anything."""
    assert planned_partitions(planned, rows, row_bytes, 4) == pieces


def test_a_search_ends_at_some_pieces_for_each_server():
    """Or at one row in each."""
    assert most_partitions(10**6, 4) == 256
    assert most_partitions(100, 4) == 100


# --- on a machine that does other things as well ---

MEASURED = Curve(4.4, 3.4, 0.145)
"""About what steps of a job on two cores took, in ms: 8.0 with one piece, 6.4 with 2 and 4, 23 with 128."""


def disturbed(rng, deviation):
    """Return the same with times that are longer while something else runs, which changes slowly."""
    loads = [rng.normal(0, deviation)]

    def seconds(pieces):
        loads.append(0.5 * loads[-1] + math.sqrt(0.75) * rng.normal(0, deviation))
        load = np.abs(np.linspace(*loads[-2:], SAMPLE_STEPS))
        return (MEASURED.seconds(pieces) * np.exp(load + rng.normal(0, 0.08, SAMPLE_STEPS))).tolist()

    return seconds


def near_the_best(search, deviation):
    """Return in how many of 100 jobs a kind of search ends within 5 % of the best."""
    best = min(MEASURED.seconds(pieces) for pieces in range(1, 129))
    count = 0
    for seed in range(100):
        one = search(2, 128, multiple=2)
        run(one, disturbed(np.random.default_rng(seed), deviation))
        count += MEASURED.seconds(one.found.pieces) <= 1.05 * best
    return count


def test_a_search_beside_the_first_number_ends_near_the_best_on_a_busy_machine():
    """More often than one that takes all times as they are, however busy it is."""
    for deviation in (0.2, 0.4):
        plain, steady = (near_the_best(kind, deviation) for kind in (PartitionSearch, SteadySearch))
        assert plain < 95 <= steady


def test_the_first_number_is_tried_after_each_other():
    """What has become slower for all numbers is none of one number's."""
    search, curve = SteadySearch(2, 16), Curve(1.0, 4.0, 0.5)
    slower = iter([1.0, 1.1, *[1.2] * 5])
    tried = run(search, lambda pieces: [curve.seconds(pieces) * next(slower)])
    assert tried == [2, 4, 2, 8, 2, 1, 2]
    assert [each.pieces for each in search.found.samples] == [2, 4, 8, 1]
    assert [each.seconds for each in search.found.samples] == pytest.approx([4.0, 4.0, 5.5, 5.5])
    # Nobody knows how much of the change came before the second one.
    assert [each.error > 0.05 for each in search.found.samples] == [False, True, False, False]
