"""Asynchronous operations in MXNet's dependency engine, started by a Python function.

The engine calls the function when the arrays are ready; whoever ends the work, on whatever thread,
completes the operation. This file must not know what the operations do.

Three rules of MXNet shape it. The record with which an operation is completed lies on the stack of the
engine's thread, so its words are copied before the callback returns. An operation must be completed
exactly once: never is a hang for ever, twice is a crash. And only one thread may push operations, which
is the thread that uses MXNet.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, MXNetError, check_call

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.adapters.mxnet.bridge.native_error import NativeError
from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.interfaces import Done

_PRIORITIZED = ctypes.byref(ctypes.c_int(3))
"""Run the start function on one of the engine's threads for urgent work.

It has to wait for the interpreter's lock there. On the normal queue it would do that on the one thread
that computes, and delay the model.
"""

LEAVING_SECONDS = 60.0
"""For a callback that has completed its operation to leave Python; it takes microseconds."""

_GLANCE_SECONDS = 1e-4

Start = Callable[[Done], None]


class _Context(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _CompletionRecord(ctypes.Structure):
    _fields_ = (
        ("callback", ctypes.c_void_p),
        ("engine", ctypes.c_void_p),
        ("operation", ctypes.c_void_p),
    )


_ON_CPU = ctypes.byref(_Context(1, 0))
_COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

# Of the module, as the engine is of the process: its threads call ``_COMPLETE``, which no object is handed.
_numbers = itertools.count(1)
_pending: dict[int, _Operation] = {}
"""Operations that have been pushed and not completed; the engine's callback knows only the number."""
_running: dict[int, bool] = {}
"""Callbacks on an engine thread's stack: an operation's number, or less than 0 where it is forgotten, which
may happen while it runs."""
_idle = threading.Condition()
_native_errors: list[NativeError] = []
"""Errors live for ever, since any array of the process may carry one."""


_failing = threading.Lock()
"""Held while an operation ends with an error: MXNet notes them in one list, of all threads, unlocked."""

_preparing = threading.Lock()
"""Held by the thread that makes room in that list, of whose errors another that waits would hear."""

_ROOM = 256
"""Errors at a time for which the list has room from the beginning: those of a large model's keys."""


class _Operation:
    """One operation from its push to its completion."""

    def __init__(self, start: Start, on_error: Callable[[BaseException], None]) -> None:
        self.number = next(_numbers)
        self._start = start
        self._on_error = on_error
        self._record: list[_CompletionRecord] = []

    def run(self, record: _CompletionRecord) -> None:
        """Start the work; called by the engine when the arrays are ready."""
        self._record.append(record)
        try:
            self._start(self.complete)
        except BaseException as error:  # noqa: BLE001  an escaping error would never complete the operation
            self.complete(error)

    def complete(self, error: BaseException | None = None) -> None:
        """End the operation; the first call counts, from any thread."""
        try:
            record = self._record.pop()
        except IndexError:
            return
        if error is None:
            _COMPLETE(record.callback)(record.engine, record.operation, None)
            _forget(self.number)
            return
        try:
            self._on_error(error)
        finally:  # whatever else fails: nobody can end the operation any more
            with _failing:
                _COMPLETE(record.callback)(record.engine, record.operation, _native_address(error))
            _forget(self.number)

    def abandon(self, error: BaseException) -> None:
        """End the operation as failed, also when the engine has not started it yet."""
        self._start = lambda done: done(error)
        self.complete(error)


@functools.cache
def is_naive() -> bool:
    """Return whether this is MXNet's engine for debugging: an operation is over when its push returns.

    MXNet makes its engine at the first array, and looks into the environment then. A script may choose one
    after this file was imported, so the first one who asks has the engine made before it looks.
    """
    mx.nd.waitall()
    return os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"


@functools.cache
def _pushing() -> Any:
    """Return the library: whoever waits in a push for an operation must not keep the interpreter's lock."""
    return _LIB if is_naive() else native.QUICK


def _native_address(error: BaseException) -> int:
    _native_errors.append(NativeError(error))
    return _native_errors[-1].address


def _forget(number: int) -> None:
    with _idle:
        _pending.pop(number, None)
        _idle.notify_all()


def _run(_context: Any, completion: Any, number: int) -> None:
    _running[number] = True
    record = completion.contents
    _pending[number].run(_CompletionRecord(record.callback, record.engine, record.operation))
    # The last act: whoever sees nothing running knows that this thread is as good as out of Python.
    del _running[number]


def _run_in_mxnet_2(context: Any, start: Any, completion: Any, number: int) -> None:
    record = start.contents
    _COMPLETE(record.callback)(record.engine, record.operation, None)
    _run(context, completion, number)


