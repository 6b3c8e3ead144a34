"""Jobs whose clients exchange parameters with a center, over memory: what their scenarios begin with.

This file must not know what a scenario wants to show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.testing.blocking_store import BlockingStore
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork
from kvstore_mpi.values.coding import coding_of

if TYPE_CHECKING:
    from kvstore_mpi.worker.worker import Worker

Array = np.ndarray[Any, Any]

SIZE = 300
"""Elements of the key; a slice has 64."""


def start(
    clients: int,
    workers: int = 1,
    servers: int = 1,
    transport: str = "tcp",
    network: MemoryNetwork | None = None,
    **config: Any,
) -> Cluster:
    """Start a job of ``workers`` workers in each client.

    Args:
        clients: Clients.
        workers: Workers of each.
        servers: Servers.
        transport: ``auto``: servers work on the workers' buffers where they lie. ``tcp``: all travels.
        network: Over which; a new one if not given.
        config: Other fields of ``NodeConfig``.
    """
    return Cluster(
        (network or MemoryNetwork()).transport,
        clients=clients,
        workers_per_client=workers,
        servers=servers,
        slice_elements=64,
        transport=transport,
        **config,
    )


def spec_of(
    optimizer: Any, quorum: int = 0, quorum_wait: float = 0.0, compress: str | None = None
) -> dict[str, Any]:
    """Describe a server optimizer and its terms for the servers."""
    plain = optimizer.spec().to_dict()
    return {**plain, "quorum": quorum, "quorum_wait": quorum_wait, "compress": coding_of(compress)}


def open_center(
    worker: Worker, optimizer: Any, mode: str = "async", initial: Array | None = None, **terms: Any
) -> BlockingStore:
    """Open a store with this optimizer, and the key ``w`` with this value."""
    store = BlockingStore(worker, mode)
    worker.set_optimizer(store.number, spec_of(optimizer, **terms))
    store.init("w", params_of(99) if initial is None else initial)
    return store


def params_of(seed: int, size: int = SIZE) -> Array:
    """Return parameters that the seed decides."""
    params: Array = np.random.RandomState(seed).normal(size=size).astype(np.float32)
    return params
