"""Draws predicted speed-ups of placements, a panel for each net; needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt

from .plot import finish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LINES = {
    "bound_s": ("bound", "k--"),
    "predicted_s": ("solver", "C0o-"),
    "search_s": ("search", "C1s:"),
    "halves_s": ("backward pass in two halves", "C2^-"),
    "heft_s": ("HEFT", "C3v-"),
    "metf_s": ("m-ETF", "C4x-"),
}


def draw(runs: Sequence[Mapping[str, Any]], path: Path, marks: Sequence[str]) -> None:
    """Write a plot of one run of each net and number of devices."""
    nets = list(dict.fromkeys(run["name"] for run in runs))
    figure, panels = plt.subplots(
        2, -(-len(nets) // 2), figsize=(12, 7.5), squeeze=False, layout="constrained"
    )
    for axes, net in zip(panels.flat, nets):
        own = sorted((run for run in runs if run["name"] == net), key=lambda run: run["devices"])
        for field, (label, style) in LINES.items():
            speedups = [run["single_s"] / run[field] for run in own]
            axes.plot(range(len(own)), speedups, style, label=label, markersize=5)
        axes.set_xticks(range(len(own)), [str(run["devices"]) for run in own])
        axes.set(title=f"{net} ({own[0]['operations']} operations)", xlabel="devices")
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.set_ylim(bottom=0.9, top=max(1.1, 1.03 * axes.get_ylim()[1]))
        axes.grid(visible=True, alpha=0.25)
    panels[0][0].set_ylabel("predicted speed-up over one device")
    panels[1][0].set_ylabel("predicted speed-up over one device")
    finish(figure, panels.flat, path, marks)
