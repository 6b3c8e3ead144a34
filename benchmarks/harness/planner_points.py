"""What the planner predicts for points that other benchmarks have measured. It measures nothing itself."""

from __future__ import annotations

from functools import lru_cache
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from kvstore_mpi.p3.slicing import SLICE_ELEMENTS as OWN_SLICE_ELEMENTS
from kvstore_mpi.planner import Cluster, Link, Net, NetLayer, read_cluster
from kvstore_mpi.planner.communication import step_times
from kvstore_mpi.planner.sending import Sites, Way
from kvstore_mpi.planner.store_costs import Rows, ServedRows

from .models import PAPER_SLICE_ELEMENTS, SLICE_SCALE
from .p3_cell import TCP_SHARE
from .p3_summary import MOST_BUSY
from .sparse_ids import draw
from .sparse_models import MODELS
from .sparse_step_summary import ALLREDUCE, HYBRID, SERVERS
from .table import align, each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .models import Model

CLUSTERS = "clusters"
"""Facts of a file: clusters in TOML, as they were measured in the same hour, by ``name_of``."""

P3, SPARSE = "p3-bandwidth", "sparse-step"
"""What files of results say of themselves."""

SINCE = "2026-11-26T235700"
"""Steps of tables that were measured before are those of another store: hosts merged ranges of ids, of
which the last had up to twice the mean, and kept copies of all rows that they had updated."""

WAYS = {ALLREDUCE: Way.ALLREDUCE, SERVERS: Way.SERVERS, HYBRID: Way.HYBRID}
SLICE_ELEMENTS = PAPER_SLICE_ELEMENTS // SLICE_SCALE
"""Of P3's points."""

DRAWINGS = 2

PROCESSES = 2
"""Of a host, a worker and a server, of which each keeps one core busy at most."""

BYTE_OF_A_CORE = 4e-9
"""What the processors of a host with one core take for a byte of dense arrays: fits dense arrays on four
hosts over 500 Mbit/s."""

ROWS_OF_A_CORE = Rows(7.1e-9, 1.06e-4, 7.9e-3, 1.8e-3)
SERVED_ROWS_OF_A_CORE = ServedRows(7.1e-9, 1.06e-4, 7.9e-3, 5.2e-4)
"""Fitted to the steps by servers and by allreduce over ``FITTED_MBIT`` Mbit/s on ``FITTED_CORES`` cores:
least squares of relative errors. All others are predicted so."""

FITTED, FITTED_CORES, FITTED_MBIT = (SERVERS, ALLREDUCE), 2, 200
AnyRows = TypeVar("AnyRows", bound=Rows)
TARGET = 0.1
"""Of the measured time, by which a prediction may be wrong."""

HEAD = (
    "model",
    "hosts",
    "cores",
    "Mbit/s",
    "by",
    "predicted ms",
    "measured ms",
    "each run",
    "error",
    "busy",
    "within",
)


class Compared(NamedTuple):
    """A point, predicted and measured.

    Attributes:
        model: What was replayed.
        hosts: With a worker each, and a server where there are servers.
        cores: That all hosts share.
        mbit: Rate of each link.
        by: How values were sent.
        predicted_s: Seconds of a step.
        runs: Seconds of all runs.
        busy: Share of all cores' time that was not idle, in each run.
        is_measured: What links and processors take was measured by ``mpilaunch measure-links`` just before.
    """

    model: str
    hosts: int
    cores: int
    mbit: float
    by: str
    predicted_s: float
    runs: tuple[float, ...]
    busy: tuple[float, ...]
    is_measured: bool = False

    @property
    def counted(self) -> list[float]:
        """Seconds of the runs that measured the links, and not the cores that all hosts share."""
        return [seconds for seconds, busy in zip(self.runs, self.busy) if busy <= MOST_BUSY]

    @property
    def measured_s(self) -> float:
        """Seconds of a step: the median of what counts, or of all runs where nothing does."""
        return median(self.counted or self.runs)

    @property
    def error(self) -> float:
        """By which share of the measured time the prediction is off; less than 0 where it is too short."""
        return self.predicted_s / self.measured_s - 1

    @property
    def is_fitted(self) -> bool:
        """Whether what processors take was fitted to this point."""
        return (
            not self.is_measured
            and self.by in FITTED
            and (self.cores, self.mbit) == (FITTED_CORES, FITTED_MBIT)
        )

    @property
    def met(self) -> bool:
        """Whether the error is small enough."""
        return abs(self.error) <= TARGET


def is_current(file: Mapping[str, Any]) -> bool:
    """Return whether a file of results has steps of the store as it is, and not those of a store before."""
    return bool(file["what"] != SPARSE or file["date"] >= SINCE)


def compared(files: Iterable[Mapping[str, Any]], load: Callable[[str], Model]) -> list[Compared]:
    """Return all points of ours in some files of results.

    Args:
        files: Of ``p3_bandwidth.py`` and ``sparse_step.py``.
        load: Returns a model whose traffic the first of these replays.
    """
    points: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for file in files:
        measured = file["facts"].get(CLUSTERS, {})
        for run in file["runs"]:
            if file["what"] == P3 and run["variant"] == "ours-p3":
                where = tuple(run["point"][name] for name in ("model", "hosts", "bits_per_s", "compute_s"))
                points.setdefault((P3, file["cores"], *where), []).append(run)
            elif file["what"] == SPARSE and run["variant"] in WAYS:
                where = tuple(run[name] for name in ("model", "hosts", "mbit", "variant"))
                cluster = measured.get(name_of(run["hosts"], run["mbit"]), "")
                points.setdefault((SPARSE, file["cores"], *where, cluster), []).append(run)
    found = []
    for (kind, cores, *_, last), runs in sorted(points.items(), key=lambda item: item[0]):
        found.append(_of_p3(runs, cores, load) if kind == P3 else _of_sparse(runs, cores, last))
    return found


