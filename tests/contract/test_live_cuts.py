"""The times of steps by which tables are cut: which of them belong to a sample, and what fails."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet.tables.live_cuts import LiveCuts
from kvstore_mpi.adapters.mxnet.tables.partitions import Cut
from kvstore_mpi.records import Growth

pytestmark = pytest.mark.mxnet


class Engine:
    """An exchange of two tables; what is queued happens when the array of the first is waited for."""

    def __init__(self):
        self.worker = SimpleNamespace(num_servers=1, rank=0)
        array = SimpleNamespace(wait_to_read=self.catch_up)
        self.table = SimpleNamespace(shape=(1 << 16, 64), dtype="float32", array=array)
        self.stagings = {"first": self.table, "second": self.table}
        self.check = lambda: None
        self._queued = []

    def queue(self, call, *, mutable):
        assert mutable == [self.table.array]
        self._queued.append(call)

    def catch_up(self):
        while self._queued:
            self._queued.pop(0)(lambda _error: None)


@pytest.fixture
def cuts():
    engine, clock = Engine(), count()
    made = LiveCuts(engine, "sync", lambda *_: None, lambda _: None, clock=lambda: next(clock))
    for key in engine.stagings:
        made.begin(key, engine.table, Cut(is_searched=True))
    made.engine = engine
    return made


def test_a_push_from_before_a_table_has_gone_is_not_of_the_next_sample(cuts):
    """On one rank it may come late; all must have as many times."""
    for _ in range(3):
        cuts.pushed("first", cuts.engine.table)
    cuts.forget("second")
    cuts.engine.catch_up()
    assert cuts._last is None


def test_a_table_that_grows_has_as_many_pieces_on_each_server(cuts):
    """Whatever number is tried of tables that are larger or smaller."""
    cuts.engine.worker.num_servers = 4
    table = SimpleNamespace(shape=(130, 64), dtype="float32")
    assert cuts.begin("users", table, Cut(is_searched=True), Growth()).pieces == 4
    found = [cuts._tables["users"].bounded(pieces) for pieces in (1, 3, 8, 64, 200)]
    assert found == [4, 4, 8, 64, 128]


def test_times_that_cannot_be_added_up_end_the_push(cuts):
    """And leave nobody waiting."""
    ended = []
    cuts._add_up(None, ended.append)
    (error,) = ended
    assert isinstance(error, Exception)
