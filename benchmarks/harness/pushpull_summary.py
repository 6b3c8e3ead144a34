"""Turns samples into medians, spreads and ratios, and those into tables.

This file must not measure, read or write anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .cases import (
    IN_TWO_CALLS,
    MEMORY_TARGETS,
    NUM_WORKERS,
    SOCKETS,
    STOCK,
    STOCK_IPC,
    TWO_CALLS_TARGET,
    peers_of,
)
from .table import Spread, align, each, met, quartiles, ratios_of

BYTES_CROSSING = 2 * NUM_WORKERS
"""A pushpull moves each byte of the model from every worker to the server and back to every worker."""

PUSHPULL_HEAD = (
    *(
        "case",
        "MB",
        "keys",
        "variant",
        "median ms",
        "quartiles",
        "each repeat",
        "call us",
        "cpu ms",
        "GB/s",
    ),
    *(
        "of memcpy",
        "x stock",
        "range",
        "cpu",
        "x stock ipc",
        "range",
        "cpu",
        "of sockets",
        "range",
        "cpu",
        "x pushpull",
        "range",
        "target",
    ),
)
STOCK_NAMES = (STOCK.name, STOCK_IPC.name)
BESIDE = (*STOCK_NAMES, SOCKETS.name)
MEMORY_HEAD = ("variant", "role", "model MB", "before MB", "peak MB", "bytes per byte", "target")

Worker = Mapping[str, Mapping[str, Any]]
"""What one worker wrote: case -> ``bytes``, ``keys`` and ``times``: begin, calls returned, end; in s. The
first one also has ``load``: what the job had taken of the processors before and after these."""


@dataclass(frozen=True)
class Samples:
    """One case in one job.

    Attributes:
        num_bytes: Bytes of all keys.
        num_keys: Number of keys.
        round_trips_ms: One per iteration, the mean over the workers of the time that each saw.
        calls_us: Likewise, how long one pushpull call took to return.
        cpu_ms: Processor time of all processes in one iteration, with what the workers do outside of the
            round trip: writing gradients and checking sums. ``None`` where it was not measured.
    """

    num_bytes: int
    num_keys: int
    round_trips_ms: tuple[float, ...]
    calls_us: tuple[float, ...]
    cpu_ms: float | None = None


@dataclass(frozen=True)
class Row:
    """One case of one variant over all repeats.

    Attributes:
        case: Name of the case.
        variant: Name of the variant.
        num_bytes: Bytes of all keys.
        num_keys: Number of keys.
        round_trip_ms: Median and quartiles over all iterations of all repeats.
        repeats_ms: Median of each repeat.
        call_us: Median time until one pushpull call returns.
        cpu_ms: Median over the repeats; see ``Samples``.
        bytes_per_s: Bytes that crossed between processes per second of the median round trip.
        ratios: For each peer (``cases.peers_of``) that was measured, its time over this one's, job by job
            (``ratios_of``).
        cpu_ratios: Likewise this one's processor time over the peer's.
        over_pushpull: Of push and then pull, its time over that of pushpull of the same variant, likewise;
            ``None`` for others.
    """

    case: str
    variant: str
    num_bytes: int
    num_keys: int
    round_trip_ms: Spread
    repeats_ms: tuple[float, ...]
    call_us: float
    cpu_ms: float | None
    bytes_per_s: float
    ratios: Mapping[str, Spread]
    cpu_ratios: Mapping[str, Spread]
    over_pushpull: Spread | None = None


def samples_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Samples]]]:
    """Return variant -> the samples of each of its runs by case."""
    samples: dict[str, list[dict[str, Samples]]] = {}
    for run in runs:
        samples.setdefault(run["variant"], []).append(merge_workers(run["workers"]))
    return samples


def merge_workers(workers: Sequence[Worker]) -> dict[str, Samples]:
    """Join what the workers of one job measured, iteration by iteration."""
    return {case: _merge([worker[case] for worker in workers]) for case in workers[0]}


def _merge(workers: Sequence[Mapping[str, Any]]) -> Samples:
    """Join the measurements of one case."""
    num_keys = workers[0]["keys"]
    iterations = list(zip(*(worker["times"] for worker in workers)))
    return Samples(
        workers[0]["bytes"],
        num_keys,
        tuple(1e3 * _mean([end - begin for begin, _, end in times]) for times in iterations),
        tuple(
            1e6 * _mean([called - begin for begin, called, _ in times]) / num_keys for times in iterations
        ),
        _cpu_ms([worker["load"] for worker in workers if worker.get("load")], len(iterations)),
    )


def _cpu_ms(loads: Sequence[Sequence[Mapping[str, float]]], iterations: int) -> float | None:
    """Return the processor time of one iteration, as the worker saw it that looked."""
    for before, after in loads:
        return 1e3 * (after["job_s"] - before["job_s"]) / iterations
    return None


def _mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return sum(values) / len(values)


def summarize(repeats: Mapping[str, Sequence[Mapping[str, Samples]]]) -> list[Row]:
    """Return the rows of the table, case by case.

    Args:
        repeats: Variant -> the samples of each repeat by case; the same repeat of all variants was measured
            at about the same time.
    """
    cases = list(next(iter(repeats.values()))[0])
    return [_row(case, variant, repeats) for case in cases for variant in repeats]


def _row(case: str, variant: str, repeats: Mapping[str, Sequence[Mapping[str, Samples]]]) -> Row:
    """Summarize one case of one variant."""
    own = [repeat[case] for repeat in repeats[variant]]
    trips = quartiles(_pooled(own))
    peers = {
        name: [repeat[case] for repeat in repeats[name]] for name in peers_of(variant) if name in repeats
    }
    cpu = [samples.cpu_ms for samples in own]
    return Row(
        case,
        variant,
        own[0].num_bytes,
        own[0].num_keys,
        trips,
        tuple(median(samples.round_trips_ms) for samples in own),
        median(call for samples in own for call in samples.calls_us),
        median(measured) if (measured := [each for each in cpu if each is not None]) else None,
        BYTES_CROSSING * own[0].num_bytes / (trips.median / 1e3),
        {name: r for name, peer in peers.items() if (r := ratios_of(_times(peer), _times(own)))},
        {name: r for name, peer in peers.items() if (r := ratios_of(cpu, [each.cpu_ms for each in peer]))},
        _over_pushpull(case, variant, repeats),
    )


def _over_pushpull(
    case: str, variant: str, repeats: Mapping[str, Sequence[Mapping[str, Samples]]]
) -> Spread | None:
    """Return the median of the ratios repeat by repeat, and their range."""
    one = repeats.get(variant.removesuffix(IN_TWO_CALLS)) if variant.endswith(IN_TWO_CALLS) else None
    if one is None:
        return None
    two = repeats[variant]
    return ratios_of(_times([each[case] for each in two]), _times([each[case] for each in one]))


def _pooled(repeats: Sequence[Samples]) -> list[float]:
    """Return the round trips of all repeats."""
    return [trip for samples in repeats for trip in samples.round_trips_ms]


def _times(samples: Sequence[Samples]) -> list[float]:
    """Return the median round trip of each job."""
    return [median(each.round_trips_ms) for each in samples]


def verdict(row: Row, targets: Mapping[str, float]) -> str:
    """Say whether a row meets its case's target; empty where there is none."""
    if row.over_pushpull is not None:
        reached = "met" if row.over_pushpull.median <= TWO_CALLS_TARGET else "MISSED"
        return f"<= {TWO_CALLS_TARGET} {reached}"
    target = targets.get(row.case)
    over_peers = [ratio.median for name, ratio in row.ratios.items() if name in STOCK_NAMES]
    if target is None or not over_peers or not row.variant.startswith("2x1"):
        return ""
    return f">= {target} {met(min(over_peers), target)}"


