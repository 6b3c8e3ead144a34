"""Options that have no effect in some kinds of jobs: said once, in the first lines."""

from __future__ import annotations

import dataclasses

import pytest

from kvstore_mpi.config import NodeConfig
from mpilaunch.jobspec import JobSpec, Target, idle_options
from mpilaunch.options import spell

SERVED = {"num_workers": 4, "num_servers": 2}


def said(changes=(), **node):
    """Return what is said of a job."""
    spec = JobSpec(Target.SCRIPT, ("train.py",), NodeConfig(**{"num_workers": 4, **node}))
    return idle_options(dataclasses.replace(spec, **dict(changes)), spell)


@pytest.mark.parametrize(
    ("option", "node", "changes"),
    [
        ("--leaders all", {"leaders": "all"}, {}),
        ("--lookups together", {"lookups": "together"}, {}),
        ("--lease 60.0", {"peer_timeout": 60.0}, {}),
        ("--server-hosts first", {}, {"server_hosts": "first"}),
    ],
)
def test_what_is_about_servers_is_idle_without_them(option, node, changes):
    """It is no error: a job file may be for jobs with and without."""
    assert said(changes, **node) == [f"{option} has no effect: this job has no servers"]
    assert said(changes, **SERVED, **node) == []


def test_what_mpi_carries_is_not_encrypted():
    """Whoever asks for it would otherwise believe that it is."""
    (line,) = said(encrypt=True)
    assert line.startswith("--encrypt does not cover MPI, by which all gradients and weights of this job")
    assert said(encrypt=True, **SERVED) == []


def test_workers_of_several_clients_sum_no_dense_keys():
    """Those of one client do."""
    (line,) = said(dense="workers", num_clients=2, **SERVED)
    assert line == "--dense workers has no effect: only servers know the sum over 2 clients"
    assert said(dense="workers", **SERVED) == said(dense="workers") == said() == []
