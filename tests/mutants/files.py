"""What the user alone may read, snapshots, and output that cannot be written."""

from __future__ import annotations

from mutants.table import Mutant

_PRIVATE = ("unit/test_private_files.py",)
_PRINTER = ("unit/test_launcher_printer.py",)
_RESOURCES = ("unit/test_launcher_resources.py",)
_SNAPSHOTS = ("unit/test_snapshots.py",)
_CHAINS = ("unit/test_snapshot_chains.py",)
_BROKEN = ("unit/test_broken_chains.py",)
_SERVER = "kvstore_mpi/server/"

MUTANTS = [
    Mutant(
        "a pipe that cannot be made is not named",
        "launcher/hosts/local.py",
        "raise OSError(error.errno, error.strerror, str(path)) from error",
        "raise",
        ("unit/test_launcher_hosts.py", "unit/test_launcher_resources.py"),
    ),
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
        "kvstore_mpi/server/shard_states.py",
        "        if shapes[0] != shapes[1]:",
        "        if False:",
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
        "a rank loses what it has written to files that it has frozen",
        "launcher/rank/last_words.py",
        "    gc.unfreeze()",
        "    gc.collect()",
        ("unit/test_last_words.py",),
    ),
    Mutant(
        "a rank that gets no thread loses what it has written",
        "launcher/rank/last_words.py",
        "            _write(rest)",
        "            pass",
        ("unit/test_last_words.py",),
    ),
    Mutant(
        "an exception is shown before what the script has printed",
        "launcher/rank/last_words.py",
        "    flush()",
        "    pass",
        ("unit/test_last_words.py",),
    ),
    Mutant(
        "a script's hook for exceptions is not called",
        "launcher/rank/last_words.py",
        "    if hook is sys.__excepthook__:",
        "    if hook is not None:",
        ("unit/test_last_words.py",),
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
        "launcher/outcome/report.py",
        "    if failure.remedy or failure.host_is_lost:",
        "    if failure.host_is_lost:",
        ("unit/test_launcher_mpi.py",),
    ),
    Mutant(
        "what has changed since a copy that was never written is forgotten",
        _SERVER + "snapshot_chain.py",
        "        if not copied.snapshot.header.link:",
        "        if self.marks.update(copied.marks) is None and not copied.snapshot.header.link:",
        _CHAINS,
    ),
    Mutant(
        "what is pushed while a copy is made is in no link",
        _SERVER + "changed_rows.py",
        "self._stamps >= mark[1]",
        "self._stamps > mark[1]",
        _CHAINS,
    ),
    Mutant(
        "rows that went come back with a chain",
        _SERVER + "link_rows.py",
        "    newest = newest[about[USES][newest] > 0]",
        "    newest = newest[about[USES][newest] >= 0]",
        _CHAINS,
    ),
    Mutant(
        "the oldest link of a row counts",
        _SERVER + "link_rows.py",
        "        for link in links:",
        "        for link in reversed(links):",
        _CHAINS,
    ),
    Mutant(
        "a chain grows for ever",
        _SERVER + "snapshot_chain.py",
        "            and self._link_bytes + num_bytes <= base_bytes",
        "            and num_bytes <= base_bytes",
        _CHAINS,
    ),
    Mutant(
        "links of an earlier base are taken up",
        _SERVER + "snapshot_file.py",
        "        if link is None or link.header.chain != base.chain:",
        "        if link is None:",
        _BROKEN,
    ),
    Mutant(
        "a link that is missing is not missed",
        _SERVER + "snapshot_file.py",
        "        if number > expected:",
        "        if False:",
        _BROKEN,
    ),
    Mutant(
        "links stay beside a new base",
        _SERVER + "snapshot_file.py",
        "        remove_links(path)",
        "        pass",
        _CHAINS,
    ),
    Mutant(
        "a base may have what has changed",
        _SERVER + "snapshot_check.py",
        "        if not header.link and is_link_part",
        "        if False and is_link_part",
        _BROKEN,
    ),
    Mutant(
        "a link may have rows of another piece",
        _SERVER + "link_rows.py",
        "            if not inside or link",
        "            if link",
        _BROKEN,
    ),
    Mutant(
        "a last snapshot that cannot be written is a warning like others",
        _SERVER + "snapshots.py",
        "            if is_last:",
        "            if False:",
        _SNAPSHOTS,
    ),
    Mutant(
        "a folder is looked for behind another user's link",
        "kvstore_mpi/private_files.py",
        "    _check_owner(path.lstat(), path)",
        "    pass",
        _PRIVATE,
    ),
    Mutant(
        "a snapshot's header may end behind the file",
        _SERVER + "snapshot_file.py",
        "    if length > size - start - _CHECKSUM.size:",
        "    if False:",
        _BROKEN,
    ),
]
