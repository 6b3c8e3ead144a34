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
from kvstore_mpi.planner.communication import step_times
from kvstore_mpi.planner.sending import Sites, Way

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from harness.models import sockeye  # noqa: E402  after the path
from harness.planner_points import P3, SPARSE, Compared, compared, is_current, p3_net, table  # noqa: E402
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
    """Two to eight hosts, by servers, by allreduce and by both, over 100 to 500 Mbit/s."""
    names = ("grid", "alpha", "dense-nmt", "again-ctr", "again-dense", "again-lm")
    measured = files(*(f"{SPARSE}-{name}.json" for name in names))
    assert all(map(is_current, measured))
    points = [point for point in compared(measured, None) if point.counted]
    assert len(points) == 106
    assert [point for point in points if not point.met] == []
    fitted = [point for point in points if point.is_fitted]
    assert {(point.mbit, point.by) for point in fitted} == {(200.0, "allreduce"), (200.0, "servers")}
    assert len(fitted) == 31


@pytest.mark.parametrize(("hosts", "number", "counts"), [(2, 12, 12), (4, 12, 9), (8, 6, 2)])
def test_steps_on_a_measured_cluster_are_predicted_within_10_percent(hosts, number, counts):
    """By what ``mpilaunch measure-links`` had written of these hosts just before."""
    points = compared(files(f"planner-model-{SPARSE}-{hosts}.json"), None)
    assert len(points) == number
    assert all(point.is_measured and not point.is_fitted for point in points)
    counted = [point for point in points if point.counted]
    assert len(counted) == counts
    assert [point for point in counted if not point.met] == []


def test_steps_of_a_store_that_has_changed_are_left_out():
    """Of tables alone."""
    assert [*map(is_current, files("sparse-step.json", f"{P3}-sockeye.json"))] == [False, True]


def test_of_the_pieces_that_were_measured_the_best_number_would_be_chosen():
    """Two clients, two servers, two cores, a table in 1 to 16 pieces: within 12 % of what steps took.

    Nothing crosses a link there, so that a byte takes 3.9 ns instead of 7.1, and a message as much.
    """
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
        seconds = 3.9e-9 * cost.handled(even, pair, share) + 1.07e-4 * busiest.messages
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
