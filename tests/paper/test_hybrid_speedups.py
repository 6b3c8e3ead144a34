"""Worked checks of Pal et al. (2019): what workers of several devices gain over data parallelism alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.planner import EpochsCurve
from kvstore_mpi.planner.speedup import (
    crossover,
    data_speedup,
    hybrid_speedup,
    least_model_speedup,
    training_seconds,
)

EPOCHS = st.floats(1, 100)
SHARES = st.floats(0.1, 1)

INCEPTION = EpochsCurve.of({64: 4, 2048: 4, 4096: 7, 16384: 23}, "training loss 6.1", "section 4.2")
"""64 images for each GPU: 4 epochs up to 32 GPUs, 7 beyond, 23 at 256."""
INCEPTION_SPEEDUP, GNMT_SPEEDUP, BIGLSTM_SPEEDUP = 1.32, 1.15, 1.22
"""Table 1, of two GPUs: placement by DLPlacer, pipeline, pipeline."""


@pytest.mark.paper("Pal et al. section 3, equations (1) to (3)")
@given(workers=st.integers(1, 256), efficiency=SHARES, one=EPOCHS, many=EPOCHS)
def test_the_speedup_of_data_parallelism_is_the_ratio_of_training_times(workers, efficiency, one, many):
    """T_1 / T_N = SE_N, S_1 / S_N = N at the same mini-batch."""
    alone = training_seconds(0.5, 1000, one)
    together = training_seconds(0.5 / efficiency, 1000 / workers, many)
    assert data_speedup(workers, efficiency, one, many) == pytest.approx(alone / together)


@pytest.mark.paper("Pal et al. section 3, equations (5) and (6)")
@given(
    speedup=st.floats(1, 4),
    ways=st.integers(2, 4),
    few=SHARES,
    many=SHARES,
    epochs=st.tuples(EPOCHS, EPOCHS),
)
def test_equation_6_says_when_equation_5_exceeds_equation_3(speedup, ways, few, many, epochs):
    """On as many devices: N workers of M each, or M x N workers."""
    hybrid = hybrid_speedup(speedup, 8, few, 1.0, epochs[0])
    data = data_speedup(8 * ways, many, 1.0, epochs[1])
    least = least_model_speedup(ways, many / few, epochs[0] / epochs[1])
    if speedup != pytest.approx(least):
        assert (hybrid > data) == (speedup > least)


def gain(speedup, epochs_ratio):
    """Return by how much two-way workers beat twice as many workers, SE being 1."""
    return speedup / least_model_speedup(2, 1.0, epochs_ratio) - 1


@pytest.mark.paper("Pal et al. section 5, Inception-V3")
def test_inception_gains_15_percent_on_64_gpus_and_26_on_256():
    """32 workers of two GPUs instead of 64; the second figure needs E(128 GPUs) = 12.0, E(256) = 23."""
    assert gain(INCEPTION_SPEEDUP, 4 / 7) == pytest.approx(0.155, abs=5e-4)
    epochs_of_128 = 23 * INCEPTION_SPEEDUP / (2 * 1.265)
    assert epochs_of_128 == pytest.approx(12.0, abs=0.005)
    assert gain(INCEPTION_SPEEDUP, 12.0 / 23) == pytest.approx(0.265, abs=5e-4)


@pytest.mark.paper("Pal et al. section 5, Inception-V3")
def test_inceptions_crossover_is_at_64_gpus():
    """As long as epochs do not rise, data parallelism wins: up to 32 GPUs."""
    numbers = [2, 4, 8, 16, 32, 64, 256]
    assert crossover(INCEPTION, 64, INCEPTION_SPEEDUP, 2, numbers) == 64


@pytest.mark.paper("Pal et al. section 5, GNMT")
def test_gnmt_gains_8_percent_on_256_gpus():
    """128 pipelines of two GPUs instead of 256: E(128) / E(256) = 0.532."""
    assert gain(GNMT_SPEEDUP, 0.532) == pytest.approx(0.08, abs=1e-3)


@pytest.mark.paper("Pal et al. section 5, BigLSTM")
def test_biglstm_gains_22_percent_over_the_best_data_parallelism():
    """It is 16 GPUs for data alone, where epochs begin to rise; 16 pipelines have the same batch."""
    epochs = {1: 1.0, 16: 1.0, 32: 3.2}
    best = max(data_speedup(workers, 1.0, 1.0, each) for workers, each in epochs.items())
    assert hybrid_speedup(BIGLSTM_SPEEDUP, 16, 1.0, 1.0, epochs[16]) / best == pytest.approx(1.22)
    curve = EpochsCurve.of({128: 1.0, 2048: 1.0, 4096: 3.2, 8192: None})
    assert crossover(curve, 128, BIGLSTM_SPEEDUP, 2, [2, 4, 8, 16, 32, 64]) == 32


@pytest.mark.paper("Pal et al. section 3, Figure 3")
def test_figure_3_two_way_workers_win_first_and_four_way_workers_later():
    """SU^2 = 1.45, SU^4 = 1.65: where doubling the batch costs 2 / 1.45 times the epochs, then 2.9 / 1.65.

    The figure has no numbers of epochs; these rise by a factor that itself rises with the batch.
    """
    growth = {32: 1.0, 64: 1.2, 128: 1.45, 256: 1.9}
    epochs, points = 4.0, {}
    for workers, factor in growth.items():
        epochs *= factor
        points[workers] = epochs
    curve = EpochsCurve.of(points)
    assert crossover(curve, 1, 1.45, 2, [64, 128, 256]) == 128  # 1.45 > 1.379, 1.2 is not
    assert crossover(curve, 1, 1.65, 4, [128, 256]) == 256  # 1.45 x 1.9 > 4 / 1.65; 1.2 x 1.45 is not
    four, two = 1.65 * 64 / points[64], 1.45 * 128 / points[128]  # both on 256 devices
    assert two > four
    assert 1.65 * 128 / points[128] > 1.45 * 256 / points[256]  # on 512 the order is the other
