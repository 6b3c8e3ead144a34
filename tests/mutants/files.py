"""What the user alone may read, and output that cannot be written."""

from __future__ import annotations

from mutants.table import Mutant

_PRIVATE = ("unit/test_private_files.py",)
_PRINTER = ("unit/test_launcher_printer.py",)
_RESOURCES = ("unit/test_launcher_resources.py",)
_SNAPSHOTS = ("unit/test_snapshots.py",)

MUTANTS = [
    Mutant(
        "others can read what is private",
        "kvstore_mpi/private_files.py",
        "os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)",
        "os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)",
        _PRIVATE,
    ),
    Mutant(
        "what is in the place is overwritten",
        "kvstore_mpi/private_files.py",
        "return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)",
        "return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)",
        _PRIVATE,
    ),
    Mutant(
        "anybody's folder will do",
        "kvstore_mpi/private_files.py",
        "    if status.st_uid not in (os.geteuid(), ROOT):",
        "    if False:",
        _PRIVATE,
    ),
    Mutant(
        "a draft that is not whole stays",
        "kvstore_mpi/private_files.py",
        "    except BaseException:",
        "    except KeyboardInterrupt:",
        _PRIVATE,
    ),
    Mutant(
        "a full log disk fills the terminal",
        "launcher/printer.py",
        "            if not self._logs_have_failed:",
        "            if True:",
        _PRINTER,
    ),
    Mutant(
        "a terminal that is closed is a full disk",
        "launcher/printer.py",
        "elif error.errno == errno.EIO and id(stream) in self._terminals:",
        "elif False:",
        _PRINTER,
    ),
    Mutant(
        "a state of any size is taken up",
        "kvstore_mpi/server/shards.py",
        "            if shapes[0] != shapes[1]:",
        "            if False:",
        _SNAPSHOTS,
    ),
    Mutant(
        "a synchronous job goes on with an asynchronous one's snapshot",
        "kvstore_mpi/server/state.py",
        "    if message.mode != record.store.mode.value:",
        "    if False:",
        _SNAPSHOTS,
    ),
    Mutant(
        "nobody keeps what a server cannot save",
        "kvstore_mpi/worker/keys.py",
        "            key.keeps = self._keeps(key)",
        "            pass",
        ("unit/test_worker_state.py",),
    ),
    Mutant(
        "a server keeps to itself that it cannot save",
        "kvstore_mpi/server/server.py",
        "if self._snapshots.failing and self._config.keep_values and not self._copies.wanted:",
        "if False:",
        ("scenarios/test_returns.py::test_servers_that_cannot_save_have_copies_kept_elsewhere",),
    ),
    Mutant(
        "a record that does not fit the disk is lost",
        "launcher/rank/reporter.py",
        'more = {"record": record.brief().write().decode()}',
        "more = {}",
        _RESOURCES,
    ),
    Mutant(
        "a job begins that cannot open its files",
        "launcher/descriptors.py",
        "    if hard != resource.RLIM_INFINITY and hard < count:",
        "    if False:",
        _RESOURCES,
    ),
    Mutant(
        "what cannot be started ends the launcher",
        "launcher/supervise.py",
        "return [Exited(start.name, NO_RESOURCES)]",
        "raise",
        _RESOURCES,
    ),
    Mutant(
        "the advice is always that for the exit code",
        "launcher/report.py",
        "    if failure.remedy:",
        "    if False:",
        ("unit/test_launcher_mpi.py",),
    ),
]
