"""Tables on the wire: pieces, versions, and what a server answers."""

from __future__ import annotations

from mutants.table import Mutant

_JOBS = ("scenarios/test_tables.py",)
_SIMULATED = ("scenarios/test_tables.py", "scenarios/test_simulation.py")
_SHARDS = "kvstore_mpi/server/table_shards.py"
_PIECE = "kvstore_mpi/server/table_piece.py"
_WORKER = "kvstore_mpi/worker/table_state.py"
_LAYOUT = "kvstore_mpi/values/row_sparse.py"

MUTANTS = [
    Mutant(
        "a change is missing in what a worker is sent",
        _PIECE,
        "range(version - self.first, len(self.changes))",
        "range(version - self.first + 1, len(self.changes))",
        _JOBS,
    ),
    Mutant(
        "a log that was cut counts as whole",
        _PIECE,
        "            self.first += 1",
        "            self.first += 0",
        _SIMULATED,
    ),
    Mutant(
        "a server that was started again goes on counting",
        _SHARDS,
        "first = incarnation * INCARNATION",
        "first = 0 * INCARNATION",
        ("unit/test_table_shards.py",),
    ),
    Mutant(
        "rows that only the sum before had count as pushed",
        _PIECE,
        "return self._changed_since(version) if self.summed is None else self.summed",
        "return self._changed_since(version)",
        ("unit/test_table_shards.py", "contract/test_zero_gradients.py"),
    ),
    Mutant(
        "rows of the sum before stay",
        _PIECE,
        "    self.value[before] = 0",
        "    self.value[before] += 0",
        _JOBS,
    ),
    Mutant(
        "rows that have become zero are not told",
        _PIECE,
        "return np.union1d(before, merged.ids)",
        "return merged.ids",
        _JOBS,
    ),
    Mutant(
        "what a leader has pulled alone counts for its client",
        _WORKER,
        "self.together = self.known.copy()",
        "self.together = self.known",
        _JOBS,
    ),
    Mutant(
        "rows asked for by their ids count as all that have changed",
        _WORKER,
        "if pushed or operation.source.is_delta:",
        "if True:",
        _JOBS,
    ),
    Mutant(
        "a worker asks for everything each time",
        _WORKER,
        "            operation.source.versions = self.together",
        "            operation.source.versions = [-1] * len(self.together)",
        _JOBS,
    ),
    Mutant(
        "ids are those of another piece",
        _LAYOUT,
        "            ids += self._first_of(piece)",
        "            ids += 0",
        _JOBS,
    ),
    Mutant(
        "places beyond the piece are taken",
        _LAYOUT,
        "places[-1] < self.rows_of(lo // 2) and",
        "True and",
        ("unit/test_row_sparse.py",),
    ),
    Mutant(
        "a piece gets another's rows",
        _LAYOUT,
        "            yield (pieces == piece).nonzero()[0]",
        "            yield (pieces == 0).nonzero()[0]",
        _JOBS,
    ),
    Mutant(
        "of many pieces each gets another's rows",
        _LAYOUT,
        'order = np.argsort(narrow, kind="stable")',
        'order = np.argsort(narrow[::-1], kind="stable")',
        ("unit/test_row_sparse.py",),
    ),
    Mutant(
        "rows are dealt to the first 65,536 pieces",
        _LAYOUT,
        "    narrow = pieces.astype(np.uint16) if partitions <= 1 << 16 else pieces",
        "    narrow = pieces.astype(np.uint16)",
        ("unit/test_row_sparse.py",),
    ),
    Mutant(
        "snapshots have the times of steps, for which the next job waits",
        "kvstore_mpi/server/snapshot_copy.py",
        " if not each.spec.scratch]",
        "]",
        ("unit/test_snapshots.py",),
    ),
    Mutant(
        "times of steps are overwritten when their key comes into being",
        "kvstore_mpi/adapters/mxnet/tables/live_cuts.py",
        "self._created.add_done_callback(lambda result: self._add_up(result.result(), done))",
        "self._add_up(None, done)",
        ("contract/test_mxnet_partitions.py",),
    ),
    Mutant(
        "times count in proportion to those before them alone",
        "kvstore_mpi/hybrid/fit.py",
        "middle = (before.seconds + after.seconds) / 2",
        "middle = before.seconds",
        ("unit/test_hybrid_partitions.py",),
    ),
    Mutant(
        "what changes beside a sample is no error of it",
        "kvstore_mpi/hybrid/fit.py",
        "(of_middle + (before.seconds - after.seconds) ** 2)",
        "of_middle",
        ("unit/test_hybrid_partitions.py",),
    ),
    Mutant(
        "a worker takes its rows for newer than they are",
        _WORKER,
        "            self.known[piece] = version",
        "            self.known[piece] = version + (version > 0)",
        ("scenarios/test_returns.py::test_asynchronous_training_survives_deaths",),
    ),
    Mutant(
        "of a piece that grows the first row alone is updated",
        "kvstore_mpi/server/growing_piece.py",
        "(optimizer, rows.values, slots, gradients, rows.states,",
        "(optimizer, rows.values, slots[:1], gradients[:1], rows.states,",
        ("scenarios/test_simulation.py::test_trainings_end_right_whatever_the_network_does",),
    ),
    Mutant(
        "rows that the first rank has not are lost when a client merges",
        "kvstore_mpi/values/rows.py",
        "            mask[part] = True",
        "            mask[part] = part is ids[0]",
        ("scenarios/test_simulation.py::test_trainings_end_right_whatever_the_network_does",),
    ),
]
