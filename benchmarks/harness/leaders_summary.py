"""Turns the runs with one leader and with all ranks as leaders into tables.

Pure. It must not know how the runs came about.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from .summary import Spread, align

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .leaders_cell import Run

TARGETS = {2: 1.7, 4: 2.5}
"""By how much all leaders are to be faster than one, by ranks, where the leader's link is the limit."""

HEAD = ("MPI", "ranks", "servers", "Mbit/s", "one: bound", "measured", "all: bound", "measured")
HEAD += ("ratio: bound", "measured", "busy", "target")
TRAFFIC_HEAD = (
    "MPI",
    "ranks",
    "servers",
    "leaders",
    "link of",
    "device",
    "out MB",
    "in MB",
    "of the model",
)


@dataclass
class Point:
    """Where both are compared.

    Attributes:
        model: Name of the model.
        num_bytes: Its size.
        bits_per_s: Rate of the links to the servers in each direction.
        bytes_per_s: Payload that TCP was measured to carry at that rate.
        ranks: Ranks of the client.
        servers: Servers.
        shared_link: MPI has no links of its own.
        bounds_s: Least seconds of a step, with one leader and with all.
        runs: What was measured.
    """

    model: str
    num_bytes: int
    bits_per_s: float
    bytes_per_s: float
    ranks: int
    servers: int
    shared_link: bool
    bounds_s: tuple[float, float]
    runs: list[Run] = field(default_factory=list)

    @property
    def mpi(self) -> str:
        """Which links MPI has."""
        return "same link" if self.shared_link else "own link"

    def times(self, leaders: str) -> list[float]:
        """Return the seconds of a step of each run."""
        return [run.step_s for run in self.runs if run.shape.leaders == leaders]

    def ratio(self) -> Spread | None:
        """Return how many times faster all leaders are: of the medians, and the range over the repeats."""
        one, every = self.times("one"), self.times("all")
        if not one or not every:
            return None
        ratios = [a / b for a, b in zip(one, every)]
        return Spread(min(ratios), median(one) / median(every), max(ratios))

    def to_json(self) -> dict[str, Any]:
        """Return the point as a file of results has it."""
        return asdict(self)


def spread_of(times: Sequence[float]) -> Spread | None:
    """Return median and range."""
    return Spread(min(times), median(times), max(times)) if times else None


def table(points: Sequence[Point]) -> str:
    """Return the times as aligned text."""
    return align([HEAD, *(_cells(point) for point in points)])


def _cells(point: Point) -> tuple[str, ...]:
    one, every = point.bounds_s
    ratio, bound = point.ratio(), one / every
    busy = max((run.busy for run in point.runs), default=0.0)
    return (
        point.mpi,
        str(point.ranks),
        str(point.servers),
        f"{point.bits_per_s / 1e6:.0f}",
        f"{one:.2f} s",
        _text(spread_of(point.times("one")), " s"),
        f"{every:.2f} s",
        _text(spread_of(point.times("all")), " s"),
        f"{bound:.2f}",
        _text(ratio, ""),
        f"{busy:.2f}",
        verdict(point),
    )


def verdict(point: Point) -> str:
    """Say whether a point meets its target; empty where arithmetic does not allow it."""
    ratio, (one, every) = point.ratio(), point.bounds_s
    target = TARGETS.get(point.ranks)
    if ratio is None or target is None or one / every < target:
        return ""
    return f">= {target} {'met' if ratio.median >= target else 'NOT MET'}"


def _text(spread: Spread | None, unit: str) -> str:
    return f"{spread.median:.2f}{unit} ({spread.low:.2f} - {spread.high:.2f})" if spread else "-"


def traffic_table(points: Sequence[Point]) -> str:
    """Return the bytes of a step as aligned text: medians over the runs."""
    rows = []
    for point in points:
        for leaders in ("one", "all"):
            runs = [run for run in point.runs if run.shape.leaders == leaders]
            for same in zip(*(run.traffic for run in runs)):
                sent, received = (
                    median(getattr(each, name) for each in same) for name in ("sent", "received")
                )
                where = (point.mpi, str(point.ranks), str(point.servers), leaders)
                crossing = f"{sent / point.num_bytes:.2f} out, {received / point.num_bytes:.2f} in"
                link = (same[0].host, same[0].device)
                rows.append((*where, *link, f"{sent / 1e6:.1f}", f"{received / 1e6:.1f}", crossing))
    return align([TRAFFIC_HEAD, *rows])
