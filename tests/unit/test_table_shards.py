"""A server's pieces of a table: what they answer, and what a snapshot keeps of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import KeySpec, Rows, Slice
from kvstore_mpi.server.records import Contribution, Fill, Update
from kvstore_mpi.server.shards import ShardStore
from kvstore_mpi.server.snapshot_records import VALUE
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec, build, hyper_for, terms_of
from kvstore_mpi.values.row_payloads import ALL, CHANGED, NEWER, SOME
from kvstore_mpi.values.row_sparse import PushedRows
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.state_parts import MASTER

SHAPE = (7, 2)
KEY = KeySpec(0, "t", SHAPE, "float32", "rows", 2)
CREATE = m.Create(KEY, "sync", 0, (0, 4), [])


def initial():
    return np.arange(14, dtype=np.float32).reshape(SHAPE)


class Server:
    """A store with one table and one client."""

    def __init__(self, *, incarnation=0, create=CREATE, **spec):
        self.store = ShardStore(incarnation=incarnation)
        self.hyper = None
        if spec:
            self.spec = OptimizerSpec(hyper=HyperParameters(lr=0.5), **spec)
            self.hyper = self.spec.hyper
            self.store.set_optimizer(0, self.spec, None, terms_of(self.spec))  # tables build their own
        if create is not None:
            self.store.allocate(create)
            self.table = self.store.tables[0]
            value = initial().astype(create.spec.dtype)
            for piece in range(2):
                self.store.fill(
                    Fill(Slice(0, 2 * piece, 2 * piece + 1), self.table.layout.value_of(piece, value))
                )
        self.updates = 0

    def push(self, ids, pushed=(1,)):
        """Let clients push a number each for some rows of piece 0, which has the even ones."""
        self.updates += 1
        unit = SimpleNamespace(key=SimpleNamespace(key_id=0), slices=[Slice(0, 0, 1)])
        contributions = [self._contribution(np.array(ids, np.int64), number) for number in pushed]
        self.store.update(Update(unit, contributions, self.hyper, self.updates, [*range(len(pushed))]))

    def _contribution(self, ids, number):
        layout = self.table.layout
        source = PushedRows(layout, Rows(ids, np.full((ids.size, 2), number, layout.dtype)))
        source.versions = [0, 0]
        return Contribution(self.updates, {0: source.pack(0)})

    def since(self, version):
        """Return form, version and ids of an answer."""
        layout = self.table.layout
        payload = self.table.payload(0, layout.request(CHANGED, version))
        found, rows = layout.rows_in(payload, 0)
        return layout.unpack(payload).form, found, rows.ids.tolist()

    def newer(self, places, version):
        """Return the places of an answer about some places of piece 0."""
        layout = self.table.layout
        request = layout.request(NEWER, version, np.array(places))
        return layout.unpack(self.table.payload(0, request)).places.tolist()

    def value(self):
        layout = self.table.layout
        out = np.zeros(SHAPE, layout.dtype)
        for piece in range(2):
            ids, values = layout.rows_in(self.table.payload(2 * piece, None), piece)[1]
            out[ids] = values
        return out


def test_a_worker_is_sent_what_has_changed_since_its_version():
    """And everything where the log does not go back so far, or the version is another server's."""
    server = Server(name="sgd")
    assert server.since(0) == (SOME, 0, [])
    server.push([2])
    server.push([2, 6])
    assert server.since(0) == (SOME, 2, [2, 6])
    assert server.since(1) == (SOME, 2, [2, 6])
    assert server.since(2) == (SOME, 2, [])
    for unknown in (-1, 3, 1 << 40):
        assert server.since(unknown) == (ALL, 2, [0, 2, 4, 6])
    server.push([0, 4])  # five names of rows of four: the oldest are forgotten
    assert server.since(0) == (ALL, 3, [0, 2, 4, 6])
    assert server.since(1) == (SOME, 3, [0, 2, 4, 6])


def test_of_a_sum_its_rows_are_sent():
    """Also those that are zero, and none that only the sum before had, which who asks by ids is told."""
    server = Server()
    server.push([2, 4])
    server.push([4, 6], pushed=(1, -1))
    for version in (-1, 0, 1, 2):
        assert server.since(version) == (SOME, 2, [4, 6])
    assert not server.value()[::2].any()
    assert server.newer([0, 1, 2, 3], 1) == [1, 2, 3]


def test_of_rows_that_a_worker_has_it_is_sent_those_that_have_changed():
    """And all of them, but no others, where nobody knows which have."""
    server = Server(name="sgd")
    server.push([2])
    server.push([4])
    assert server.newer([0, 1, 3], 0) == [1]
    assert server.newer([0, 2], 1) == [2]
    assert server.newer([0, 1, 2], 2) == []
    assert server.newer([0, 3], -1) == [0, 3]


def test_a_server_that_was_started_again_counts_from_elsewhere():
    """What a worker knows of before is not what is there now."""
    server = Server(incarnation=2, name="sgd")
    assert server.since(0) == (ALL, 2 << 40, [0, 2, 4, 6])
    server.push([0])
    assert server.since(2 << 40) == (SOME, (2 << 40) + 1, [0])
    assert server.since((1 << 40) + 1)[0] == ALL


