"""Turns runs into scores, and those into tables and verdicts.

This file must not measure, read or write anything.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import median
from typing import TYPE_CHECKING, Any

from .p3_cell import Point, Run
from .p3_variants import P3, STOCK, VARIANTS
from .table import Spread, align, met, ratios_of, spread_of
from .utilisation import Bins, shares_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_BUSY = 0.85
"""A run that kept the cores busier than this measured them, and not the network: it does not count."""

CPU_BOUND = "CPU-bound"

SCORE_TARGETS = {2: 0.96, 4: 0.97}
OTHER_SCORE_TARGET = 0.95
"""Least share of the ideal, by the number of hosts."""

COMPUTE_BOUND_RATIO = 0.5
COMPUTE_BOUND_TARGET = 0.99
"""Where the network needs less than half of the compute, no more than one per cent may be lost."""

BEST_OVER_STOCK_P3 = 1.15
BEST_OVER_STOCK = {"vgg19": 1.25, "resnet50": 1.25, "sockeye": 1.18}
"""At each model's best point: least gain over the faster setting of stock's P3, and over stock."""

STOCK_P3_NAMES = tuple(variant.name for variant in VARIANTS if variant.name.startswith("stock-p3"))
LEAST_OVER_STOCK_P3 = 1.0
"""At each point, but where both are as good as ideal."""

AS_GOOD_AS_IDEAL = 0.998

HEAD = (
    *("model", "hosts", "ratio", "Mbit/s", "variant", "ideal s", "median s", "each run", "runs"),
    *("score", "x stock", "range", "busy", "cpu s", "x stock", "queued s", "target"),
)

USUAL_TARGET = 0.95
"""Least speed of the default size of slices, as a share of the best of the sweep."""

SLICES_HEAD = (
    "model",
    "elements",
    "median s",
    "each run",
    "runs",
    "score",
    "of the best",
    "busy",
    "cpu s",
    "target",
)

UTILISATION_HEAD = (
    *("model", "variant", "s/iteration", "mean out", "mean in", "idle out", "idle in", "both busy", "busy"),
    "cpu s",
)


@dataclass(frozen=True)
class Row:
    """One store at one point, over all repeats.

    Attributes:
        point: Where.
        variant: Name of the store.
        iteration_s: Median over the runs that count, between the least and the most; ``None`` if none does.
        counted: How many runs count.
        measured: How many there were.
        busy: Median share of all cores' time that was not idle, over all runs.
        cpu_s: Median processor time of all the job's threads in one iteration.
        queued_s: Median of what a host's threads waited for a core in one iteration, added up.
        over_stock: Stock's time over this one's, run by run; ``None`` where no pair of runs counts.
        cpu_over_stock: This one's processor time over stock's, likewise.
        runs: Every run, also those that do not count.
    """

    point: Point
    variant: str
    iteration_s: Spread | None
    counted: int
    measured: int
    busy: float
    cpu_s: float
    queued_s: float
    over_stock: Spread | None
    cpu_over_stock: Spread | None
    runs: tuple[Run, ...]

    @property
    def score(self) -> float | None:
        """Return the share of the ideal speed; ``None`` where the processors were measured."""
        return self.point.bound_s / self.iteration_s.median if self.iteration_s else None


def summarize(point: Point, runs: Sequence[Run]) -> list[Row]:
    """Return one row per store, in the order in which they first ran."""
    by_variant: dict[str, list[Run]] = {}
    for run in runs:
        by_variant.setdefault(run.variant, []).append(run)
    stock = by_variant.get(STOCK.name, ())
    return [_row(point, name, own, stock) for name, own in by_variant.items()]


def by_point(runs: Sequence[Mapping[str, Any]]) -> dict[Point, list[Run]]:
    """Return the runs of a file of results by where they were measured."""
    names = {one.name for one in fields(Run)}
    points: dict[Point, list[Run]] = {}
    for run in runs:
        own = Run(**{name: value for name, value in run.items() if name in names})
        points.setdefault(Point(**run["point"]), []).append(own)
    return points


def _row(point: Point, variant: str, runs: Sequence[Run], stock: Sequence[Run]) -> Row:
    """Summarize the runs of one store."""
    spread = _spread(runs)
    return Row(
        point,
        variant,
        spread,
        len(_counting(runs)),
        len(runs),
        median(run.busy for run in runs),
        median(run.cpu_s for run in runs),
        median(run.queued_s for run in runs),
        ratios_of(_counted(stock), _counted(runs)),
        ratios_of([run.cpu_s or None for run in runs], [run.cpu_s or None for run in stock]),
        tuple(runs),
    )


def _counted(runs: Sequence[Run]) -> list[float | None]:
    """Return the seconds per iteration of each run; ``None`` if the processors had no time to spare."""
    return [run.iteration_s if run.busy <= MOST_BUSY else None for run in runs]


def _counting(runs: Sequence[Run]) -> list[float]:
    """Return those of the runs that count."""
    return [seconds for seconds in _counted(runs) if seconds is not None]


def _spread(runs: Sequence[Run]) -> Spread | None:
    """Return the median and the range of the runs that count."""
    times = _counting(runs)
    return spread_of(times) if times else None


def _each(row: Row) -> str:
    """Return the seconds of all runs, those that do not count in brackets."""
    texts = ((f"{run.iteration_s:.3f}", run.busy <= MOST_BUSY) for run in row.runs)
    return " ".join(text if counts else f"({text})" for text, counts in texts)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text."""
    return align([HEAD, *(_cells(row) for row in rows)])


