"""Loosely coupled training in one process: the checks of trainer and callback over threads and memory.

What waits for another client cannot be shown in one thread, which MXNet demands: clients are asynchronous
here, or there is one. Clients of several ranks, and synchronous ones, are in ``tests/mpi``.
"""

from __future__ import annotations

from functools import partial

import pytest

mx = pytest.importorskip("mxnet")

# Below the skip, because they import mxnet.
from support import elastic_training as training  # noqa: E402
from support.elastic_oracles import ORACLE_CHECKS  # noqa: E402
from support.exchange_job import start  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI, engine  # noqa: E402
from kvstore_mpi.testing.mxnet_contract import run_together  # noqa: E402
from kvstore_mpi.values.base import ClientBase  # noqa: E402

pytestmark = pytest.mark.mxnet

COMPRESSED = [
    training.compressed_exchanges_conserve_it_too,
    training.compressed_exchanges_that_overlap_conserve_it_too,
]


def run(check, clients, mode):
    """Run a check over servers to which everything travels, so that compression applies."""
    with start(clients, servers=2) as job:
        run_together(check, [partial(KVStoreMPI, mode, worker) for worker in job.workers])
        assert engine.wait_until_idle(60)


@pytest.mark.paper("MXNET-MPI section 6", "MXNET-MPI figure 8")
@pytest.mark.parametrize(("clients", "mode"), [(1, "sync"), (1, "async"), (2, "async")])
@pytest.mark.parametrize(
    "check", [*training.ELASTIC_CHECKS, *ORACLE_CHECKS], ids=lambda check: check.__name__
)
def test_contract(check, clients, mode):
    """Every check passes."""
    run(check, clients, mode)


@pytest.mark.parametrize("check", COMPRESSED, ids=lambda check: check.__name__)
def test_what_rounding_leaves_over_would_be_noticed(check, monkeypatch):
    """A client that moves by what it has, and not by what was understood of it, gains or loses the rest."""
    take = ClientBase.take

    def exact(self, lo, hi, payload, bits):
        self._before = False
        take(self, lo, hi, payload, bits)

    monkeypatch.setattr(ClientBase, "take", exact)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        run(check, 2, "async")
