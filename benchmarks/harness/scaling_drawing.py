"""Draws what was measured beside what is fitted, and what limits large jobs; needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt

from .plot import finish
from .scaling_model import step_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .scaling_model import Model

Needs = dict[str, dict[str, float]]
"""Model -> what can be the limit -> seconds of a step."""


def draw(  # noqa: PLR0917  what is drawn, and where
    points: Sequence[Mapping[str, Any]],
    model: Model,
    cores: int,
    needs: Needs,
    path: Path,
    marks: Sequence[str],
) -> None:
    """Write a picture: each point by measurement and by fit, and the limits of each model."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    pairs: dict[str, list[tuple[float, float]]] = {"worker": [], "server": [], "step": []}
    for point in points:
        step = step_of(point)
        threads = model.threads(step)
        pairs["worker"].append((point["thread_s"], threads["worker"]))
        pairs["server"].append((point["server_s"], threads["server"]))
        pairs["step"].append((point["seconds"], model.seconds(step, cores)))
    for color, (name, both) in zip(("C0", "C1", "C4"), pairs.items()):
        left.plot(*zip(*both), "o", color=color, markersize=4, label=name)
    ends = [min(map(min, pairs["server"])), max(map(max, pairs["step"]))]
    left.plot(ends, ends, "k-", linewidth=1)
    left.set(xscale="log", yscale="log", xlabel="measured (s)", ylabel="fitted (s)", title="2 to 8 workers")
    kinds = list(next(iter(needs.values())))
    for place, kind in enumerate(kinds):
        positions = [group + 0.8 * place / len(kinds) for group in range(len(needs))]
        heights = [each[kind] for each in needs.values()]
        right.bar(positions, heights, 0.8 / len(kinds), align="edge", color=f"C{place}", label=kind)
    right.set(yscale="log", ylabel="seconds of a step", title="1,000 hosts, predicted")
    right.set_xticks([group + 0.4 for group in range(len(needs))], list(needs))
    for axes in (left, right):
        axes.grid(visible=True, which="both", alpha=0.25)
    finish(figure, (left, right), path, marks)
