"""What was decided for each key of a store, and what came of it: for people, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.hybrid.routes import Form, Route, Way, traffic_of_workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvstore_mpi.hybrid.cost import Cluster, Table
    from kvstore_mpi.hybrid.density import Density
    from kvstore_mpi.hybrid.routes import Prices

_UNITS = ("B", "kB", "MB", "GB", "TB")
_STEP = 1000
_THREE_DIGITS = 999.5


class KeyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One key.

    Attributes:
        key: Its name.
        route: Who sums it.
        form: What travels of it.
        forced: The user has chosen the route.
        rows: Number of rows.
        row_bytes: Bytes of the values of one row, as it travels.
        partitions: Into how many pieces the servers' copy is cut; 0 if it is none of rows.
        layout: How, ``rows`` or ``row_ranges``.
        alpha_rank: Share of the rows that one rank touches in a step; ``None`` if that is not known.
        alpha_machine: That the ranks of one machine touch together.
        alpha_job: That all ranks touch together.
        predicted_bytes: That the workers of a machine send and receive of this key in a step, to and from
            each other and the servers, wherever these are, of a dense key the values alone; ``None`` before
            its density is known.
        measured_bytes: The same, as counted; ``None`` if nothing has been.
        computed: ``measured_bytes`` is what the cost model says of sums that have been made: what MPI and
            shared memory move for a sum is counted by nobody.
    """

    key: int | str
    route: Route
    form: Form
    forced: bool = False
    rows: int = 0
    row_bytes: int = 0
    partitions: int = 0
    layout: str = ""
    alpha_rank: float | None = None
    alpha_machine: float | None = None
    alpha_job: float | None = None
    predicted_bytes: float | None = None
    measured_bytes: float | None = None
    computed: bool = False


class Plan(msgspec.Struct, frozen=True):
    """All keys of a store, in the order in which they were initialised; ``str`` gives a table."""

    keys: tuple[KeyPlan, ...]

    def __str__(self) -> str:
        """Return a table with a line for each key, and one for all."""
        lines = [_HEADER, *(_line(each) for each in self.keys)]
        if len(self.keys) > 1:
            measured = _size(self.measured_bytes) + _COMPUTED * any(each.computed for each in self.keys)
            lines.append(("all", *[""] * 8, _size(self.predicted_bytes), measured))
        return _aligned(lines)

    @property
    def predicted_bytes(self) -> float | None:
        """Of all keys; ``None`` if those of some are not known."""
        return _sum(each.predicted_bytes for each in self.keys)

    @property
    def measured_bytes(self) -> float | None:
        """Of all keys, counted or computed; ``None`` if those of some are not known."""
        return _sum(each.measured_bytes for each in self.keys)

    def to_json(self) -> str:
        """Return the plan as JSON, for ``from_json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read what ``to_json`` made.

        Raises:
            UsageError: The text is nothing of the kind; the error says where.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise UsageError(f"this is not the JSON of a plan: {error}") from None


def plan_key(
    key: int | str,
    way: Way,
    table: Table,
    *,
    density: Density | None,
    cluster: Cluster,
    prices: Prices,
    forced: bool = False,
    layout: str = "",
    measured_bytes: float | None = None,
    was_summed: bool = False,
) -> KeyPlan:
    """Return the record of a key, with the bytes that are predicted for it; the rest is in ``KeyPlan``.

    ``was_summed``: the workers have summed it among themselves.
    """
    predicted = None
    if density is not None:
        predicted = traffic_of_workers(way, table, density, cluster, prices).num_bytes
    rank, machine, job = density or (None, None, None)
    return KeyPlan(
        key=key,
        route=way.route,
        form=way.form,
        forced=forced,
        rows=table.rows,
        row_bytes=table.row_bytes,
        partitions=table.pieces if way == Way(Route.SERVERS, Form.ROWS) else 0,
        layout=layout,
        alpha_rank=rank,
        alpha_machine=machine,
        alpha_job=job,
        predicted_bytes=predicted,
        measured_bytes=predicted if was_summed else measured_bytes,
        computed=was_summed and predicted is not None,
    )


_COMPUTED = " (computed)"
_HEADER = (
    *("key", "route", "form", "rows", "bytes/row", "alpha", "of a machine", "of the job", "partitions"),
    *("predicted/step", "measured/step"),
)
_TEXTS = 3
"""Columns from the left that are texts, and begin on one line; the others end on one."""


def _line(key: KeyPlan) -> tuple[str, ...]:
    partitions = f"{key.partitions} ({key.layout})" if key.partitions else "-"
    return (
        str(key.key),
        key.route.value + " (forced)" * key.forced,
        key.form.value,
        str(key.rows),
        str(key.row_bytes),
        *map(_share, (key.alpha_rank, key.alpha_machine, key.alpha_job)),
        partitions,
        _size(key.predicted_bytes),
        _size(key.measured_bytes) + _COMPUTED * key.computed,
    )


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < _TEXTS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def _sum(sizes: Iterable[float | None]) -> float | None:
    total = 0.0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"


def _size(num_bytes: float | None) -> str:
    """Return a size with three digits."""
    if num_bytes is None:
        return "-"
    unit = 0
    while num_bytes >= _THREE_DIGITS and unit < len(_UNITS) - 1:
        num_bytes /= _STEP
        unit += 1
    return f"{num_bytes:.3g} {_UNITS[unit]}"
