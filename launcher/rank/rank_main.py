"""``python -m mpilaunch.rank.rank_main [-m MODULE | SCRIPT] ARGS``: around every rank of a Python script.

A rank that fails must end its client, or the others wait for it in MPI for ever; and it must leave a record
that says why. How a rank can end::

    the script returns        its worker leaves the job; a worker that never joined, or that has failed,
                              makes the rank fail (78, or the code of its error)
    SIGUSR1, or sys.exit(75)  the script unwinds, so that ``finally`` and ``atexit`` can save; then the rank
                              waits for the launcher, because to end now would make MPI kill the ranks that
                              are still saving
    an error that says that   the same, for the others have that error, too, or hear of it from the
    somebody else has failed  launcher; the record says 69
    sys.exit(n), exception    record, then the script's exit handlers, for which the launcher gives it the
                              grace, then MPI_Abort
    a signal, os._exit        no record; its guard tells the launcher, and the others of its client save
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import io
import logging
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from kvstore_mpi.allocator import keep_freed_memory
from kvstore_mpi.comm import before_mpi
from kvstore_mpi.errors import ConfigurationError, KVStoreError, PeerError, ToldToEndError, lacks_thread
from kvstore_mpi.host_name import host_name
from kvstore_mpi.metrics.stacks import write_on_signal
from kvstore_mpi.tracing.annotation import installed
from kvstore_mpi.wakeups import WakeUps
from mpilaunch.outcome.root_cause import NO_RESOURCES, NO_STORE, SAVED
from mpilaunch.rank import guard
from mpilaunch.rank.last_words import flush, say, show, text_of, user_traceback, write_open_files
from mpilaunch.rank.passed_over import pass_over
from mpilaunch.rank.record import ExitRecord
from mpilaunch.rank.reporter import Reporter, rank_and_size
from mpilaunch.rank.script import run, set_arguments
from mpilaunch.rank.told_to_end import ToldToEnd, existing_worker, give_up_waiting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ABORT_SECONDS = 5
"""How long MPI_Abort may take before the rank ends itself by a signal, which mpiexec notices too."""

TRACEBACK_LINES = 40


class RankEnd:
    """How this rank ends, decided once; every way out of the process goes through here."""

    def __init__(self, reporter: Reporter) -> None:
        """Nothing has ended yet."""
        self._reporter = reporter
        self._recorded = False
        self._last: tuple[int, BaseException | None] | None = None
        self._failed: int | None = None
        self._is_saved = False
        self.script_is_over = False

    def record(self, code: int, error: BaseException | None = None) -> None:
        """Leave the record of the end; the first one counts."""
        if self._recorded:
            return
        self._recorded = True
        lines = user_traceback(error) if error is not None else []
        name = self._reporter.name
        self._reporter.record_end(
            ExitRecord(
                name.client,
                name.rank,
                host_name(),
                self._reporter.pid,
                code,
                type(error).__name__ if error is not None else "",
                text_of(error) if error is not None else "",
                lines[-TRACEBACK_LINES:],
                time.time(),
                time.monotonic(),
            )
        )

    def fail(self, code: int, error: BaseException | None = None) -> NoReturn:
        """Leave the record, by which the others hear of it, say why, save, and end this rank's client."""
        self.record(code, error)
        if error is not None:
            show(error)
        if self.script_is_over and not self._is_saved:
            self._failed = code
            write_open_files()  # a handler that does not end is ended
            atexit._run_exitfuncs()  # noqa: SLF001  it ends in on_saved, behind the script's own
        self._end_client(code)

    def _end_client(self, code: int) -> NoReturn:
        flush()
        recorder = installed()
        if recorder is not None:
            recorder.write()
        write_open_files()
        _abort(code)

    def wait_at_last(self, code: int, error: BaseException | None = None) -> None:
        """Leave the record when the script's exit handlers have run, then wait for the launcher.

        The first call counts.
        """
        self._last = self._last or (code, error)

    def by_error(self, error: KVStoreError) -> None:
        """End with one of our errors; ranks that save because of the same are not disturbed."""
        if isinstance(error, ToldToEndError):
            self.wait_at_last(SAVED)
        elif isinstance(error, PeerError):
            show(error)
            give_up_waiting()  # the exit handlers must not wait for what the job will not finish
            self.wait_at_last(error.exit_code, error)
        else:
            self.fail(error.exit_code, error)

    def on_saved(self) -> None:
        """After the user's own exit handlers: what there was to save is saved."""
        if not self.is_this_process():
            return
        self._is_saved = True
        if self._failed is not None:
            # Those of the library and of MXNet, which come next, would wait for the others.
            self._end_client(self._failed)
        if self._last is not None:
            self._record_saved(*self._last)

    def at_exit(self) -> None:
        """After all other exit handlers."""
        if not self.is_this_process():
            return
        if self._last is None:
            self._leave()
        flush()
        if self._last is None:
            self.record(0)
            return
        self._record_saved(*self._last)
        _wait_for_the_launcher()

    def _record_saved(self, code: int, error: BaseException | None) -> None:
        """Leave the record after which the launcher may end this process at any time."""
        if not self._recorded:
            write_open_files()
        self.record(code, error)

    def _leave(self) -> None:
        try:
            _leave_job()
        except KVStoreError as error:
            self.by_error(error)
        except BaseException as error:  # noqa: BLE001  the client must not wait for us
            self.fail(1, error)

    def is_this_process(self) -> bool:
        """Forked children inherit all of this, and must not speak for the rank."""
        return os.getpid() == self._reporter.pid