@pytest.mark.parametrize(
    ("name", "params", "dtype"),
    [
        ("sgd", {}, "float32"),
        ("sgd", {"momentum": 0.9}, "float32"),
        ("adam", {}, "float64"),
        ("sgd", {"momentum": 0.9}, "float16"),
        ("groupadagrad", {}, "float32"),
        ("nag", {"momentum": 0.9}, "float32"),
        ("nag", {"momentum": 0.9}, "float16"),
    ],
)
def test_a_server_goes_on_from_the_arrays_of_another(name, params, dtype):
    """With the same bits as one that was never replaced."""
    create = m.Create(KeySpec(0, "t", SHAPE, dtype, "rows", 2), "sync", 0, (0, 4), [])
    spec = {"name": name, "params": params, "multi_precision": dtype == "float16"}
    first = Server(create=create, **spec)
    first.push([0, 2])
    first.push([2])
    arrays = first.store.contents(0)
    second = Server(create=None, **spec)
    second.store.restore(create, arrays, [])
    second.table, second.updates = second.store.tables[0], 2
    for server in (first, second):
        server.push([2, 4])
    np.testing.assert_array_equal(first.value(), second.value())
    assert not np.array_equal(first.value(), initial())


def test_rows_that_nobody_pushes_stay():
    """They have no momentum and no decay either: updates are lazy."""
    server = Server(name="sgd", params={"momentum": 0.9}, multi_precision=False)
    for _ in range(3):
        server.push([4])
    untouched = [row for row in range(7) if row != 4]
    np.testing.assert_array_equal(server.value()[untouched], initial()[untouched])


def test_the_master_of_half_the_digits_takes_an_exact_sum():
    """2048 and 1 are 2048 in float16, and 2049 for the master."""
    create = m.Create(KeySpec(0, "t", SHAPE, "float16", "rows", 2), "sync", 0, (0, 4), [])
    server = Server(create=create, name="sgd", multi_precision=True)
    server.push([0], pushed=(2048, 1))
    contents = dict(server.table.contents())
    np.testing.assert_array_equal(contents[MASTER, 0][:2], initial()[0] - 0.5 * 2049)


class TestExactUpdates:
    """Of rules that must not be lazy: whoever looks at a row sees what dense training makes of it."""

    PUSHES = ([4], [0, 4], [], [4, 6], [0])

    def spec(self, dtype="float32"):
        params = {"momentum": 0.9, "lazy_update": False}
        return {"name": "sgd", "params": params, "multi_precision": dtype == "float16"}

    def dense(self, dtype):
        """Return the value of piece 0, and the momentum, of dense training."""
        rule = build(OptimizerSpec(hyper=HyperParameters(lr=0.5), **self.spec()))
        weight = initial()[::2].copy()
        state = rule.init(weight)
        for number, ids in enumerate(self.PUSHES, start=1):
            gradient = np.zeros_like(weight)
            gradient[np.array(ids, int) // 2] = 1
            rule.update(weight, gradient, state, hyper_for(HyperParameters(lr=0.5), "t", number), number)
        return weight.astype(dtype), *state

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    @pytest.mark.parametrize("reads", [False, True])
    def test_values_are_those_of_dense_training(self, dtype, reads):
        """Also if they are read after each step, and with a master of half the numbers."""
        server = Server(
            create=m.Create(KeySpec(0, "t", SHAPE, dtype, "rows", 2), "sync", 0, (0, 4), []),
            **self.spec(dtype),
        )
        for ids in self.PUSHES:
            server.push(ids)
            if reads:
                server.value()
        np.testing.assert_allclose(
            server.value()[::2], self.dense(dtype)[0], rtol=2**-10 if dtype == "float16" else 1e-6
        )

    def test_states_and_snapshots_are_those_of_dense_training(self):
        """Whoever asks first."""
        weight, momentum = self.dense("float32")
        for ask in ("contents", "read_states"):
            server = Server(**self.spec())
            for ids in self.PUSHES:
                server.push(ids)
            if ask == "contents":
                found = dict(server.table.contents())
                np.testing.assert_allclose(found[VALUE, 0].reshape(-1, 2), weight, rtol=1e-6)
                state = found[0, 0]
            else:
                unit = SimpleNamespace(
                    key=SimpleNamespace(key_id=0), slices=[Slice(0, 0, 1)], updates=len(self.PUSHES)
                )
                ((_, data),) = server.table.read_states(unit)
                state = np.frombuffer(data, np.float32)
            np.testing.assert_allclose(state.reshape(-1, 2), momentum, rtol=1e-6)

    def test_all_rows_have_changed(self):
        """Those that nobody has pushed as well."""
        server = Server(**self.spec())
        server.push([2])
        server.push([2])
        assert server.since(1) == (ALL, 2, [0, 2, 4, 6])
        assert server.newer([0, 3], 1) == [0, 3]

    def test_another_rule_begins_where_the_last_one_ends(self):
        """Nothing that was missed is lost, nor made up for twice."""
        server = Server(**self.spec())
        for ids in self.PUSHES:
            server.push(ids)
        server.table.forget_optimizer()
        np.testing.assert_allclose(server.value()[::2], self.dense("float32")[0], rtol=1e-6)

    def test_what_the_last_rule_has_moved_is_sent_behind_another(self):
        """Its last step was one of all rows, though the log names only those that were pushed."""
        server = Server(**self.spec())
        server.push([2])
        server.push([0])
        server.table.forget_optimizer()
        assert server.since(1)[2] == [0, 2, 4, 6]


def test_a_rule_for_whole_tensors_is_refused():
    """The message names it and says which can be had."""
    server = Server(name="lamb", through_mxnet=True)
    with pytest.raises(UsageError, match="'lamb' cannot update some rows of a table alone; use one of"):
        server.push([2])
