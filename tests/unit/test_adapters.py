"""What the adapters for all frameworks share."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import pytest

from kvstore_mpi.adapters.collected_errors import CollectedErrors
from kvstore_mpi.adapters.hyper_watch import HyperWatch, PushedSteps
from kvstore_mpi.adapters.in_place import SENT_IN_PLACE_BYTES, worth_sending_in_place
from kvstore_mpi.adapters.store_keys import StoreKeys
from kvstore_mpi.adapters.timetable import Timetable
from kvstore_mpi.errors import PeerLostError, UsageError
from kvstore_mpi.esgd.stagger import exchange_offset
from kvstore_mpi.testing.fake_worker import local_groups

# --- copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_bytes", "num_arrays", "gradients", "expected"),
    [
        (SENT_IN_PLACE_BYTES, 1, True, True),
        (SENT_IN_PLACE_BYTES - 1, 1, True, False),
        (SENT_IN_PLACE_BYTES, 2, True, False),
        (SENT_IN_PLACE_BYTES, 1, False, False),
    ],
)
def test_large_gradients_of_one_device_are_not_copied(num_bytes, num_arrays, gradients, expected):
    """Small ones cost more to find than to copy, sums need a place, and parameters may lie in any way."""
    assert worth_sending_in_place(num_bytes, num_arrays, gradients=gradients) is expected


# --- keys --------------------------------------------------------------------------------------------


class Staged(NamedTuple):
    """An array of no framework."""

    shape: tuple[int, ...]
    dtype: str


@pytest.fixture
def keys():
    """Give the keys of store 4 on worker 3: one of floats, one of integers, one of flags."""
    store: StoreKeys[Staged] = StoreKeys(3, 4)
    store["w"] = Staged((2, 3), "float32")
    store["n"] = Staged((2, 3), "int32")
    store["b"] = Staged((2, 3), "bool")
    return store


def test_keys_are_known(keys):
    """Or the error names the worker, the key, the store and how many keys there are."""
    assert keys.known("w").dtype == "float32"
    with pytest.raises(UsageError, match=r"worker 3: key 'x' .* in store 4; .*\(it has 3 keys\)"):
        keys.known("x")


def test_new_keys(keys):
    """A name comes once, and names are strings or numbers."""
    keys.check_new("x", (1,), "float32")
    StoreKeys(0, 0).check_new(7, (1,), "float32")
    with pytest.raises(UsageError, match=r"duplicate init of key 'w' .*\(2, 3\) float32, .* \(5,\) int8"):
        keys.check_new("w", (5,), "int8")
    with pytest.raises(UsageError, match=r"mixed key types .*'w' and is given 7"):
        keys.check_new(7, (1,), "float32")


@pytest.mark.parametrize("key", ["a\udc80", "\0table int 7", 2**63, -(2**63) - 1])
def test_names_that_cannot_travel(key):
    """A worker whose I/O thread could not put one into a message would end."""
    with pytest.raises(UsageError, match=rf"worker 0: the key {re.escape(repr(key))} cannot travel"):
        StoreKeys(0, 0).check_new(key, (1,), "float32")
    for fits in ("\U0010ffff\ud7ff\ue000", 2**63 - 1, -(2**63)):
        StoreKeys(0, 0).check_new(fits, (1,), "float32")


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_floating_point_types_are_converted(keys, dtype):
    """Where that is allowed."""
    keys.check_other("w", (2, 3), dtype, converts=True)
    with pytest.raises(UsageError, match=rf"the array given for it is \(2, 3\) {dtype}"):
        keys.check_other("w", (2, 3), dtype, converts=False)


@pytest.mark.parametrize(
    ("key", "shape", "dtype"),
    [
        ("w", (3, 2), "float16"),
        ("w", (3, 2), "float32"),
        ("w", (2, 3), "int32"),
        ("n", (2, 3), "float32"),
        ("n", (2, 3), "int64"),
    ],
)
def test_other_arrays_are_refused(keys, key, shape, dtype):
    """Nothing else is converted."""
    with pytest.raises(UsageError, match=rf"the array given for it is .*{dtype}"):
        keys.check_other(key, shape, dtype, converts=True)


def test_flags_have_no_sum(keys):
    """Numbers have."""
    keys.check_sum("w")
    keys.check_sum("n")
    with pytest.raises(UsageError, match="'b' is bool and has no sum"):
        keys.check_sum("b")


# --- errors ------------------------------------------------------------------------------------------


@pytest.fixture
def worker():
    """Give a worker without a network."""
    with local_groups() as make:
        yield make().workers[0]


def test_the_first_error_is_raised_again_and_again(worker):
    """An operation's comes before what has become of the worker, which that may explain."""
    errors = CollectedErrors(worker)
    errors.check()
    worker.failure = lambda: PeerLostError("third")
    with pytest.raises(PeerLostError, match="third"):
        errors.check()
    errors.add(ValueError("first"))
    errors.add(ValueError("second"))
    for _ in range(3):
        with pytest.raises(ValueError, match="first") as raised:
            errors.check()
        assert len(raised.traceback) == 2  # here and there, and not where it was raised before


def test_a_forked_child_is_told(worker, monkeypatch):
    """Even when something has gone wrong before: the child can do nothing about that."""
    errors = CollectedErrors(worker)
    errors.add(ValueError("before"))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(UsageError, match="cannot be used in its forked child -1"):
        errors.check()


# --- hyper-parameters --------------------------------------------------------------------------------


class Reader:
    """The hyper-parameters of an optimizer of no framework."""

    def __init__(self):
        """Start with a rate and without multipliers."""
        self.rate = 0.1
        self.factors = {}
        self.counts = {}

    def common(self):
        return (self.rate,)

    def multipliers(self, key):
        return self.factors.get(key, (1.0, 1.0))

    def ahead(self, key):
        return self.counts.get(key, 0)

    def read(self, keys, ahead):
        assert all(ahead[key] == self.counts.get(key, 0) for key in ahead)
        return (self.rate, *(self.multipliers(key) for key in keys))