def _cells(row: Row) -> tuple[str, ...]:
    """Return the texts of one row."""
    point, spread = row.point, row.iteration_s
    return (
        point.model,
        str(point.hosts),
        f"{point.ratio:g}",
        f"{point.bits_per_s / 1e6:.0f}",
        row.variant,
        f"{point.bound_s:.3f}",
        f"{spread.median:.3f}" if spread else CPU_BOUND,
        _each(row),
        f"{row.counted}/{row.measured}",
        f"{row.score:.3f}" if row.score else "",
        f"{row.over_stock.median:.2f}" if row.over_stock else "",
        row.over_stock.text(2) if row.over_stock else "",
        f"{row.busy:.2f}",
        f"{row.cpu_s:.2f}" if row.cpu_s else "",
        f"{row.cpu_over_stock.median:.2f}" if row.cpu_over_stock else "",
        f"{row.queued_s:.2f}",
        verdict(row),
    )


def score_target(point: Point) -> float:
    """Return the least score asked of ours at a point."""
    if point.ratio <= COMPUTE_BOUND_RATIO and point.bound_s < 1.01 * point.compute_s:
        return COMPUTE_BOUND_TARGET
    return SCORE_TARGETS.get(point.hosts, OTHER_SCORE_TARGET)


def verdict(row: Row) -> str:
    """Say whether a row meets its target; empty where there is none."""
    if row.variant != P3.name or row.score is None:
        return ""
    target = score_target(row.point)
    return f">= {target} {met(row.score, target)}"


def goals(rows: Sequence[Row]) -> list[str]:
    """Return a line for each model and number of hosts on what ours gains over the others."""
    places = list(dict.fromkeys((row.point.model, row.point.hosts) for row in rows))
    return [line for place in places for line in _goals_of(place, rows)]


def _goals_of(place: tuple[str, int], rows: Sequence[Row]) -> list[str]:
    """Return the lines of one model with one number of hosts."""
    points: dict[Point, dict[str, Sequence[Run]]] = {}
    for row in rows:
        if (row.point.model, row.point.hosts) == place and row.iteration_s:
            points.setdefault(row.point, {})[row.variant] = row.runs
    name = f"{place[0]}, {place[1]} hosts"
    lines = []
    over_p3 = _gains(points, STOCK_P3_NAMES)
    if over_p3:
        lines.append(
            f"{name}: over stock's faster P3, {_at_least(max(over_p3), BEST_OVER_STOCK_P3)} at best"
        )
    if short := _gains(_short_of_ideal(points), STOCK_P3_NAMES):
        worst = _at_least(min(short), LEAST_OVER_STOCK_P3)
        lines.append(f"{name}: over stock's faster P3, {worst} at worst")
    over_stock = _gains(points, (STOCK.name,))
    if over_stock and place[0] in BEST_OVER_STOCK:
        lines.append(f"{name}: over stock, {_at_least(max(over_stock), BEST_OVER_STOCK[place[0]])} at best")
    return lines


