"""``--set slice_elements auto``: larger slices where a job has one host."""

from __future__ import annotations

import pytest

from kvstore_mpi.config import NodeConfig
from mpilaunch.hosts.hostlist import Placement
from mpilaunch.jobspec import JobSpec, Target
from mpilaunch.slices import with_slices

HERE = None
ONE = Placement(("a",), (("a", "a"),), ("a",))
TWO = Placement(("a", "b"), (("a", "b"),), ("a",))


@pytest.mark.parametrize(
    ("placement", "settings", "elements"),
    [
        (HERE, {"num_servers": 1}, 1_000_000),
        (ONE, {"num_servers": 1}, 1_000_000),
        (HERE, {}, 1_000_000),  # pure MPI
        (TWO, {"num_servers": 1}, 50_000),
        (TWO, {}, 50_000),
        # A large key is spread over all servers.
        (HERE, {"num_servers": 4}, 250_000),
        (HERE, {"num_servers": 64}, 50_000),
        # Bytes travel, though within the host.
        (HERE, {"num_servers": 1, "transport": "ipc"}, 50_000),
        (HERE, {"num_servers": 1, "transport": "tcp"}, 50_000),
        # What the user says counts.
        (HERE, {"num_servers": 1, "slice_elements": 50_000}, 50_000),
        (TWO, {"num_servers": 1, "slice_elements": 7}, 7),
    ],
)
def test_slices_of_a_job(placement, settings, elements):
    """On a link those of P3; within a host, where references travel, larger ones."""
    spec = JobSpec(Target.SCRIPT, ("w.py",), NodeConfig(**settings))
    assert with_slices(spec, placement).node.largest_slice == elements
