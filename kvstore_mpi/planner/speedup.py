"""Equations (1) to (6) of Pal et al. (2019), section 3: what data and model parallelism make of a training.

T is the time of a step, S the number of steps in an epoch, E the number of epochs until the target is
reached. With N data-parallel workers of the same mini-batch each, S_1 / S_N = N. Scaling efficiency SE_N is
T_1 / T_N, at most 1: how much of it communication leaves. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.planner.epochs import EpochsCurve


def training_seconds(step_s: float, steps: float, epochs: float) -> float:
    """Return C = T x S x E, equation (1)."""
    return step_s * steps * epochs


def data_speedup(workers: int, efficiency: float, epochs_of_one: float, epochs: float) -> float:
    """Return SU_N = SE_N x N x E_1 / E_N, equation (3).

    Args:
        workers: N.
        efficiency: SE_N.
        epochs_of_one: E_1, with the batch of one worker.
        epochs: E_N, with that of all.
    """
    return efficiency * workers * epochs_of_one / epochs


def hybrid_speedup(
    model_speedup: float, workers: int, efficiency: float, epochs_of_one: float, epochs: float
) -> float:
    """Return SU_N^M = SU^M x SE_N x N x E_1 / E_N, equation (5).

    Args:
        model_speedup: SU^M, of a step of one worker on M devices over one device.
        workers: N, each of M devices.
        efficiency: SE_N; that of N workers, whatever each of them is.
        epochs_of_one: E_1.
        epochs: E_N: model parallelism leaves the batch as it is.
    """
    return model_speedup * data_speedup(workers, efficiency, epochs_of_one, epochs)


def least_model_speedup(ways: int, efficiency_ratio: float, epochs_ratio: float) -> float:
    """Return the SU^M above which M-way workers beat M times as many workers, equation (6).

    SU^M > M x (SE_MN / SE_N) x (E_N / E_MN).

    Args:
        ways: M.
        efficiency_ratio: SE_MN / SE_N.
        epochs_ratio: E_N / E_MN.
    """
    return ways * efficiency_ratio * epochs_ratio


def crossover(
    curve: EpochsCurve, batch: int, model_speedup: float, ways: int, devices: Iterable[int]
) -> int | None:
    """Return the first number of devices at which M-way workers beat data parallelism alone.

    Scaling efficiency is taken to be 1, as in the paper, which is in favour of data parallelism.

    Args:
        curve: E(B).
        batch: Samples of one worker.
        model_speedup: SU^M.
        ways: M.
        devices: Numbers to try, ascending; those whose batch the curve does not know are left out.

    Returns:
        The number, or ``None`` if there is none among those.
    """
    for number in devices:
        few, many = curve.at(number // ways * batch), curve.at(number * batch)
        if number % ways or few is None or many is None:
            continue
        if model_speedup > least_model_speedup(ways, 1.0, few.epochs / many.epochs):
            return number
    return None
