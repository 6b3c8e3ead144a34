"""What the benchmark of a server with many clients says, and that it exchanges real sums."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import many_clients


def test_the_table_divides_by_pushes_and_clients():
    """Twenty rounds of ten clients are two hundred pushes."""
    run = {"clients": 10, "elements": 1_000, "seconds": 2.0, "bytes": 50_000, "descriptors": 18}
    runs = [{**run, "server_s": seconds} for seconds in (0.02, 0.04, 0.1)]
    row = many_clients.table(runs).splitlines()[2]
    assert row.split() == ["10", "4", "200", "150", "-", "350", "100.0", "0.02", "5.0", "18"]


@pytest.mark.slow
def test_some_clients_exchange(monkeypatch):
    """Each round's sums are checked; the server has a connection for each."""
    monkeypatch.setattr(many_clients, "ROUNDS", 2)
    run = many_clients.measure(5, 100)
    assert run["server_s"] > 0
    assert run["descriptors"] >= 5
