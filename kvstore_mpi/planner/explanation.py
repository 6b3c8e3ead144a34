"""A plan for people: what is best, what it waits for, what is next, why not data parallelism alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.planner.speedup import least_model_speedup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.planner.communication import Other
    from kvstore_mpi.planner.planning import Option, Plan

SHOWN = 8
HEAD = ("configuration", "devices", "batch", "T ms", "S", "E", "C s", "idle", "x best")


def explain(plan: Plan) -> str:
    """Return the whole text."""
    return "\n".join(_lines(plan))


def table(plan: Plan, shown: int = SHOWN) -> str:
    """Return the first options as aligned lines."""
    rows = [HEAD, *(_row(each, plan.best) for each in plan.options[:shown])]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:]))]
        )
        for row in rows
    )


def _row(option: Option, best: Option) -> tuple[str, ...]:
    return (
        str(option.configuration),
        str(option.configuration.devices),
        str(option.batch),
        f"{1e3 * option.step_s:.2f}",
        f"{option.steps:.1f}",
        f"{option.epochs:.2f}{'*' if option.extrapolated else ''}",
        f"{option.total_s:.4g}",
        f"{option.idle:.1%}",
        f"{option.total_s / best.total_s:.3f}",
    )


def _lines(plan: Plan) -> Iterator[str]:
    best = plan.best
    yield f"{plan.net or 'this net'}: {best.configuration}, {best.total_s:.4g} s = T x S x E"
    yield table(plan)
    if any(each.extrapolated for each in plan.options[:SHOWN]):
        yield "* a smaller batch than all that were measured: it needs no more epochs than this"
    yield _critical_path(best)
    workers = plan.best_workers
    if workers is not None and workers.cut is not None:
        gap = f"; another placement may take up to {workers.gap:.1%} less" if workers.gap else ""
        yield f"each worker: {workers.cut}{gap}"
    if workers is not None and workers.chain is not None:
        yield f"its longest chain: {workers.chain}"
    yield f"idle: {best.idle:.1%} of the devices' time"
    yield from _sizes(best)
    yield from _next_best(plan)
    yield from _against_data_parallelism(plan)
    for each in plan.left_out:
        yield f"not ranked: {each.configuration}: {each.why}"


def _critical_path(option: Option) -> str:
    if not option.link:
        return f"critical path: compute alone, {1e3 * option.compute_s:.2f} ms; nothing is sent"
    crossing = f"the {option.link} link is busy for {1e3 * option.crossing_s:.2f} ms of it"
    exposed = f"{1e3 * (option.step_s - option.compute_s):.2f}"
    if not option.waits_for:
        late = f" but for {exposed} ms: what is under way cannot be overtaken" if float(exposed) else ""
        return (
            f"critical path: compute, {1e3 * option.compute_s:.2f} ms; {crossing}, hidden behind it{late}"
        )
    return (
        f"critical path: backward to {option.waits_for}, then {exposed} ms in which its forward pass "
        f"waits for its values and those of all layers before it; {crossing}"
    )


def _sizes(option: Option) -> Iterator[str]:
    """Say which slices and pieces were chosen among several, and what the next best would cost."""
    chosen = option.configuration
    if option.other_slices is not None and option.other_slices.more_s:  # else no layer is larger than one
        yield f"elements of a slice: {chosen.slice_elements}; {_instead(option.other_slices, option)}"
    if option.other_partitions is not None:
        other = _instead(option.other_partitions, option)
        yield f"largest table in pieces: {chosen.partitions}; {other}"


def _instead(other: Other, option: Option) -> str:
    what = "more" if other.more_s >= 0 else "less, which is too little to count"
    milliseconds, share = 1e3 * abs(other.more_s), abs(other.more_s) / option.step_s
    return f"with {other.number} a step would take {milliseconds:.2f} ms ({share:.1%}) {what}"


def _next_best(plan: Plan) -> Iterator[str]:
    if len(plan.options) > 1:
        other = plan.options[1]
        more = other.total_s - plan.best.total_s
        yield f"next best: {other.configuration}, {more:.3g} s more ({more / plan.best.total_s:.1%})"


def _against_data_parallelism(plan: Plan) -> Iterator[str]:
    best, plain = plan.best, plan.best_data_parallel
    if best.configuration.ways == 1:
        tried = [each for each in plan.options if each.configuration.ways > 1]
        if not tried:
            yield "plain data parallelism is best: no workers of several devices could be compared"
            return
        lost = tried[0].total_s / best.total_s - 1
        yield f"plain data parallelism is best: {tried[0].configuration} would cost {lost:.1%} more"
        return
    if plain is None:
        yield "data parallelism alone was not ranked"
        return
    yield (
        f"why not data parallelism alone: its best, {plain.configuration}, costs "
        f"{plain.total_s / best.total_s - 1:.1%} more"
    )
    yield from _equation_6(plan)


def _equation_6(plan: Plan) -> Iterator[str]:
    """Say what equation (6) says of as many devices, all of them data-parallel."""
    best = plan.best
    same = (each for each in plan.options if each.configuration.ways == 1)
    many = next((each for each in same if each.configuration.devices == best.configuration.devices), None)
    if many is None:
        return
    ways = best.configuration.ways
    ratio, efficiency = best.epochs / many.epochs, many.efficiency / best.efficiency
    speedup = many.compute_s / best.compute_s
    needed = least_model_speedup(ways, efficiency, ratio)
    yield (
        f"equation (6), {best.configuration.devices} devices: SU^{ways} = {speedup:.3f} > "
        f"{needed:.3f} = {ways} x {efficiency:.3f} (SE) x {ratio:.3f} "
        f"(E {best.epochs:.2f} / {many.epochs:.2f})"
    )
