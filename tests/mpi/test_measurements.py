"""What plans need, measured by real jobs: epochs against batches, and links; and what they set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kvstore_mpi.planner import (
    Cluster,
    EpochsCurve,
    Link,
    Net,
    NetLayer,
    plan,
    read_cluster,
    read_curve,
)
from kvstore_mpi.planner.epochs import Measured
from kvstore_mpi.planner.plan_file import write_plan
from kvstore_mpi.planner.row_costs import loads_for
from kvstore_mpi.planner.sending import Way

MPILAUNCH = str(Path(sys.executable).with_name("mpilaunch"))

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

TRAINING = """
import sys
from kvstore_mpi import report_epoch
from kvstore_mpi.epoch_report import asked_delay
from kvstore_mpi.node import process_worker

worker = process_worker("a test", "sync")
needed = {1: 2, 4: 99}[asked_delay()] + int(sys.argv[1])
for epoch in range(1, 6):
    if report_epoch(0.9 if epoch >= needed else 0.1 * epoch):
        break
worker.close()
"""
"""Each larger delay needs more epochs; with 4, more than it makes."""


def run(folder, line):
    """Run a command to its end; return it."""
    return subprocess.run(
        [MPILAUNCH, *line.split()],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=folder,
        env=os.environ,
    )


@pytest.mark.thorough
def test_epochs_are_measured_until_no_run_reaches_the_target(tmp_path):
    """Of three delays the second one does not, and the third is left out; arguments stay the script's."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    options = "--target 0.9 --batch 8 --delays 1,4,8 --workers 1"
    done = run(tmp_path, f"measure-epochs {options} train.py {{repeat}} --batch")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    curve = read_curve((tmp_path / "curve.json").read_bytes())
    assert curve.points == (Measured(8, (2,)), Measured(32, (None,)))
    assert "batch 32: epochs until the target is reached: never" in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("raise SystemExit(3)", "call kvstore_mpi.report_epoch(metric)"),
        ("import kvstore_mpi; kvstore_mpi.report_epoch(1.0)", "use kvstore_mpi.mxnet.DelayedTrainer"),
    ],
)
def test_a_script_that_does_not_do_its_part_is_told_so(tmp_path, body, what):
    """It reports nothing, or its batch is the same each time."""
    (tmp_path / "train.py").write_text(f"{body}\n")
    done = run(tmp_path, "measure-epochs --target 1 --batch 8 train.py")
    assert done.returncode == 64
    assert what in done.stderr
    assert not (tmp_path / "curve.json").exists()


def test_links_are_measured(tmp_path):
    """Between two ranks of this host, which are its devices; the file is one for plans."""
    done = run(tmp_path, "measure-links --workers 2")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    text = (tmp_path / "cluster.toml").read_text()
    cluster = read_cluster(text)
    assert (cluster.hosts, cluster.devices) == (1, 2)
    assert min(cluster.network.bytes_per_s, cluster.within_host.bytes_per_s) > 1e6
    assert 0 < cluster.within_host.latency_s < 1
    assert "# mpi, within host 0: " in text


@pytest.mark.mxnet
@pytest.mark.parametrize(
    "servers", [pytest.param("", marks=pytest.mark.thorough), "--clients 2 --servers 2"]
)
def test_rows_are_measured(tmp_path, servers):
    """Of each load, in seconds of a step; by servers with another number of pieces as well."""
    cluster = Cluster(2, Link(1e5))
    loads = loads_for(cluster, Way.SERVERS if servers else Way.ALLREDUCE)
    program = tmp_path / "measure.py"
    program.write_text("from kvstore_mpi.measured_rows import main\n\nmain()\n")
    job = [*f"--workers 2 {servers}".split(), str(program)]
    command = [MPILAUNCH, *job, "--loads", msgspec.json.encode(loads).decode(), "--output", "told"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path, env=os.environ
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    seconds = msgspec.json.decode((tmp_path / "told").read_bytes(), type=dict[str, float])
    assert seconds.keys() == loads.keys()
    assert all(1e-5 < each < 10 for each in seconds.values())
    assert seconds["many"] > seconds["few"]


TABLES = """
import numpy as np

from kvstore_mpi.node import process_worker

worker = process_worker("a test", "sync")
store = worker.open_store("sync")
for key, pieces in (("planned", 0), ("asked for", 2)):
    value = np.zeros((65536, 16), np.float32)
    worker.init_rows(store, key, value.shape, "float32", value, lambda error: None, partitions=pieces)
worker.flush(60)
print({key: count.pieces for key, count in worker.rows_counted(store).items()})
worker.close()
"""


def test_a_job_cuts_its_tables_as_planned(tmp_path):
    """Into six pieces instead of one for each server; a script that asks for another number gets that."""
    layer = NetLayer("table", 4 << 20, 0.01, 0.02, 65536, 0.01, 0.01)
    net, curve = Net("words", 64, 64_000, (layer,)), EpochsCurve.of({64: 4, 128: 4})
    found = plan(net, Cluster(2, Link(1e9)), curve)
    by_servers = next(each for each in found.options if each.configuration.servers == 2)
    shape = replace(by_servers.configuration, partitions=6)
    # Both hosts are this one.
    here = replace(found, options=(replace(by_servers, configuration=shape),), devices=2)
    (tmp_path / "plan.json").write_bytes(write_plan(here))
    (tmp_path / "train.py").write_text(TABLES)
    done = run(tmp_path, "--plan plan.json train.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("{'planned': 6, 'asked for': 2}") == 2
