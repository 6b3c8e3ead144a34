"""Draws what a step of a table costs on each way by its density, as predicted; measures nothing.

python benchmarks/sparse_routes.py --plot docs/images/sparse-routes.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from kvstore_mpi.hybrid.cost import Cluster, Pull, Table
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.hybrid.routes import DENSE_ALLREDUCE, ROWS_ALLREDUCE, ROWS_SERVERS, Prices, traffic

TABLE = Table(rows=100_000, row_bytes=256, pieces=8)
MACHINES = (2, 4, 8)
CURVES = (
    ("all of it, by allreduce", DENSE_ALLREDUCE, Pull.OWN, "k--"),
    ("rows, by allreduce", ROWS_ALLREDUCE, Pull.OWN, "C3-"),
    ("rows, by servers; workers hold the table", ROWS_SERVERS, Pull.CHANGED, "C0-"),
    ("rows, by servers; workers ask for rows", ROWS_SERVERS, Pull.OWN, "C2-"),
)


def share(machines: int, alpha: float, way: object, pull: Pull) -> float:
    """Return what a machine sends and receives, in tables; machines touch rows independently."""
    density = Density(alpha, alpha, 1 - (1 - alpha) ** machines)
    cost = traffic(way, TABLE, density, Cluster(machines, machines), Prices(pull=pull))
    return cost.num_bytes / TABLE.num_bytes


def draw(path: Path) -> None:
    """Write the picture, a panel for each number of machines."""
    from matplotlib import pyplot as plt  # noqa: PLC0415  the model itself does not need it

    figure, panels = plt.subplots(1, len(MACHINES), figsize=(11, 4.2), sharey=True, layout="constrained")
    alphas = np.geomspace(0.001, 1, 60)
    for axes, machines in zip(panels, MACHINES):
        for label, way, pull, line in CURVES:
            axes.plot(alphas, [share(machines, each, way, pull) for each in alphas], line, label=label)
        axes.set(xscale="log", yscale="log", title=f"{machines} machines")
        axes.grid(visible=True, which="both", alpha=0.25)
    panels[0].set_ylabel("bytes sent and received / bytes of the table")
    figure.supxlabel("share of the rows that a machine touches in a step", fontsize="medium")
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", type=Path, required=True, help="the picture to write")
    draw(parser.parse_args().plot)


if __name__ == "__main__":
    main()
