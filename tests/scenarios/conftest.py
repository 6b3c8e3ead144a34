"""What several scenarios need."""

import pytest

from kvstore_mpi.wire import io_loop


@pytest.fixture
def short_linger(monkeypatch):
    """Processes of a job that has failed wait for nobody."""
    monkeypatch.setattr(io_loop, "LINGER_S", 0.2)
