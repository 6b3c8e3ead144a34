"""The last step of every picture: one legend, the marks of its figures, the file. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES_OF_A_MARK = 2.4


def finish(figure: Figure, panels: Iterable[Axes], path: Path, marks: Sequence[str]) -> None:
    """Add one legend for all panels, write in red what makes the figures doubtful, and write the file."""
    found = {label: mark for axes in panels for mark, label in zip(*axes.get_legend_handles_labels())}
    columns = max(1, int(figure.get_figwidth() / INCHES_OF_A_MARK))
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)
    if marks:
        figure.supxlabel("\n".join(marks), color="red", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