def main() -> None:
    """Run the script or module on the command line as a rank."""
    command = sys.argv[1:]
    # Until MPI is up and its files are noted, nothing can be saved, and a signal would only lose the note.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    guarded_by = guard.leave_behind()
    reporter = Reporter.from_mapping(os.environ)
    if "SLURM_JOB_ID" in os.environ:
        pass_over(signal.SIGTERM)
    reporter.connect_streams()
    reporter.take_variables()
    keep_freed_memory(os.environ)
    _buffer_lines()
    end = RankEnd(reporter)
    atexit.register(end.at_exit)  # registered first, so it runs after all the others
    try:
        wakeups = WakeUps()
        # Before the launcher knows of us, and may ask for stacks by a signal.
        write_on_signal(reporter.directory, str(reporter.name), wakeups)
        reporter.announce_start(guarded_by)
        set_arguments(command)
        _show_notices()
        _join_mpi(reporter)
        ToldToEnd(end, reporter).listen(wakeups)
        _register_stores()
        atexit.register(end.on_saved)
        try:
            _run_in(end, command)
        finally:
            # From here on a signal must unwind nothing: the record would be lost half-written.
            end.script_is_over = True
    except SystemExit as error:
        _end_by_exit(end, error.code)
    except KeyboardInterrupt as error:
        end.fail(128 + signal.SIGINT, error)
    except KVStoreError as error:
        end.by_error(error)
    except BaseException as error:  # noqa: BLE001  the end of this rank must be the end of its client
        end.fail(NO_RESOURCES if lacks_thread(error) else 1, error)


