"""The models whose steps are replayed: tables of which a step touches some rows, and the rest.

Small enough for two cores to feed eight hosts; what is kept of the paper's models is the share of the
parameters that is in tables, and the share of rows that a step touches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .sparse_ids import expected_rows

ALPHAS = (1.0, 0.52, 0.28, 0.16, 0.1, 0.07, 0.04)
"""Of Parallax's Table 6, as shares of the table's rows."""


@dataclass(frozen=True)
class Table:
    """A table of one model.

    Attributes:
        rows: Its rows.
        width: Numbers in a row.
        touched: Different rows that a worker touches in a step.
        exponent: Of Zipf's law, by which they are drawn.
    """

    rows: int
    width: int
    touched: int
    exponent: float = 1.0


@dataclass(frozen=True)
class Model:
    """What a step sends; tensors and tables are in forward order.

    Attributes:
        name: What the table calls it.
        tables: Looked up at the beginning of a step.
        dense: Elements of the other tensors.
    """

    name: str
    tables: tuple[Table, ...]
    dense: tuple[int, ...]


def _recommender() -> Model:
    sizes = [round(rows) for rows in np.geomspace(1e3, 1e6, 26)]
    tables = [Table(rows, 16, expected_rows(rows, 512, 1.1), 1.1) for rows in sizes]
    return Model("ctr", tuple(tables), (13 * 512, 512 * 256, 256 * 16, 432 * 512, 512 * 256, 256))


def _of_density(alpha: float) -> Model:
    return Model(f"alpha-{alpha:g}", (Table(20_000, 64, round(20_000 * alpha)),), (250_000, 250_000))


MODELS = (
    Model("lm", (Table(200_000, 64, 1_750),) * 2, (4 * 256 * 64, 4 * 256 * 64, 1024, 256 * 64)),
    Model("nmt", (Table(16_000, 128, 3_360),) * 2, (512 * 1024,) * 10),
    _recommender(),
    Model("dense", (), (512 * 1024,) * 12),
    *map(_of_density, ALPHAS),
)
USUAL = ("lm", "nmt", "ctr", "dense")
