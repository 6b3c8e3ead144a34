"""Asynchronous operations in MXNet's engine: dependencies, completion, errors."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402

pytestmark = pytest.mark.mxnet

DEADLINE_S = 20


def clear_errors():
    """Let the engine forget errors that nobody has read."""
    with contextlib.suppress(Exception):
        mx.nd.waitall()


@pytest.fixture(autouse=True)
def _no_errors_left():
    yield
    clear_errors()


class BrokenError(Exception):
    """An error that MXNet does not know by name."""


class Recorder:
    """Starts operations by keeping their completion functions."""

    def __init__(self):
        self.started = threading.Event()
        self.complete = None
        self.errors = []

    def __call__(self, complete):
        self.complete = complete
        self.started.set()

    def push(self, **kwargs):
        engine.push_async(self, on_error=self.errors.append, **kwargs)
        return self

    def wait(self):
        assert self.started.wait(DEADLINE_S)
        return self.complete


def complete_elsewhere(complete, error=None):
    thread = threading.Thread(target=complete, args=(error,))
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_readers_wait_for_completion():
    """What reads an array that an operation mutates waits until another thread completes it."""
    array, copy = mx.nd.zeros((4,)), mx.nd.zeros((4,))
    operation = Recorder().push(mutable=[array])
    complete = operation.wait()
    array.copyto(copy)
    reader = threading.Thread(target=copy.wait_to_read)
    reader.start()
    assert not engine.wait_until_idle(0)
    complete_elsewhere(complete)
    reader.join(DEADLINE_S)
    assert not reader.is_alive()
    assert engine.wait_until_idle(DEADLINE_S)


def test_operations_of_one_array_run_in_order():
    """An operation starts when the one before it on the same array has been completed."""
    array = mx.nd.zeros((4,))
    first, second = Recorder().push(mutable=[array]), Recorder().push(const=[array])
    complete = first.wait()
    assert not second.started.is_set()
    complete(None)
    second.wait()(None)
    assert engine.wait_until_idle(DEADLINE_S)


def test_a_waiting_operation_occupies_no_thread():
    """Unrelated arrays are computed while operations wait for their completion."""
    arrays = [mx.nd.zeros((2,)) for _ in range(50)]
    waiting = [Recorder().push(mutable=[array]) for array in arrays]
    completions = [operation.wait() for operation in waiting]
    assert (mx.nd.ones((3,)) * 2).asnumpy().tolist() == [2, 2, 2]
    for complete in reversed(completions):
        complete(None)
    assert engine.wait_until_idle(DEADLINE_S)


def test_completing_twice_counts_once():
    """A second completion is ignored: the engine's record is used exactly once."""
    operation = Recorder().push(mutable=[mx.nd.zeros((2,))])
    complete = operation.wait()
    complete(None)
    complete(None)
    complete_elsewhere(complete, ValueError("too late"))
    assert operation.errors == []
    assert engine.wait_until_idle(DEADLINE_S)


def test_completing_from_many_threads_counts_once():
    """Of threads that complete the same operation at the same time one wins."""
    for _ in range(20):
        operation = Recorder().push(mutable=[mx.nd.zeros((2,))])
        complete = operation.wait()
        barrier = threading.Barrier(4)

        def race(complete=complete, barrier=barrier):
            barrier.wait(DEADLINE_S)
            complete(None)

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert engine.wait_until_idle(DEADLINE_S)


def test_an_exception_in_start_completes_the_operation():
    """An operation whose start raises ends as failed; nothing hangs."""
    errors = []
    array = mx.nd.ones((2,))

    def start(_complete):
        raise ValueError("no network")

    engine.push_async(start, mutable=[array], on_error=errors.append)
    with pytest.raises(ValueError, match="no network"):
        array.wait_to_read()
    assert [str(error) for error in errors] == ["no network"]
    assert array.asnumpy().tolist() == [1, 1]


def test_errors_stop_what_depends_on_them():
    """What would read a failed operation's result does not run, and its readers get the message."""
    array, weight = mx.nd.zeros((2,)), mx.nd.full((2,), 5)
    operation = Recorder().push(mutable=[array])
    array.copyto(weight)
    complete_elsewhere(operation.wait(), BrokenError("größer als erlaubt"))
    with pytest.raises(mx.MXNetError, match="BrokenError: größer als erlaubt"):
        weight.wait_to_read()
    assert weight.asnumpy().tolist() == [5, 5]


def test_operations_start_although_their_inputs_have_failed():
    """An operation after a failed one is started all the same: other processes may wait for it."""
    array = mx.nd.zeros((2,))
    Recorder().push(mutable=[array]).wait()(BrokenError("first"))
    second = Recorder().push(mutable=[array])
    second.wait()(None)
    with pytest.raises(mx.MXNetError, match="first"):
        array.wait_to_read()
    assert engine.wait_until_idle(DEADLINE_S)


def test_operations_can_be_left_out_when_their_inputs_have_failed():
    """What they would have written stays, carries the error, and nothing is pending any more."""
    source, target = mx.nd.zeros((1,)), mx.nd.ones((1,))
    first = Recorder().push(mutable=[source])
    second = Recorder().push(mutable=[target], const=[source], after_failures=False)
    first.wait()(BrokenError("first"))
    with pytest.raises(mx.MXNetError, match="first"):
        target.wait_to_read()
    assert engine.wait_until_idle(DEADLINE_S)
    assert not second.started.is_set()
    assert target.asnumpy().tolist() == [1]