def name_of(hosts: int, mbit: float) -> str:
    """Return the name among ``CLUSTERS`` of ``hosts`` hosts with links of this rate."""
    return f"{hosts} hosts, {mbit:g} Mbit/s"


def _of_p3(runs: Sequence[Mapping[str, Any]], cores: int, load: Callable[[str], Model]) -> Compared:
    point = runs[0]["point"]
    net = p3_net(load(point["model"]), point["compute_s"])
    cluster = Cluster(point["hosts"], Link(point["bytes_per_s"], point["latency_s"]))
    times = step_times(
        net, Sites(cluster.hosts, 1), cluster, Way.SERVERS, servers=cluster.hosts, slices=(SLICE_ELEMENTS,)
    )
    return Compared(
        point["model"],
        cluster.hosts,
        cores,
        point["bits_per_s"] / 1e6,
        "p3",
        times.step_s,
        tuple(run["iteration_s"] for run in runs),
        tuple(run["busy"] for run in runs),
    )


def p3_net(model: Model, compute_s: float) -> Net:
    """Return what a step of a model computes and sends."""
    layers = [
        NetLayer("", layer.num_bytes, layer.forward_s, layer.backward_s)
        for layer in model.layers(compute_s)
    ]
    return Net(model.name, 1, 1, tuple(layers))


def _of_sparse(runs: Sequence[Mapping[str, Any]], cores: int, measured: str) -> Compared:
    first = runs[0]
    cluster = read_cluster(measured) if measured else _assumed(first["hosts"], first["mbit"], cores)
    way = WAYS[first["variant"]]
    servers = 0 if way is Way.ALLREDUCE else cluster.hosts
    net = sparse_net(first["model"], cluster.hosts)
    return Compared(
        first["model"],
        cluster.hosts,
        cores,
        first["mbit"],
        first["variant"],
        step_times(
            net,
            Sites(cluster.hosts, 1),
            cluster,
            way,
            servers=servers,
            slices=(OWN_SLICE_ELEMENTS,),
            pieces=(0,),
        ).step_s,
        tuple(run["median_s"] for run in runs),
        tuple(run["busy"] for run in runs),
        is_measured=bool(measured),
    )


def _assumed(hosts: int, mbit: float, cores: int) -> Cluster:
    """Return the cluster where nobody has measured what processors take there."""
    share = max(hosts / cores, 1 / PROCESSES)  # of a core, for which a host's processes wait
    return Cluster(
        hosts,
        Link(TCP_SHARE * mbit * 1e6 / 8),
        rows_allreduce=_shared(ROWS_OF_A_CORE, share),
        rows_servers=_shared(SERVED_ROWS_OF_A_CORE, share),
        byte_s=share * BYTE_OF_A_CORE,
    )


def _shared(rows: AnyRows, share: float) -> AnyRows:
    return type(rows)(*(each * share for each in msgspec.structs.astuple(rows)))


@lru_cache
def sparse_net(name: str, hosts: int) -> Net:
    """Return what a step of one worker sends; it computes nothing, so that a nanosecond stands for that."""
    [model] = [each for each in MODELS if each.name == name]
    layers = []
    for key, table in enumerate(model.tables):
        drawn = [
            np.concatenate(
                [
                    draw(table.rows, table.touched, table.exponent, rank, number, key)
                    for rank in range(hosts)
                ]
            )
            for number in range(DRAWINGS)
        ]
        union = fmean(np.unique(ids).size for ids in drawn)
        size, touched = 4 * table.rows * table.width, table.touched / table.rows
        layers.append(NetLayer(f"table{key}", size, 0.0, 0.0, table.rows, touched, union / table.rows))
    dense = [NetLayer(f"dense{key}", 4 * size, 0.0, 0.0) for key, size in enumerate(model.dense)]
    return Net(name, 1, 1, (*layers, *dense), other_s=1e-9)


def table(points: Sequence[Compared]) -> str:
    """Return a line for each point, and what they say together."""
    rows = [
        (
            point.model,
            str(point.hosts),
            str(point.cores),
            f"{point.mbit:.0f}",
            point.by,
            f"{1e3 * point.predicted_s:.0f}",
            f"{1e3 * point.measured_s:.0f}",
            each(point.runs, 0, 1e3),
            f"{point.error:+.1%}",
            f"{fmean(point.busy):.2f}",
            _verdict(point),
        )
        for point in points
    ]
    return "\n".join([align([HEAD, *rows]), *_verdicts(points)])


def _verdict(point: Compared) -> str:
    if not point.counted:
        return "CPU-bound"
    return ("yes" if point.met else "NO") + (" (fitted)" if point.is_fitted else "")


def _verdicts(points: Sequence[Compared]) -> list[str]:
    lines = []
    for by in sorted({point.by for point in points}):
        counted = [point for point in points if point.by == by and point.counted]
        if counted:
            middle = median(abs(point.error) for point in counted)
            worst = max(abs(point.error) for point in counted)
            met = sum(point.met for point in counted)
            lines.append(
                f"{by}: {met} of {len(counted)} within {TARGET:.0%}; error {middle:.1%} in the middle, "
                f"{worst:.1%} at most"
            )
    return lines
