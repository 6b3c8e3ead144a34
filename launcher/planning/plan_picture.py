"""The picture of a plan: training time against devices, for each kind of worker, and E(B)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvstore_mpi.errors import ConfigurationError

if TYPE_CHECKING:
    from kvstore_mpi.planner import EpochsCurve, Plan


def draw(plan: Plan, curve: EpochsCurve, path: str) -> None:
    """Draw a plan.

    Args:
        plan: Its best options are shown, one for each number of devices and of devices of a worker.
        curve: E(B), beside it.
        path: Where the picture goes; its ending is the format.

    Raises:
        ConfigurationError: There is no matplotlib, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an extra, for pictures only
    except ImportError as error:
        raise ConfigurationError("--picture needs matplotlib: pip install 'kvstore_mpi[bench]'") from error
    figure = Figure(figsize=(10, 4), layout="constrained")
    times, epochs = figure.subplots(1, 2)
    for (ways, kind), points in lines_of(plan).items():
        label = "one device each" if ways == 1 else f"{ways} devices each ({kind})"
        times.plot(*zip(*points), marker="o", label=label)
    best = plan.best
    times.plot([best.configuration.devices], [best.total_s], "k*", markersize=14, label="best")
    times.set(xscale="log", yscale="log", xlabel="devices", ylabel="C = T x S x E, seconds", title=plan.net)
    times.set_xscale("log", base=2)
    times.legend(title="workers with")
    known = [(batch, value) for batch, value in curve.monotone() if value != math.inf]
    epochs.plot(*zip(*known), marker=".", color="gray")
    epochs.axvline(best.batch, color="black", linestyle=":", label=f"best: batch {best.batch}")
    epochs.set_xscale("log", base=2)
    epochs.set(xlabel="batch of an update", ylabel="epochs", title=f"E(B): {curve.target}")
    epochs.legend()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be drawn: {error}") from error


def lines_of(plan: Plan) -> dict[tuple[int, str], list[tuple[int, float]]]:
    """Return, for each number of devices of a worker and kind, (devices, seconds) of the best options."""
    lines: dict[tuple[int, str], dict[int, float]] = {}
    for option in reversed(plan.options):  # so that the best of each number of devices comes last
        configuration = option.configuration
        line = lines.setdefault((configuration.ways, configuration.kind), {})
        line[configuration.devices] = option.total_s
    return {name: sorted(line.items()) for name, line in sorted(lines.items())}