class _Notices(logging.StreamHandler):  # type: ignore[type-arg]  # generic only for type checkers on 3.9
    """Shows what the library has to say, unless the script has set up logging itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        if not logging.getLogger().handlers:
            super().emit(record)


def _show_notices() -> None:
    notices = _Notices()
    notices.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    library = logging.getLogger("kvstore_mpi")
    library.addHandler(notices)
    library.setLevel(logging.INFO)


def _end_by_exit(end: RankEnd, code: Any) -> None:
    """Do what ``sys.exit(code)`` asks for."""
    if code is None or code == 0:
        return
    if not isinstance(code, int):
        say(code)
        end.fail(1)
    if code != SAVED:
        # Of 256, which os.system returns for 1, the system keeps 0: the rank would seem to end well.
        end.fail(code & 0xFF or 1)
    end.wait_at_last(SAVED)


def _run_in(end: RankEnd, command: Sequence[str]) -> None:
    """Run the script; a child that it forks, and that comes back from it as well, ends here."""
    try:
        run(command)
    except BaseException as error:
        if not end.is_this_process():
            _end_forked(error)
        raise
    if not end.is_this_process():
        _end_forked(None)


def _end_forked(error: BaseException | None) -> NoReturn:
    """End a forked child as Python would, but for what MPI does at a process's end: that is the rank's.

    MPI would wait for a thread that a fork does not have.
    """
    code: Any = None
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):
            say(code)
            code = 1
    elif error is not None:
        show(error)
        code = 1
    atexit._run_exitfuncs()  # noqa: SLF001  the interpreter's own call has no public name
    flush()
    write_open_files()
    os._exit((code or 0) & 0xFF)


def _join_mpi(reporter: Reporter) -> None:
    """Initialise MPI, and make sure that it sees the ranks that mpiexec has started.

    Raises:
        ConfigurationError: There is no MPI, or mpiexec belongs to another one.
    """
    before_mpi.prepare(os.environ)
    try:
        from mpi4py import MPI  # noqa: PLC0415  importing it initialises MPI
    except (ImportError, RuntimeError) as error:
        raise ConfigurationError(f"MPI cannot be loaded: {error}; mpilaunch doctor checks it") from error
    reporter.record_shared_memory()
    reporter.announce_meeting()
    check_size(MPI.COMM_WORLD.size, rank_and_size(os.environ)[1], MPI.Get_library_version())


def check_size(size: int, told: int | None, library: str) -> None:
    """Compare the size of COMM_WORLD with what mpiexec said.

    Raises:
        ConfigurationError: They differ, so mpiexec and the library do not belong together.
    """
    if told is not None and told != size:
        raise ConfigurationError(
            f"mpiexec has started {told} ranks, but this one sees {size} in its COMM_WORLD: mpiexec does "
            f"not belong to the MPI that mpi4py runs on ({library.splitlines()[0].strip()}), so every "
            "rank is 0 of 1. Use the mpiexec of that library; mpilaunch doctor shows both"
        )


def _register_stores() -> None:
    """Make the store types known before the script asks for one, if there is an mxnet to know them."""
    # What imports have made stays until the end: collections among it find nothing, and took a third of the
    # 0.5 s of mxnet's, the end of the process included; those of the script need not look at it either.
    gc.disable()
    try:
        if importlib.util.find_spec("mxnet") is not None:
            with _crashes_stay_crashes():
                importlib.import_module("kvstore_mpi.mxnet")
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def _crashes_stay_crashes() -> Iterator[None]:
    """Undo what an import does about SIGSEGV and the like: with MXNet's a process exits there with 255.

    Python's own handlers of these signals keep what was there before, and put it back.
    """
    was_enabled = faulthandler.is_enabled()
    faulthandler.enable()
    try:
        yield
    finally:
        faulthandler.disable()
        if was_enabled:
            faulthandler.enable()


def _leave_job() -> None:
    """Let this process's worker leave in order.

    Raises:
        ConfigurationError: There is none: the script has trained alone.
        BaseException: The error that ended the worker.
    """
    worker = existing_worker()
    if worker is None:
        raise ConfigurationError(f"this worker has ended without ever having joined the job: {NO_STORE}")
    worker.close()
    failure = worker.failure()
    if failure is not None:
        raise failure


def _abort(code: int) -> NoReturn:
    """End this process now, and with it its client."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(ABORT_SECONDS)
        module.COMM_WORLD.Abort(code)
    os._exit(code)


def _wait_for_the_launcher() -> None:
    """Wait for the signal that ends the process: SIGTERM, or SIGKILL where others send the first, too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN if guard.is_slurms() else signal.SIG_DFL)
    while True:
        signal.pause()


def _buffer_lines() -> None:
    """Write whole lines as they come, although the streams are pipes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


if __name__ == "__main__":
    main()
