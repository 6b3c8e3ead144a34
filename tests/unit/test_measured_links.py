"""What ``mpilaunch measure-links`` makes of measured links and steps, without a job."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace as replace_fields

from kvstore_mpi.errors import UsageError
from kvstore_mpi.measured_links import Pair, cluster_of
from kvstore_mpi.measured_slices import load_for, slice_seconds
from kvstore_mpi.planner import Cluster, Link
from kvstore_mpi.planner.cluster import read_cluster, write_cluster
from mpilaunch import cli, measure_links
from mpilaunch.jobspec import Target


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
    """Have jobs of ``measure_slices`` take 0.1 s a step, and 10 ms more with small slices; return them."""
    found = []

    def run_job(spec):
        found.append(spec.node)
        output = spec.command[spec.command.index("--output") + 1]
        Path(output).write_text(f"{0.11 if spec.node.slice_elements == 12_500 else 0.1}\n")
        return SimpleNamespace(code=0)

    monkeypatch.setattr(cli, "run_job", run_job)
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
    expected = replace_fields(cluster, slice_s=1.6e-5) if number else cluster  # 0.01 / 620
    assert read_cluster(path.read_text()) == expected
    assert path.read_text().startswith("# measured\n# today\n")
    assert [*tmp_path.iterdir()] == [path]