def test_operations_that_could_be_left_out_run_like_others():
    """They end once, whoever ends them."""
    target = mx.nd.zeros((1,))
    operation = Recorder().push(mutable=[target], after_failures=False)
    complete_elsewhere(operation.wait())
    target.wait_to_read()
    assert engine.wait_until_idle(DEADLINE_S)
    assert not operation.errors


URGENT_FIRST = """
import threading
import mxnet as mx
from kvstore_mpi.adapters.mxnet.bridge import engine

go, busy, order = threading.Event(), threading.Event(), []
arrays = [mx.nd.zeros((1,)) for _ in range(5)]
mx.nd.waitall()  # each is free to be written now; a mere wait_to_read may still be counted as its reader

def occupy(complete):
    busy.set()
    go.wait(60)
    complete()

def push(start, priority):
    engine.push_async(start, mutable=[arrays.pop()], priority=priority, on_error=order.append)

def note(priority):
    def start(complete):
        order.append(priority)
        complete()
    push(start, priority)

push(occupy, 0)
assert busy.wait(60)
for priority in (-9, 3, -1, 7):
    note(priority)
go.set()
assert engine.wait_until_idle(60)
print(order)
"""


def test_among_operations_that_are_ready_the_most_urgent_starts_first():
    """They wait for the engine's only thread for urgent work, which another operation occupies."""
    environment = {**os.environ, "MXNET_CPU_PRIORITY_NTHREADS": "1"}
    command = [sys.executable, "-c", URGENT_FIRST]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.strip() == "[7, 3, -1, -9]"


def test_arrays_may_be_dropped_while_an_operation_is_pending():
    """The engine keeps the memory of an array whose last Python reference is gone."""
    operation = Recorder().push(mutable=[mx.nd.zeros((1000,))], const=[mx.nd.ones((1000,))])
    operation.wait()(None)
    assert engine.wait_until_idle(DEADLINE_S)


def test_abandoned_operations_end_as_failed():
    """Whatever is under way, started or not, can be ended at once."""
    array = mx.nd.zeros((2,))
    first, second = Recorder().push(mutable=[array]), Recorder().push(mutable=[array])
    first.wait()
    engine.abandon(TimeoutError("no answer"))
    assert engine.wait_until_idle(DEADLINE_S)
    assert [str(error) for error in (*first.errors, *second.errors)] == ["no answer", "no answer"]
    with pytest.raises(mx.MXNetError, match="no answer"):
        array.wait_to_read()


def test_operations_that_fail_at_once_end_one_after_the_other(monkeypatch):
    """MXNet notes errors of all threads in one list without a lock, and crashed, then or in waitall."""
    make, first, another, met = engine._COMPLETE, threading.Lock(), threading.Event(), []

    def watched(callback):
        def end(*arguments):
            if first.acquire(blocking=False):
                met.append(another.wait(0.5))  # for one that must not come before this one is over
            else:
                another.set()
            make(callback)(*arguments)

        return end

    monkeypatch.setattr(engine, "_COMPLETE", watched)
    ends = [Recorder().push(mutable=[mx.nd.zeros(1)]).wait() for _ in range(2)]
    threads = [threading.Thread(target=each, args=(BrokenError("both"),)) for each in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert (met, another.is_set()) == ([False], True)


def test_copies_of_native_errors_come_and_go():
    """The engine counts its copies of an error's text and gives them back; the text stays ours."""
    array = mx.nd.zeros((2,))
    Recorder().push(mutable=[array]).wait()(BrokenError("again"))
    error = engine._native_errors[-1]
    assert error.num_copies() > 0
    with pytest.raises(mx.MXNetError, match="again"):
        array.wait_to_read()
    del array
    clear_errors()
    assert error.num_copies() == 0


def test_room_is_made_for_errors_before_any():
    """What has failed before is raised and not lost, and nothing is left behind."""
    engine._make_room_for_errors.cache_clear()
    error, array = BrokenError("before"), mx.nd.zeros(2)
    engine.push_async(lambda done: done(error), mutable=[array], on_error=lambda _error: None)
    with pytest.raises(mx.base.MXNetError, match="before"):
        engine.prepare(1)
    engine.prepare(1)
    assert engine._make_room_for_errors.cache_info().currsize == 1
    assert engine.wait_until_idle(DEADLINE_S)
    mx.nd.waitall()


def test_a_callback_that_hangs_is_not_waited_for_for_ever(monkeypatch):
    """Its operation has ended, and the process is to end, too."""
    monkeypatch.setattr(engine, "LEAVING_SECONDS", 0.05)
    left = threading.Event()

    def hang(complete):
        complete()
        assert left.wait(DEADLINE_S)

    engine.push_async(hang, mutable=[mx.nd.zeros(2)], on_error=lambda _error: None)
    assert not engine.wait_until_idle(DEADLINE_S)
    left.set()
    assert engine.wait_until_idle()
