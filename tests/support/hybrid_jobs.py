"""Jobs of one client with servers, in this process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvstore_mpi.adapters.mxnet.bridge import engine
from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvstore_mpi.records import Key


@contextmanager
def hybrid_jobs() -> Iterator[Callable[..., Cluster]]:
    """Give a function that makes jobs, of one worker and two servers if not told otherwise; end them."""
    jobs: list[Cluster] = []

    def make(**config: Any) -> Cluster:
        cluster = Cluster(MemoryNetwork().transport, **{"servers": 2, **config})
        jobs.append(cluster)
        return cluster

    yield make
    for cluster in jobs:
        assert engine.wait_until_idle(60)
        cluster.close()
        assert not cluster.errors


def keys_on(cluster: Cluster) -> set[Key]:
    """Return the keys that servers have."""
    return {key.key for server in cluster.servers for key in server._state.keys}
