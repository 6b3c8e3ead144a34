"""The stores that are compared over slow links, and what each is told through its environment.

This file must not start processes or import mxnet.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .models import Granularity

STOCK_P3 = {"DMLC_PS_VAN_TYPE": "p3"}
STOCK_P3_BEST = {**STOCK_P3, "DMLC_PS_WATER_MARK": "10"}


@dataclass(frozen=True)
class Variant:
    """One store with its settings.

    Attributes:
        name: What the table calls it.
        kv_store: Name given to ``mx.kv.create``.
        settings: Environment of all its processes.
        as_it_comes: Leave stock's sizes as they are though the model is smaller.
        traced: Record a trace, to see what that costs; not measured unless asked for.
        python: Interpreter whose package is measured; that of another tree for a comparison with it.
    """

    name: str
    kv_store: str
    settings: Mapping[str, str] = field(default_factory=dict)
    as_it_comes: bool = False
    traced: bool = False
    python: str = sys.executable

    @property
    def is_stock(self) -> bool:
        """Return whether MXNet's own processes are started."""
        return self.kv_store == "dist_sync"

    def with_window(self, num_bytes: int) -> Variant:
        """Return ours with a fixed window, 0 for its own; stock has none that could be fixed."""
        if self.is_stock or not num_bytes:
            return self
        return replace(self, settings={**self.settings, "KVMPI_WINDOW_BYTES": str(num_bytes)})

    def of_tree(self, root: Path) -> Variant:
        """Return the same of another checkout, by the environment in its ``.venv``."""
        return replace(self, name=f"{self.name}@{root.name}", python=str(root / ".venv" / "bin" / "python"))

    def environment(self, granularity: Granularity) -> dict[str, str]:
        """Return what all processes are told: the settings, and where tensors are cut."""
        if not self.is_stock:
            return {**self.settings, "KVMPI_SLICE_ELEMENTS": str(granularity.slice_elements)}
        if self.as_it_comes:
            return dict(self.settings)
        return {
            **self.settings,
            "MXNET_KVSTORE_BIGARRAY_BOUND": str(granularity.big_array_elements),
            "MXNET_KVSTORE_SLICE_THRESHOLD": str(granularity.stock_slice_elements),
        }


def _ours(schedule: str) -> Variant:
    return Variant(
        f"ours-{schedule}",
        "dist_sync_mpi",
        {"KVMPI_SCHEDULE": schedule, "KVMPI_TRANSPORT": "auto", "KVMPI_WINDOW_BYTES": "auto"},
    )


STOCK = Variant("stock", "dist_sync")
FIFO, SLICING, P3 = _ours("fifo"), _ours("slicing"), _ours("p3")

VARIANTS = (
    STOCK,
    Variant("stock-as-is", "dist_sync", as_it_comes=True),
    Variant("stock-p3", "dist_sync", STOCK_P3),
    Variant("stock-p3-wm10", "dist_sync", STOCK_P3_BEST),
    FIFO,
    SLICING,
    P3,
    replace(P3, name="ours-p3-traced", traced=True),
)
USUAL = tuple(variant for variant in VARIANTS if not variant.traced)