def test_changes_are_noticed_once():
    """What all keys share by the next push of any, a key's factors by the next push of that key."""
    reader = Reader()
    watch = HyperWatch(reader, ["a", "b"])
    one = (1.0, 1.0)
    assert watch.changed("a") == (0.1, one, one)
    assert watch.changed("a") is None
    reader.rate = 0.2
    assert watch.changed("b") == (0.2, one, one)
    reader.factors["b"] = (0.5, 1.0)
    assert watch.changed("a") is None
    assert watch.changed("b") == (0.2, one, (0.5, 1.0))
    assert watch.changed("b") is None
    reader.factors.clear()
    assert watch.changed("b") == (0.2, one, one)
    reader.counts["b"] = 3
    assert watch.changed("a") is None
    assert watch.changed("b") == (0.2, one, one)
    assert watch.changed("b") is None


def test_several_keys_are_looked_at_together():
    """Those that are pushed, and the factors alone of others."""
    reader = Reader()
    watch = HyperWatch(reader, ["a", "b", "c"])
    one = (1.0, 1.0)
    assert watch.changed("a", "b", others=["c"]) == (0.1, one, one, one)
    reader.counts["c"] = 3
    assert watch.changed("a", "b", others=["c"]) is None
    reader.counts["b"] = 3
    assert watch.changed("a", "b", others=["c"]) == (0.1, one, one, one)
    reader.factors["c"] = (0.5, 1.0)
    assert watch.changed("a", "b", others=["c"]) == (0.1, one, one, (0.5, 1.0))
    assert watch.changed("a", "b", others=["c"]) is None


def test_a_step_lacks_what_is_pushed_behind_another_key():
    """For that key alone, whose second push would be one of the next step."""
    steps, keys = PushedSteps(), ["a", "b", "c"]
    for key, lacked in (("a", {"b", "c"}), ("b", {"c"}), ("c", set())):
        assert steps.lacked(key) == set()
        steps.push(key, lambda: keys)
        assert steps.lacked(key) == steps.lacked("a") == lacked


def test_a_step_begins_with_its_first_push():
    """All of its keys are then as good as pushed; one that it does not have stands for itself."""
    steps = PushedSteps()
    keys = {"a", "b"}

    def push(*pushed):
        return [(set(new), begins) for new, begins in (steps.push(key, lambda: [*keys]) for key in pushed)]

    nothing = set(), False
    assert push("left out", "b", "left out", "a", "left out") == [
        ({"left out"}, True),
        ({"a", "b"}, True),
        ({"left out"}, False),
        nothing,
        ({"left out"}, True),
    ]
    assert push("a") == [({"a", "b"}, True)]
    keys.add("c")
    assert push("c", "b") == [({"c"}, False), nothing]
    assert push("c", "a", "b") == [({"a", "b", "c"}, True), nothing, nothing]
    # In the store's order, in which their optimizer counts them.
    assert steps.push("b", lambda: ["c", "b", "a"]) == (["c", "b", "a"], True)
    assert push("a", "c") == [nothing] * 2
    # As where keys are taken to be awaited that are not: changes of numbers count all the same.
    assert push("c", "c") == [({"a", "b", "c"}, True)] * 2


# --- timetable ---------------------------------------------------------------------------------------


def make_timetable(interval, overlap=0, *, client=0, num_clients=1, staggered=False):
    return Timetable(interval, overlap, client=client, num_clients=num_clients, staggered=staggered)


def run(timetable, steps, num_keys):
    """Return the keys that are due after each step."""
    found = []
    for _ in range(steps):
        timetable.steps += 1
        found.append(list(timetable.due(num_keys)))
    return found


def test_all_keys_at_once():
    """In a synchronous store, whenever the interval is over; a key that joins late is among them then."""
    timetable = make_timetable(3)
    timetable.join(5)
    timetable.join(2)
    assert run(timetable, 3, 3) == [[], [], [5, 2]]
    timetable.join(7)
    assert run(timetable, 3, 3) == [[], [], [5, 2, 7]]


@pytest.mark.parametrize("client", [0, 1])
def test_keys_are_spread(client):
    """In an asynchronous store, each at its offset, whoever has joined."""
    timetable = make_timetable(6, client=client, num_clients=2, staggered=True)
    for key in (10, 11, 12):
        timetable.join(key)
    due = {key: step % 6 for step, keys in enumerate(run(timetable, 12, 3), 1) for key in keys}
    assert due == {10 + position: exchange_offset(client, 2, position, 3, 6) for position in range(3)}


def test_what_is_under_way_is_applied_when_it_is_due():
    """After the overlap, in order; or all of it, when that is wanted."""
    timetable = make_timetable(5, overlap=2)
    timetable.begin("first")
    timetable.steps = 1
    timetable.begin("second")
    assert list(timetable.arrived()) == []
    timetable.steps = 2
    assert list(timetable.arrived()) == ["first"]
    timetable.begin("third")
    assert list(timetable.all_under_way()) == ["second", "third"]
    timetable.steps = 9
    assert list(timetable.arrived()) == []


@pytest.mark.parametrize(
    ("interval", "overlap", "message"),
    [
        (0, 0, "interval is 0"),
        (1.5, 0, "interval is 1.5"),
        (4, 4, "overlap is 4"),
        (4, -1, "overlap is -1"),
    ],
)
def test_intervals_that_do_not_fit(interval, overlap, message):
    """They are refused at once."""
    with pytest.raises(UsageError, match=message):
        make_timetable(interval, overlap)
