"""What tests of the MXNet adapter share: fake workers, which are in one process."""

from __future__ import annotations

import pytest

from kvstore_mpi.testing.fake_worker import local_groups


@pytest.fixture
def make_group():
    """Make groups of fake workers, and stop them afterwards."""
    from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: PLC0415  other tests of this folder need no MXNet

    with local_groups() as make:
        yield make
    assert engine.wait_until_idle(60)