def _short_of_ideal(
    points: Mapping[Point, Mapping[str, Sequence[Run]]],
) -> dict[Point, Mapping[str, Sequence[Run]]]:
    """Return the points at which ours, or a setting of stock's P3, is not as good as ideal."""

    def is_ideal(point: Point, runs: Sequence[Run]) -> bool:
        spread = _spread(runs)
        return spread is not None and point.bound_s >= AS_GOOD_AS_IDEAL * spread.median

    p3 = {P3.name, *STOCK_P3_NAMES}
    return {
        point: runs
        for point, runs in points.items()
        if not all(is_ideal(point, own) for name, own in runs.items() if name in p3)
    }


def _gains(points: Mapping[Point, Mapping[str, Sequence[Run]]], others: Sequence[str]) -> list[float]:
    """Return for each point how many times as fast as the fastest of the others ours is."""
    gains = []
    for runs in points.values():
        ours = _counted(runs.get(P3.name, ()))
        ratios = [ratios_of(_counted(runs[name]), ours) for name in others if name in runs]
        known = [ratio.median for ratio in ratios if ratio]
        gains += [min(known)] if known else []
    return gains


def _at_least(value: float, target: float) -> str:
    return f"{value:.3f}x (>= {target} {met(value, target)})"


def slices_table(rows_of: Mapping[Point, Mapping[int, Row]], usual: Mapping[Point, int]) -> str:
    """Return the sweep over slice sizes as aligned text.

    Args:
        rows_of: Point -> slice size -> row.
        usual: The default size at each point, which is held to the best of the sweep.
    """
    lines: list[Sequence[str]] = [SLICES_HEAD]
    for point, rows in rows_of.items():
        best = max((row.score for row in rows.values() if row.score), default=None)
        lines += [_slice_cells(size, row, best, usual[point]) for size, row in rows.items()]
    return align(lines)


def _slice_cells(size: int, row: Row, best: float | None, usual: int) -> tuple[str, ...]:
    """Return the texts of one slice size."""
    spread = row.iteration_s
    share = row.score / best if row.score and best else None
    target = f">= {USUAL_TARGET} {met(share, USUAL_TARGET)}" if share and size == usual else ""
    return (
        row.point.model,
        f"{size} (default)" if size == usual else str(size),
        f"{spread.median:.3f}" if spread else CPU_BOUND,
        _each(row),
        f"{row.counted}/{row.measured}",
        f"{row.score:.3f}" if row.score else "",
        f"{share:.3f}" if share else "",
        f"{row.busy:.2f}",
        f"{row.cpu_s:.2f}" if row.cpu_s else "",
        target,
    )


@dataclass(frozen=True)
class Traffic:
    """What crossed one host's link in the measured part of one run."""

    point: Point
    run: Run
    bins: Bins


def traffic_of(runs: Sequence[Mapping[str, Any]]) -> list[Traffic]:
    """Return the traffic in a file of results."""
    traffic = []
    for run in runs:
        [(point, [own])] = by_point([run]).items()
        bins = run["bins"]
        traffic.append(
            Traffic(point, own, Bins(bins["width_s"], tuple(bins["sent"]), tuple(bins["received"])))
        )
    return traffic


def utilisation_table(traffic: Sequence[Traffic]) -> str:
    """Return the use of the link as aligned text, one line per run."""
    return align([UTILISATION_HEAD, *(_traffic_cells(each) for each in traffic)])


def _traffic_cells(traffic: Traffic) -> tuple[str, ...]:
    """Return the texts of one run; shares are of the rate of the link, or of the bins."""
    run = traffic.run
    name = (traffic.point.model, run.variant)
    if run.busy > MOST_BUSY:
        return (*name, CPU_BOUND, *[""] * 5, f"{run.busy:.2f}", f"{run.cpu_s:.2f}" if run.cpu_s else "")
    shares = shares_of(traffic.bins, traffic.point.bits_per_s)
    values = (
        shares.mean_sent,
        shares.mean_received,
        shares.idle_sent,
        shares.idle_received,
        shares.both_busy,
    )
    return (
        *name,
        f"{run.iteration_s:.3f}",
        *(f"{value:.3f}" for value in values),
        f"{run.busy:.2f}",
        f"{run.cpu_s:.2f}",
    )
