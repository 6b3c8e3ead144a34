"""What a client does with the center that it is sent, in NumPy: what adapters and simulations must come to.

Every rank of a client does the same with the same bits, so that the ranks stay identical. float16
parameters are computed in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


def elastic_step(weight: Array, center: Array, alpha: float, pushed: Array | None = None) -> None:
    """Move parameters towards the center: weight -= alpha (pushed - center).

    Equation 3 of MXNET-MPI (Mamidala et al. 2018). With the same ``alpha``, ``pushed`` and ``center`` as on
    the server the client loses to the last bit what the center gains.

    Args:
        weight: The client's parameters as they are now; updated.
        center: The center *before* this exchange's update; only read.
        alpha: Moving rate, the server's.
        pushed: What was pushed, where that is not ``weight``: the parameters as they were when an exchange
            that overlaps with training began, or what a compressed push was decoded to; only read.
    """
    mix(weight, center, alpha, pushed)


def mix(weight: Array, center: Array, part: float, pushed: Array | None = None) -> None:
    """Blend parameters with a center: weight += part (center - pushed); arguments as ``elastic_step``.

    Without ``pushed`` the weight becomes (1 - part) weight + part center, the merge of Streaming DiLoCo
    (Douillard et al. 2025, arXiv 2501.18512, equation 3 with 1 - part for its alpha).
    """
    source = weight if pushed is None else pushed
    step = np.subtract(center, source, dtype=_working_dtype(weight))
    step *= part
    np.add(weight, step, out=weight, dtype=step.dtype, casting="same_kind")


def adopt(weight: Array, center: Array, pushed: Array | None = None) -> None:
    """Take a new center over: weight = center, to the bit.

    With ``pushed``, what the client has learned since it pushed stays: weight += center - pushed.
    """
    if pushed is None:
        np.copyto(weight, center, casting="same_kind")
    else:
        mix(weight, center, 1.0, pushed)


def _working_dtype(weight: Array) -> np.dtype[Any]:
    return np.dtype(np.float32) if weight.dtype == np.float16 else weight.dtype
