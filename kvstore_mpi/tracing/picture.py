"""A picture of some iterations: ``python -m kvstore_mpi.tracing.picture trace.json ... --out FILE``.

Draws those of one worker out of merged traces, one above the other on one scale of time: the user's marks,
what is pending, what waits in the queue, what is on the wires, what is at the servers, and the answers.
Colours tell keys apart. Needs matplotlib (the extra ``bench``).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.tracing.iterations import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

Event = dict[str, Any]

ROWS = {
    "mark": "marks",
    "operation": "pending",
    "reduce": "reduce",
    "queue": "queue",
    "wire": "on the wire",
    "round": "at the servers",
    "answer": "answers",
    "share": "share",
}
"""Categories of the trace from top to bottom, as people call them."""

MARKS = {"forward": "#7fbf7b", "backward": "#af8dc3", "wait": "#d9d9d9"}
OTHER_MARK = "#fee08b"
LEGEND = (
    "ms      marks: forward green, backward purple, wait grey; keys: the most urgent light, the last dark"
)


class Row(NamedTuple):
    """One category of one worker: events, and in which of ``lanes`` each lies."""

    title: str
    events: list[Event]
    lanes: list[int]


class Picture(NamedTuple):
    """A few iterations of one worker; times in microseconds of the trace."""

    title: str
    since: float
    until: float
    rows: list[Row]


def choose(trace: dict[str, Any], title: str, worker: str, first: int, iterations: int) -> Picture:
    """Choose what to draw.

    Args:
        trace: What ``chrome.chrome_trace`` has made.
        title: What to write above.
        worker: Name of the worker.
        first: Number of the first iteration.
        iterations: How many.

    Raises:
        UsageError: The trace does not have that worker or as many iterations.
    """
    events = trace["traceEvents"]
    pid = _pid(events, worker)
    whole = [each for each in events if each["ph"] == "X" and _of_worker(each, pid, worker)]
    ours = [each for each in whole if each["cat"] == "iteration"][first : first + iterations]
    if len(ours) < iterations:
        raise UsageError(
            f"{title}: {worker} has fewer than {first + iterations} whole iterations in the trace; choose "
            "others with --first and --iterations"
        )
    since, until = ours[0]["ts"], ours[-1]["ts"] + ours[-1]["dur"]
    seen = [each for each in whole if each["ts"] < until and each["ts"] + each["dur"] > since]
    rows = (_row(ROWS[name], [each for each in seen if each["cat"] == name]) for name in ROWS)
    return Picture(title, since, until, [row for row in rows if row.events])


def _pid(events: Sequence[Event], worker: str) -> int:
    """Return the number of a worker's process in a trace."""
    for event in events:
        if event["name"] == "process_name" and event["args"]["name"].split(" ")[0] == worker:
            return int(event["pid"])
    raise UsageError(f"the trace has no process {worker!r}; choose another with --worker")


def _of_worker(event: Event, pid: int, worker: str) -> bool:
    """Tell whether something was done by a worker, or on a server for it."""
    if event["cat"] == "round":
        return bool(event["args"]["peer"] == worker)
    return bool(event["pid"] == pid)


def _row(title: str, events: list[Event]) -> Row:
    """Number the threads that events lie on, without those that nothing is drawn of."""
    places = sorted({(event["pid"], event["tid"]) for event in events})
    return Row(title, events, [places.index((event["pid"], event["tid"])) for event in events])


def draw(pictures: Sequence[Picture], path: Path) -> None:
    """Draw pictures above each other, each from its own beginning."""
    heights = [len(picture.rows) for picture in pictures]
    figure, all_axes = plt.subplots(
        len(pictures),
        1,
        figsize=(12, 1 + 0.55 * sum(heights)),
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
        layout="constrained",
    )
    keys = _keys(pictures)
    for axes, picture in zip(all_axes[:, 0], pictures):
        _draw_picture(axes, picture, keys)
    all_axes[-1, 0].set_xlabel(LEGEND)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def read(path: Path) -> dict[str, Any]:
    """Return what a file with a trace has.

    Raises:
        UsageError: It cannot be read, or is no trace.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or "traceEvents" not in found:
        raise UsageError(
            f"{path} is no trace, as mpilaunch --trace and mpilaunch plan --timeline write one"
        )
    return found


def save(chosen: Callable[[], Sequence[Picture]], path: Path) -> int:
    """Draw what is chosen, or say why it cannot be; return the exit code."""
    try:
        pictures = chosen()
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    try:
        draw(pictures, path)
    except OSError as error:
        sys.stderr.write(f"{path} cannot be written: {error.strerror}\n")
        return ConfigurationError.exit_code
    return 0


def _keys(pictures: Sequence[Picture]) -> list[str]:
    """Return the keys in the order of their priorities, the most urgent first."""
    urgency: dict[str, int] = {}
    for picture in pictures:
        for row in picture.rows:
            for event in row.events:
                if event["cat"] == "operation":
                    urgency.setdefault(event["name"].split(" ", 1)[1], -event["args"]["priority"])
    return sorted(urgency, key=urgency.__getitem__)


def _draw_picture(axes: Axes, picture: Picture, keys: Sequence[str]) -> None:
    """Draw the rows of one picture from top to bottom."""
    for place, row in enumerate(picture.rows):
        thickness = 0.8 / (max(row.lanes) + 1)
        for event, lane in zip(row.events, row.lanes):
            start = max(event["ts"], picture.since)
            end = min(event["ts"] + event["dur"], picture.until)
            axes.broken_barh(
                [((start - picture.since) / 1000, (end - start) / 1000)],
                (place - 0.4 + lane * thickness, thickness),
                facecolors=_colour(event, keys),
            )
    axes.set_yticks(range(len(picture.rows)), [row.title for row in picture.rows])
    axes.invert_yaxis()
    axes.set_title(picture.title, loc="left")
    axes.axvline((picture.until - picture.since) / 1000, color="black", linewidth=1)
    axes.grid(visible=True, axis="x", alpha=0.25)


def _colour(event: Event, keys: Sequence[str]) -> Any:
    """Return the colour of a mark, or of a key: from light for the first layer to dark for the last."""
    if event["cat"] == "mark":
        return MARKS.get(kind_of(event["name"]), OTHER_MARK)
    key = event["name"].split(" ", 1)[1] if event["cat"] == "operation" else event["args"]["key"]
    place = keys.index(key) if key in keys else len(keys)
    return mpl.colormaps["viridis_r"](0.1 + 0.9 * place / max(1, len(keys)))


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser("python -m kvstore_mpi.tracing.picture", description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="trace.json")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the picture, e.g. x.png")
    parser.add_argument("--worker", default="worker0", help="whose iterations (%(default)s)")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="from this one on (%(default)s)")
    parser.add_argument("--iterations", type=int, default=3, metavar="N", help="how many (%(default)s)")
    options = parser.parse_args(argv)
    return save(
        lambda: [
            choose(
                read(path),
                path.absolute().parent.name,
                options.worker,
                options.first,
                options.iterations,
            )
            for path in options.traces
        ],
        options.out,
    )


if __name__ == "__main__":
    sys.exit(main())
