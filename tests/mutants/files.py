"""What the user alone may read, and output that cannot be written."""

from __future__ import annotations

from mutants.table import Mutant

_PRIVATE = ("unit/test_private_files.py",)
_PRINTER = ("unit/test_launcher_printer.py",)
_RESOURCES = ("unit/test_launcher_resources.py",)
_SNAPSHOTS = ("unit/test_snapshots.py",)
_CHAINS = ("unit/test_snapshot_chains.py",)
_RESUMPTION = ("unit/test_resumption.py",)
_BROKEN = ("unit/test_broken_chains.py",)
_SERVER = "kvstore_mpi/server/"

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
        "rows keep the ages of another count",
        _SERVER + "recut.py",
        "yield LAST_USED, self._newest - ages",
        "yield LAST_USED, 24 - ages",
        _RESUMPTION,
    ),
    Mutant(
        "states go to other rows than values",
        _SERVER + "recut.py",
        "                for part, count in zip(parts, num_rows)",
        "                for part, count in zip(reversed(parts), reversed(num_rows))",
        _RESUMPTION,
    ),
    Mutant(
        "a master is begun anew",
        _SERVER + "recut.py",
        "rows = part.get(index, part[VALUE] if index == MASTER else None)",
        "rows = part[VALUE] if index == MASTER else part.get(index)",
        _RESUMPTION,
    ),
    Mutant(
        "a job is resumed with pieces that nobody has saved",
        _SERVER + "recut.py",
        "        if self._missing:",
        "        if False:",
        _RESUMPTION,
    ),
    Mutant(
        "another table is taken up in its place",
        _SERVER + "resumption.py",
        "        if (cut, message.mode) != (was.spec, was.mode) or not message.spec.partitions:",
        "        if not message.spec.partitions:",
        _RESUMPTION,
    ),
    Mutant(
        "a snapshot takes the place of tables that are not taken up",
        _SERVER + "snapshots.py",
        "        return not resumption.is_over",
        "        return False",
        _RESUMPTION,
    ),
    Mutant(
        "former snapshots are removed too early",
        _SERVER + "snapshot_sets.py",
        "        if own and _oldest_time",
        "        if _oldest_time",
        _RESUMPTION,
    ),
    Mutant(
        "a set that was begun counts",
        _SERVER + "snapshot_sets.py",
        "        if set(range(servers)) == set(paths)",
        "        if set(paths)",
        _RESUMPTION,
    ),
    Mutant(
        "the older set counts",
        _SERVER + "snapshot_sets.py",
        "    return max(_whole_sets(folder)",
        "    return min(_whole_sets(folder)",
        _RESUMPTION,
    ),
    Mutant(
        "pulls that wait for a table that is taken up are never answered",
        _SERVER + "state.py",
        "            return [*adopted, *self._answer_deferred(message.key_id)]",
        "            return adopted",
        _RESUMPTION,
    ),
    Mutant(
        "servers without a piece of a table wait for it",
        "kvstore_mpi/worker/servers.py",
        "        return [Send(node, message, []) for node in self.nodes if node not in owners]",
        "        return [Send(node, message, []) for node in self.nodes if node in owners]",
        _RESUMPTION,
    ),
    Mutant(
        "a table without a piece here comes to be here",
        _SERVER + "state.py",
        "        if not message.runs:  # a table of which",
        "        if False:  # a table of which",
        _RESUMPTION,
    ),
]