def pushpull_table(rows: Sequence[Row], limit_bytes_per_s: float, targets: Mapping[str, float]) -> str:
    """Return the rows as aligned text, beside the speed at which this machine copies memory."""
    return align(
        [PUSHPULL_HEAD, *((*_cells(row, limit_bytes_per_s), verdict(row, targets)) for row in rows)]
    )


def _cells(row: Row, limit_bytes_per_s: float) -> tuple[str, ...]:
    """Return the texts of one row, without the verdict."""
    trip, over = row.round_trip_ms, row.over_pushpull
    return (
        row.case,
        f"{row.num_bytes / 1e6:.3f}",
        str(row.num_keys),
        row.variant,
        f"{trip.median:.3f}",
        trip.text(),
        each(row.repeats_ms),
        f"{row.call_us:.0f}",
        f"{row.cpu_ms:.2f}" if row.cpu_ms is not None else "",
        f"{row.bytes_per_s / 1e9:.2f}",
        f"{row.bytes_per_s / limit_bytes_per_s:.1%}",
        *(text for name in BESIDE for text in _beside(row, name)),
        f"{over.median:.2f}" if over else "",
        over.text(2) if over else "",
    )


def _beside(row: Row, peer: str) -> tuple[str, str, str]:
    """Return how a row compares with a peer: in time, with the range, and in processor time."""
    ratio, cpu = row.ratios.get(peer), row.cpu_ratios.get(peer)
    return (
        f"{ratio.median:.2f}" if ratio else "",
        ratio.text(2) if ratio else "",
        f"{cpu.median:.2f}" if cpu else "",
    )


def memory_table(measured: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> str:
    """Return peak memory per byte of model as aligned text.

    Args:
        measured: Variant -> for each run what each worker wrote: ``bytes`` of the model, and for each role
            what its processes held ``before`` the keys were made and at their ``peak``, in bytes.
    """
    rows: list[Sequence[str]] = [MEMORY_HEAD]
    for variant, runs in measured.items():
        for workers in runs:
            for role, target in MEMORY_TARGETS.items():
                rows += _memory_rows(variant, role, target, workers)
    return align(rows)


def _memory_rows(
    variant: str, role: str, target: float, workers: Sequence[Mapping[str, Any]]
) -> list[tuple[str, ...]]:
    """Return one row per process of a role; every worker speaks for itself, the first for the servers."""
    speakers = workers if role == "worker" else workers[:1]
    rows = []
    for speaker in speakers:
        for before, peak in zip(speaker["before"][role], speaker["peak"][role]):
            excess = (peak - before) / speaker["bytes"]
            goal = (
                "" if variant in STOCK_NAMES else f"<= {target} {'met' if excess <= target else 'MISSED'}"
            )
            megabytes = (f"{size / 1e6:.0f}" for size in (speaker["bytes"], before, peak))
            rows.append((variant, role, *megabytes, f"{excess:.2f}", goal))
    return rows