def _make_callback() -> Any:
    """Return the C function that the engine calls; MXNet 2 passes a record for the start as well."""
    record, address = ctypes.POINTER(_CompletionRecord), ctypes.c_void_p
    if mx.__version__.startswith("1."):
        return ctypes.CFUNCTYPE(None, address, record, address)(_run)
    return ctypes.CFUNCTYPE(None, address, record, record, address)(_run_in_mxnet_2)


_CALLBACK = _make_callback()


def _deleted(number: int) -> None:
    """Forget an operation that the engine has done with, also when it left it out."""
    _running[-number] = True
    _forget(number)
    del _running[-number]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_deleted)


def push_async(
    start: Start,
    *,
    mutable: Sequence[Any] = (),
    const: Sequence[Any] = (),
    priority: int = 0,
    on_error: Callable[[BaseException], None],
    after_failures: bool = True,
) -> None:
    """Push an operation and return; with the NaiveEngine, return when it has been completed.

    Args:
        start: Called once all earlier operations on the arrays are over. Must not wait for other processes.
            It is given the function that completes the operation, which any thread may call.
        mutable: Arrays that the operation writes; no two may share memory, nor one with ``const``.
        const: Arrays that the operation reads.
        priority: Larger is earlier among operations that are ready.
        on_error: Told the error when the operation fails, before the arrays' readers are.
        after_failures: Also when they failed, since another process may be waiting for what it sends.
            Otherwise the arrays that it would have written stay as they are, and carry the error.
    """
    operation = _Operation(start, on_error)
    order = ctypes.c_int(priority)  # what cannot be one leaves nothing behind: at exit all are waited for
    _pending[operation.number] = operation
    check_call(
        _pushing().MXEnginePushAsyncND(
            _CALLBACK,
            ctypes.c_void_p(operation.number),
            None if after_failures else _DELETER,
            _ON_CPU,
            native.handles(const),
            len(const),
            native.handles(mutable),
            len(mutable),
            _PRIORITIZED,
            order,
            b"kvstore_mpi",
            ctypes.c_bool(after_failures),
        )
    )


def wait_until_idle(timeout: float | None = None) -> bool:
    """Wait until no operation is under way and no engine thread is in Python.

    Args:
        timeout: Seconds for operations, after which threads have ``LEAVING_SECONDS``; ``None`` waits for
            ever.

    Returns:
        False when time ran out first.
    """
    with _idle:
        if not _idle.wait_for(lambda: not _pending, timeout):
            return False
    until = math.inf if timeout is None else time.monotonic() + LEAVING_SECONDS
    while _running:
        if time.monotonic() > until:
            return False
        # Nothing to wait for: who told of its own end would still be in Python then. It has to have the
        # interpreter's lock for the microseconds that are left.
        time.sleep(_GLANCE_SECONDS)
    return True


def abandon(error: BaseException) -> None:
    """Complete everything that is under way with an error, so that MXNet can shut down."""
    for operation in list(_pending.values()):
        operation.abandon(error)


def prepare(num_workers: int) -> None:
    """Prepare for the operations of a worker in a job of ``num_workers``.

    Of MXNet's engine for debugging each operation ends before the call returns. Two workers that name keys
    in different orders would then wait for each other for ever.

    Raises:
        ConfigurationError: That engine is chosen, and there is more than one worker.
        MXNetError: Something has failed before, of which nobody has heard yet.
    """
    with _preparing:
        if num_workers > 1 and is_naive():
            raise ConfigurationError(
                f"MXNET_ENGINE_TYPE=NaiveEngine with {num_workers} workers is not supported: every call "
                "would wait for all workers; unset it (after the first array it is too late for MXNet "
                "anyway), or debug with one worker"
            )
        if not is_naive():
            _make_room_for_errors()


@functools.cache
def _make_room_for_errors() -> None:
    """Have MXNet's list of errors grow before anything fails; once in a process.

    An operation that follows a failed one looks into the list on a thread of MXNet's, where no lock of ours
    is held, and reads memory that was freed if the list grows meanwhile. Of 24 processes in which 200
    operations failed again and again, with three others behind each, two ended with SIGABRT, and none of 24
    with room. It takes 10 ms. ``waitall`` empties the list, and leaves it its room.
    """
    mx.nd.waitall()  # what has failed before is the caller's
    error, array = RuntimeError("nobody hears of this"), mx.nd.empty((1,))
    for _ in range(_ROOM):
        push_async(lambda done: done(error), mutable=[array], on_error=lambda _error: None)
    with contextlib.suppress(MXNetError):
        mx.nd.waitall()


def check_overlap(call: str) -> None:
    """Refuse the engine for debugging to a call that needs operations to be under way at the same time.

    Raises:
        ConfigurationError: It is chosen.
    """
    if is_naive():
        raise ConfigurationError(
            f"{call} with MXNET_ENGINE_TYPE=NaiveEngine is not supported: the first push would wait for "
            "the last one of its step, which comes after it; unset it"
        )
