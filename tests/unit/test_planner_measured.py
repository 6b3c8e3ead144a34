"""The planner's model of communication beside steps that benchmarks have measured over limited links."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from kvstore_mpi.hybrid import cost
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.planner import Cluster, Link
from kvstore_mpi.planner.communication import Sites, Way, step_times

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from harness.models import sockeye  # noqa: E402  after the path
from harness.planner_points import P3, ROWS_OF_A_CORE, SPARSE, Compared, compared, p3_net, table  # noqa: E402
from harness.sparse_ids import draw  # noqa: E402  after the path


def files(*names):
    return [json.loads((BENCHMARKS / "results" / name).read_text()) for name in names]


def test_steps_of_p3_are_predicted_within_3_percent():
    """A translation model on four hosts, over links from half of what it needs to three times as much."""
    points = compared(files(f"{P3}-sockeye.json", f"{P3}-sockeye-compute-4.json"), lambda _: sockeye())
    assert len(points) == 7
    assert max(abs(point.error) for point in points) <= 0.03


@pytest.mark.mxnet
def test_of_the_slices_that_were_measured_the_fastest_would_be_chosen():
    """ResNet-50 on four hosts, slices of 2,500 to 50,000 elements: all are within 3 % of what they took."""
    zoo = pytest.importorskip("harness.zoo")
    [file] = files("p3-slices.json")
    runs = [run for run in file["runs"] if run["slice_elements"]]
    point = runs[0]["point"]
    cluster = Cluster(point["hosts"], Link(point["bytes_per_s"], point["latency_s"]))
    measured = {
        elements: median(run["iteration_s"] for run in runs if run["slice_elements"] == elements)
        for elements in {run["slice_elements"] for run in runs}
    }
    net = p3_net(zoo.load(point["model"]), point["compute_s"])
    found = {
        elements: step_times(net, Sites(4, 1), cluster, Way.SERVERS, servers=4, slices=(elements,)).step_s
        for elements in measured
    }
    assert min(found, key=found.get) == min(measured, key=measured.get) == 12_500
    assert max(abs(found[each] / measured[each] - 1) for each in measured) <= 0.03


def test_steps_of_an_allreduce_and_of_tables_are_predicted_within_10_percent():
    """By servers, by allreduce and by both, over 100 to 500 Mbit/s."""
    measured = files(*(f"{SPARSE}-2026-11-23T{time}.json" for time in ("132759", "184221", "183634")))
    points = compared(measured, lambda _: sockeye())
    assert len(points) == 27
    assert [(point.model, point.mbit, point.by) for point in points if not point.met] == []
    assert "servers: 9 of 9 within 10%" in table(points)


@pytest.mark.parametrize(
    ("name", "model"), [("184707", "lm"), pytest.param("185534", "ctr", marks=pytest.mark.thorough)]
)
def test_what_processors_take_is_fitted_to_some_points_and_holds_for_others(name, model):
    """Two hosts, by servers and by both: a language model with two tables, a recommender with 26."""
    points = compared(files(f"{SPARSE}-2026-11-23T{name}.json"), None)
    two = [point for point in points if point.hosts == 2 and point.by != "allreduce"]
    assert [(point.model, point.is_fitted) for point in two] == [(model, False)] * 2
    assert max(abs(point.error) for point in two) <= 0.1


@pytest.mark.thorough
def test_what_processors_take_holds_on_a_machine_with_more_of_them():
    """Sixteen cores instead of the two that it was fitted to: by both and by allreduce."""
    names = ("ctr", "ctr-2", "ctr-8", "ctr-500", "lm")
    points = compared(files(*(f"{SPARSE}-16-cores-{name}.json" for name in names)), None)
    by_workers = [point for point in points if point.by != "servers"]
    assert [(point.cores, point.is_fitted) for point in by_workers] == [(16, False)] * 6
    assert max(abs(point.error) for point in by_workers) <= 0.1


def test_of_the_pieces_that_were_measured_the_best_number_would_be_chosen():
    """Two clients, two servers, two cores, a table in 1 to 16 pieces: within 12 % of what steps took."""
    [file] = files("partitions.json")
    facts, pair = file["facts"], cost.Cluster(2, 2)
    drawn = [draw(facts["rows"], facts["touched"], 1.0, rank, 0) for rank in range(2)]
    touched, union = (size / facts["rows"] for size in (facts["touched"], np.unique(drawn).size))
    predicted, measured = {}, {}
    for pieces in (1, 2, 4, 8, 16):
        table, share = cost.Table(facts["rows"], 4 * facts["dim"], pieces), cost.share_of(pieces, pair)
        even, busiest = (
            cost.rows_servers(table, Density(touched, touched, union), pair, cost.Wire(), share=each)
            for each in (0.5, share)
        )
        rows = ROWS_OF_A_CORE
        seconds = rows.byte_s * cost.handled(even, pair, share) + rows.message_s * busiest.messages
        runs = [run["step_s"] for run in file["runs"] if run["asked"] == str(pieces)]
        predicted[pieces], measured[pieces] = seconds, median(runs)
    assert min(predicted, key=predicted.get) == min(measured, key=measured.get) == 2
    assert max(abs(predicted[each] / measured[each] - 1) for each in measured) <= 0.12


def test_what_the_processors_limit_is_not_counted():
    """Of a point those runs count in which the cores had time to spare."""
    busy = Compared("ctr", 4, 2, 500.0, "servers", 0.06, (0.13, 0.12), (0.92, 0.9))
    assert not busy.counted
    assert busy._replace(busy=(0.92, 0.5)).counted == [0.12]
    lines = table([busy, busy._replace(mbit=200.0, busy=(0.5, 0.5))]).splitlines()
    assert [line.split()[-1] for line in lines[2:4]] == ["CPU-bound", "(fitted)"]
    assert lines[4].startswith("servers: 0 of 1 within 10%")
