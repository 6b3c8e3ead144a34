"""Files that are given for optimizer states, and are none."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from support.hybrid_jobs import hybrid_jobs  # noqa: E402

from kvstore_mpi.adapters.mxnet import KVStoreMPI  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.esgd import DiLoCo, Elastic, Outer  # noqa: E402

pytestmark = pytest.mark.mxnet


@pytest.fixture(params=[0, 1], ids=["workers", "servers"])
def store(request):
    """Return a store where these update, after a step."""
    with hybrid_jobs() as make:
        store = KVStoreMPI("sync", make(servers=request.param).workers[0])
        store.set_optimizer(mx.optimizer.Adam())
        store.init("w", mx.nd.zeros(2))
        store.push("w", mx.nd.ones(2))
        yield store


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "reading it raises EOFError"),
        (b"no pickle", "reading it raises UnpicklingError"),
        (pickle.dumps(5), "it holds a Python object of type int"),
        (pickle.dumps(({}, {})), "it holds a Python object of type tuple"),
    ],
    ids=["empty", "garbage", "another pickle", "a pair"],
)
def test_a_file_of_something_else_is_named(store, tmp_path, content, reason):
    """The states stay as they were, and can be saved and loaded."""
    path = tmp_path / "other"
    path.write_bytes(content)
    expected = rf"{re.escape(str(path))} is no file of optimizer states, or damaged: {reason}"
    with pytest.raises(UsageError, match=expected):
        store.load_optimizer_states(str(path))
    for dump_optimizer in (False, True):
        store.save_optimizer_states(str(path), dump_optimizer=dump_optimizer)
        store.load_optimizer_states(str(path))


@pytest.mark.parametrize("value", ["text", np.ones(2)], ids=["text", "weights"])
def test_states_that_are_no_arrays_of_mxnet_s_are_another_optimizer_s(store, tmp_path, value):
    """A file of the same keys may have something else of them."""
    path = tmp_path / "other"
    path.write_bytes(pickle.dumps({"w": value}))
    with pytest.raises(UsageError, match="the saved optimizer state of key 'w' does not fit Adam"):
        store.load_optimizer_states(str(path))


@pytest.mark.parametrize(("key", "size"), [("w", 3), ("other", 2)])
def test_states_of_another_model_are_refused(store, tmp_path, key, size):
    """Wherever the update is made; MXNet's own updater keeps them, and may fail in the next step."""
    path = tmp_path / "other"
    path.write_bytes(pickle.dumps({key: (mx.nd.ones(size), mx.nd.ones(size))}))
    expected = {"w": "state of key 'w' does not fit Adam", "other": "of other keys, such as 'other', than"}
    with pytest.raises(UsageError, match=expected[key]):
        store.load_optimizer_states(str(path))
    store.push("w", mx.nd.ones(2))


RULES = {
    "nesterov": (DiLoCo(), [2]),
    "elastic": (Elastic(0.5), []),
    "adam": (Outer("adam", learning_rate=0.1), [2, 2]),
}


@pytest.mark.parametrize("master", [None, np.ones(2, np.float32), np.ones(3, np.float32)], ids=repr)
@pytest.mark.parametrize("sizes", [[], [2], [3], [2, 2]], ids=repr)
@pytest.mark.parametrize("rule", RULES)
def test_states_of_rules_for_centers(tmp_path, rule, sizes, master):
    """Servers are given what their rule has, and no others: these could only end them."""
    (optimizer, has), path = RULES[rule], tmp_path / "states"
    path.write_bytes(pickle.dumps({"w": (3, [np.full(size, 0.5, np.float32) for size in sizes], master)}))
    with hybrid_jobs() as make:
        store = KVStoreMPI("sync", make(servers=1).workers[0])
        store.set_optimizer(optimizer)
        store.init("w", mx.nd.zeros(2))
        if sizes in ([], has) and (master is None or master.size == 2):
            store.load_optimizer_states(str(path))
            store.save_optimizer_states(str(path))
            count, arrays, _ = pickle.loads(path.read_bytes())["w"]
            assert (count, [each.tolist() for each in arrays]) == (3, [[0.5, 0.5]] * len(sizes))
        else:
            with pytest.raises(UsageError, match=r"state of key 'w' does not fit .* on \(2,\)"):
                store.load_optimizer_states(str(path))
        path.write_bytes(pickle.dumps({"other": (3, [], None)}))
        with pytest.raises(
            UsageError, match="of other keys, such as 'other', than this store's, such as 'w'"
        ):
            store.load_optimizer_states(str(path))
        path.write_bytes(pickle.dumps({"w": (mx.nd.ones(2), None)}))
        with pytest.raises(UsageError, match="state of key 'w' does not fit"):
            store.load_optimizer_states(str(path))
        store.pushpull("w", mx.nd.ones(2), out=mx.nd.ones(2))


class Own:
    """An updater of the user's, with a format of its own."""

    def __call__(self, key, gradient, weight):
        """Update a weight."""

    def get_states(self, dump_optimizer=False):
        """Return what is to be kept."""
        return b"kept"

    def set_states(self, data):
        """Take it."""
        self.data = data


@pytest.mark.parametrize("store", [0], indirect=True, ids=["workers"])
def test_an_updater_of_the_user_s_reads_its_own_files(store, tmp_path):
    """Whatever is in them."""
    own = Own()
    store._set_updater(own)
    store.save_optimizer_states(str(tmp_path / "own"))
    store.load_optimizer_states(str(tmp_path / "own"))
    assert own.data == b"kept"
