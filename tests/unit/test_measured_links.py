"""What ``mpilaunch measure-links`` makes of measured links and steps, without a job."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace as replace_fields

from kvstore_mpi.errors import UsageError
from kvstore_mpi.measured_links import Pair, cluster_of
from kvstore_mpi.measured_slices import byte_seconds, load_for, slice_seconds
from kvstore_mpi.planner import Cluster, Link
from kvstore_mpi.planner.cluster import read_cluster, write_cluster
from kvstore_mpi.planner.row_costs import loads_for, row_costs
from kvstore_mpi.planner.sending import Way
from mpilaunch import cli
from mpilaunch.jobspec import Target
from mpilaunch.planning import measure_links


def test_the_slowest_pair_of_a_kind_counts():
    """Between hosts MPI and TCP alike; within a host, MPI; on one host, TCP stands for a network."""
    hosts = [[0, 1], [2, 3, 4], [5, 6]]
    pairs = [
        Pair("mpi", (0, 1), 2e-5, 3e9),
        Pair("tcp", (0, 2), 5e-5, 1e9),
        Pair("mpi", (1, 1), 1e-6, 9e9),
        Pair("mpi", (2, 2), 2e-6, 8e9),
    ]
    assert cluster_of(pairs, hosts) == Cluster(3, Link(1e9, 5e-5), 2, Link(8e9, 2e-6))
    alone = [Pair("mpi", (0, 0), 1e-6, 9e9), Pair("tcp", (0, 0), 1e-5, 2e9)]
    assert cluster_of(alone, [[0, 1]]) == Cluster(1, Link(2e9, 1e-5), 2, Link(9e9, 1e-6))
    with pytest.raises(UsageError, match="--workers 2 or more"):
        measure_links.run([], io.StringIO())


def test_a_slice_costs_what_steps_of_many_take_longer():
    """Two hosts exchange ten keys of two large slices: 640 small ones, 620 more than large ones."""
    load = load_for(2, 1e9)
    assert (load.keys, load.elements, load.steps, load.more_messages) == (10, 800_000, 30, 620)
    assert slice_seconds([0.1, 0.12], [0.141, 0.141], load) == 5e-5  # 0.031 / 620
    assert slice_seconds([0.1, 0.142], [0.141, 0.141], load) is None


def test_slow_links_are_not_measured_for_minutes():
    """A large slice to each of eight servers takes two seconds, and six steps must do."""
    load = load_for(8, 1e7)
    assert (load.keys, load.elements, load.steps) == (1, 3_200_000, 6)


@pytest.fixture
def jobs(monkeypatch):
    """Have jobs take 0.1 s a step, and 10 ms more with small slices, or 50 ms for rows; return them."""
    found = []

    def run_job(spec):
        found.append(spec.node)
        told = f"{0.11 if spec.node.slice_elements == 12_500 else 0.1}\n"
        if "--loads" in spec.command:
            loads = json.loads(spec.command[spec.command.index("--loads") + 1])
            told = json.dumps(dict.fromkeys(loads, 0.05))
        if "kvstore_mpi.measured_links" in spec.command:
            told = write_cluster(Cluster(2, Link(1e9)), "measured")
        Path(spec.command[spec.command.index("--output") + 1]).write_text(told)
        return SimpleNamespace(code=0)

    monkeypatch.setattr(cli, "run_job", run_job)
    monkeypatch.setattr(measure_links, "find_spec", lambda name: name)  # MXNet is not there for each Python
    return found


@pytest.mark.parametrize(("hosts", "workers", "number"), [(1, 2, 0), (2, 4, 4), (2, 3, 0)])
def test_what_a_slice_costs_is_measured_between_hosts(tmp_path, jobs, hosts, workers, number):
    """Each of several is a client with a server, where all can have as many workers; remarks stay."""
    path = tmp_path / "cluster.toml"
    cluster = Cluster(hosts, Link(1e9))
    path.write_text(write_cluster(cluster, "measured\ntoday"))
    spec, _ = cli.read_job(["--workers", str(workers)], Target.EXECUTABLE, ("true",))
    assert measure_links.measure_slices(spec, path, io.StringIO()) == 0
    shapes = [(each.num_clients, each.num_workers, each.num_servers, each.slice_elements) for each in jobs]
    assert shapes == 2 * [(2, 4, 2, 400_000), (2, 4, 2, 12_500)] if number else not shapes
    expected = replace_fields(cluster, slice_s=1.6e-5, byte_s=3.05e-9) if number else cluster  # 0.01 / 620
    assert read_cluster(path.read_text()) == expected
    assert path.read_text().startswith("# measured\n# today\n")
    assert [*tmp_path.iterdir()] == [path]


def test_bytes_take_what_links_do_not_hide():
    """As long as the link, they make a step 2^(1/2.5) times as long; the faster of both kinds tells."""
    load, cluster = load_for(2, 1e9), Cluster(2, Link(1e9), slice_s=0.0)
    links = load.crossing * 4 / 1e9
    both = 2 ** (1 / 2.5) * links
    assert byte_seconds([both], [9.0], load, cluster) == pytest.approx(1e-9, rel=1e-2)
    assert byte_seconds([9.0], [both], load, cluster) == pytest.approx(1e-9, rel=1e-2)
    assert byte_seconds([1.07 * links], [9.0], load, cluster) == 0


@pytest.mark.parametrize(("hosts", "workers", "number"), [(1, 2, 0), (2, 4, 10), (2, 3, 0)])
def test_what_rows_cost_is_measured_between_hosts(tmp_path, jobs, hosts, workers, number):
    """By servers, a client and a server on each host, and by one client; each five times."""
    path = tmp_path / "cluster.toml"
    cluster = Cluster(hosts, Link(1e9), workers // hosts, slice_s=1e-5)
    path.write_text(write_cluster(cluster, "measured\ntoday"))
    spec, _ = cli.read_job(["--workers", str(workers)], Target.EXECUTABLE, ("true",))
    assert measure_links.measure_rows(spec, path, io.StringIO()) == 0
    shapes = [(each.num_clients, each.num_workers, each.num_servers) for each in jobs]
    assert shapes == (5 * [(2, 4, 2)] + 5 * [(1, 4, 0)] if number else [])
    found = read_cluster(path.read_text())
    if number:
        seconds = dict.fromkeys(loads_for(cluster, Way.SERVERS), 0.05)
        loads = loads_for(cluster, Way.SERVERS)
        assert found.rows_servers == row_costs(cluster, Way.SERVERS, loads, seconds, cluster.rows_servers)
        assert "# rows of tables by allreduce: steps of few 50.0 ms, " in path.read_text()
    kept = replace_fields(found, rows_servers=cluster.rows_servers, rows_allreduce=cluster.rows_allreduce)
    assert kept == cluster
    assert path.read_text().startswith("# measured\n# today\n")
    assert [*tmp_path.iterdir()] == [path]


def test_the_command_measures_links_slices_and_rows(tmp_path, jobs):
    """One after the other, into one file; it says so."""
    path, out = tmp_path / "cluster.toml", io.StringIO()
    assert measure_links.run(["--workers", "2", "--output", str(path)], out) == 0
    assert len(jobs) == 1 + 4 + 10
    remarks = [line for line in path.read_text().splitlines() if line.startswith("# ")]
    starts = (
        "# measured",
        "# a slice: ",
        "# rows of tables by servers: ",
        "# rows of tables by allreduce: ",
    )
    assert all(map(str.startswith, remarks, starts))
    assert len(remarks) == len(starts)
    assert out.getvalue().splitlines()[-1] == f"{path}: for mpilaunch plan --cluster"


def test_without_mxnet_rows_are_not_measured(tmp_path, jobs, monkeypatch):
    """Which the file says; plans then take what was measured elsewhere."""
    path = tmp_path / "cluster.toml"
    path.write_text(write_cluster(Cluster(2, Link(1e9))))
    monkeypatch.setattr(measure_links, "find_spec", lambda _: None)
    spec, _ = cli.read_job(["--workers", "2"], Target.EXECUTABLE, ("true",))
    assert measure_links.measure_rows(spec, path, io.StringIO()) == 0
    assert not jobs
    assert read_cluster(path.read_text()) == Cluster(2, Link(1e9))
    assert "# rows of tables: not measured, since mxnet is not installed" in path.read_text()
