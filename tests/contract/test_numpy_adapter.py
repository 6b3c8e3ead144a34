"""The contract of adapters over real workers in one process, without any framework."""

from __future__ import annotations

from functools import partial

import pytest
from support.numpy_adapter import NumpyAdapter

from kvstore_mpi.testing.adapter_contract import CHECKS, run_alone
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork


@pytest.mark.parametrize(("clients", "workers", "servers"), [(1, 1, 0), (1, 2, 0), (2, 1, 1)])
def test_what_the_contract_demands_needs_no_framework(clients, workers, servers):
    """Each check passes with NumPy's own arrays; a second adapter can be held to them."""
    transport = MemoryNetwork().transport
    cluster = Cluster(transport, clients=clients, workers_per_client=workers, servers=servers)
    try:
        adapters = [NumpyAdapter(worker) for worker in cluster.workers]
        for check in CHECKS:
            cluster.together([partial(run_alone, check, adapter) for adapter in adapters])
    finally:
        cluster.close()
