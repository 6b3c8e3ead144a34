"""What the servers of a job that goes on have updated no worker may update by itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet.exchange.counts_before import CountsBefore
from kvstore_mpi.errors import UsageError

pytestmark = pytest.mark.mxnet


def counts(dtype, updates, mode="sync"):
    """Return the counts of a store with one key, which its servers have updated."""
    staging = SimpleNamespace(array=SimpleNamespace(wait_to_read=lambda: None), dtype=dtype)
    worker = SimpleNamespace(
        rank=3,
        takes_up={"sync", "async"},
        optimizer_states=lambda _store, arrays: {"w": SimpleNamespace(updates=updates, arrays=arrays)},
    )
    exchange = SimpleNamespace(
        on_servers=True, worker=worker, store=0, stagings={"w": staging}, check=lambda: None
    )
    return CountsBefore(exchange, mode)


def test_parameters_that_servers_have_updated_are_refused():
    """The error says how often they were, and what to do."""
    with pytest.raises(UsageError, match=r"worker 3: key .w.*made 2 updates.*give the store the"):
        counts("float32", 2).check_own("w")


@pytest.mark.parametrize(("dtype", "updates"), [("int32", 2), ("float32", 0)])
def test_others_are_not(dtype, updates):
    """Integers, which servers sum, and keys that they have not updated."""
    found = counts(dtype, updates)
    found.check_own("w")
    assert found.of("w") == updates


def test_an_asynchronous_store_counts_what_all_push():
    """So that nothing is known of this worker's own updates."""
    assert counts("float32", 2, "async").of("w") == 0
