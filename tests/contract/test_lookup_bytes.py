"""The bytes of a job's lookups of rows, ids and all, with a cache on the worker and without."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from support.counted import Counted  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI, TableEmbedding  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.testing.cluster import Cluster  # noqa: E402
from kvstore_mpi.transport.memory import MemoryNetwork  # noqa: E402

pytestmark = [pytest.mark.mxnet, pytest.mark.thorough]

WIDTH = 16
STEPS, WARM_UP = 36, 18
"""A multiple of s + 1 = 9 is counted: a row of every batch is asked for once in 9 steps."""


def batches(num_rows, tokens):
    """Draw ids by Zipf's law."""
    random = np.random.default_rng(3)
    chances = 1 / np.arange(1, num_rows + 1)
    chances /= chances.sum()
    return [random.choice(num_rows, tokens, p=chances) for _ in range(STEPS)]


def looked_up(staleness, ids):
    """Train; return the bytes that the worker has sent and received in lookups once the cache is full."""
    network, transports = MemoryNetwork(), []

    def transport():
        transports.append(Counted(network.transport()))
        return transports[-1]

    with Cluster(transport, servers=2) as job:
        kv = KVStoreMPI("sync", job.workers[0])
        kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1))
        table, counts, mine = TableEmbedding(kv, "t", WIDTH, staleness=staleness), [], transports[-1]
        for step_ids in ids:
            before = mine.sent + mine.received
            with mx.autograd.record():
                loss = table(step_ids).sum()
            counts.append(mine.sent + mine.received - before)
            loss.backward()
            table.step(1)
            kv.barrier()  # so that nothing of the push is counted with the next lookup
        assert engine.wait_until_idle(60)
    return sum(counts[WARM_UP:])


@pytest.mark.parametrize(
    ("num_rows", "tokens", "least", "most"), [(30_000, 4_096, 0.5, 0.53), (1_000_000, 16_384, 0.34, 0.38)]
)
def test_rows_that_may_be_eight_steps_old_save_bytes(num_rows, tokens, least, most):
    """As many as docs/large-tables.md says: half of them, and of a million ids, mostly rare ones, 36 %."""
    ids = batches(num_rows, tokens)
    saved = 1 - looked_up(8, ids) / looked_up(0, ids)
    assert least <= saved <= most
