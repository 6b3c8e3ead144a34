"""Tables whose rows come into being when they are touched."""

from __future__ import annotations

from mutants.table import Mutant

_UNIT = ("unit/test_row_tables.py",)
_TWINS = ("property/test_row_tables.py",)
_INDEX = "kvstore_mpi/values/row_index.py"
_INIT = "kvstore_mpi/values/row_init.py"
_TABLE = "kvstore_mpi/values/row_table.py"
_CANDIDATES = "kvstore_mpi/values/row_candidates.py"
_PIECE = "kvstore_mpi/server/growing_piece.py"
_SERVED = ("unit/test_growing_pieces.py", "scenarios/test_growing_tables.py")
_BLOCK = "kvstore_mpi/adapters/mxnet/table_embedding.py"
_BLOCKS = ("contract/test_table_embedding.py", "contract/test_embedding_calls.py")
_CACHE = "kvstore_mpi/values/row_cache.py"
_CACHED = ("unit/test_row_cache.py",)

_CUT_ANEW = ("scenarios/test_growing_tables_cut_anew.py",)

MUTANTS = [
    Mutant(
        "rows have another server when a table that grows is cut anew",
        "kvstore_mpi/values/row_sparse.py",
        "rows % self._homes * self._each + rows // self._homes",
        "rows // self._each + rows % self._each * self._homes",
        ("unit/test_row_sparse.py",),
    ),
    Mutant(
        "states of rows begin anew when a table that grows is cut anew",
        _PIECE,
        "(other.values, *other.states), (self.rows.values, *self.rows.states)",
        "(other.values,), (self.rows.values,)",
        _CUT_ANEW,
    ),
    Mutant(
        "updates are counted anew when a table that grows is cut anew",
        "kvstore_mpi/server/state.py",
        "                    unit.count_from(updates)",
        "                    unit.count_from(0)",
        _CUT_ANEW,
    ),
    Mutant(
        "a table that grows has the rows of one before the former",
        "kvstore_mpi/server/keys.py",
        "        return max(found, key=lambda each: each.key_id, default=None)",
        "        return min(found, key=lambda each: each.key_id, default=None)",
        _CUT_ANEW,
    ),
    Mutant(
        "rows that one server had are cut among all",
        "kvstore_mpi/worker/tables.py",
        "    if former.partitions % num_servers or partitions % num_servers or",
        "    if partitions % num_servers or",
        _CUT_ANEW,
    ),
    Mutant(
        "fewer pieces are tried than a table may have",
        "kvstore_mpi/hybrid/partitions.py",
        "        return pieces // 2 if pieces // 2 >= self._least else None",
        "        return pieces // 2 or None",
        ("property/test_partition_search.py",),
    ),
    Mutant(
        "a table that grows has a piece more on some servers",
        "kvstore_mpi/adapters/mxnet/tables/live_cuts.py",
        "servers, most - most % servers, growth)",
        "servers, most, growth)",
        ("contract/test_live_cuts.py",),
    ),
    Mutant(
        "states of tables that grow are put together",
        "kvstore_mpi/worker/table_states.py",
        "        if part.spec.growth is not None:",
        "        if False:",
        ("contract/test_states_of_rows.py",),
    ),
    Mutant(
        "an evaluation has the old rows of training",
        _BLOCK,
        "            is_beside = self._staleness > 0 and not is_recorded",
        "            is_beside = False",
        _BLOCKS,
    ),
    Mutant(
        "a search ends where an id was removed",
        _INDEX,
        "        pending = pending[found[pending] != ABSENT]",
        "        pending = pending[found[pending] >= 0]",
        _TWINS,
    ),
    Mutant(
        "every id has the slot that it meets first",
        _INDEX,
        "            pending = pending[(self._ids[found] != ids[pending]) & (found != ABSENT)]",
        "            pending = pending[:0]",
        _TWINS,
    ),
    Mutant(
        "the slots of removed ids are lost",
        _INDEX,
        "        self._free = np.sort(np.concatenate([self._free, slots]))",
        "        self._free = np.sort(slots)",
        _TWINS,
    ),
    Mutant(
        "ids hash to their last bits",
        _INDEX,
        "        hashed: Array = ids.view(np.uint64) * _FIRST_FACTOR",
        "        hashed: Array = ids.view(np.uint64) << np.uint64(32)",
        _UNIT,
    ),
    Mutant(
        "a row is like the next one",
        _INIT,
        "        starts = _mixed(ids[lo : lo + block].view(np.uint64) * _GOLDEN + _seed_word(seed))",
        "        starts = ids[lo : lo + block].view(np.uint64) * _GOLDEN + _seed_word(seed)",
        _UNIT,
    ),
    Mutant(
        "all normal numbers are positive",
        _INIT,
        "    numbers.view(np.uint32)[...] |= bits & np.uint32(0x80000000)",
        "    numbers.view(np.uint32)[...] |= bits & np.uint32(0x00000000)",
        _UNIT,
    ),
    Mutant(
        "steps instead of lines between quantiles",
        _INIT,
        "    numbers *= rises.take(cell)",
        "    numbers *= 0",
        _UNIT,
    ),
    Mutant(
        "a row that has come back has missed steps of the one before",
        _TABLE,
        "        made: Array = self._uses[slots] == self._retention.admit_after",
        "        made: Array = self._uses[slots] == 0",
        _SERVED,
    ),
    Mutant(
        "ids that are not admitted need room",
        _CANDIDATES,
        "        return int((self._pushes[slots[slots != ABSENT]] >= self._needed - 1).sum())",
        "        return ids.size",
        _UNIT,
    ),
    Mutant(
        "rows from before a barrier are used",
        _CACHE,
        "        self._asked[:] = _NEVER",
        "        pass",
        _BLOCKS,
    ),
    Mutant(
        "a new row has the state of the one before",
        _TABLE,
        "            state[slots] = 0  # also of the row that had the slot before",
        "            pass",
        _UNIT,
    ),
    Mutant(
        "rows of this update are evicted",
        _TABLE,
        "        slots = slots[self._last_used[slots] < self._step]",
        "        slots = slots[self._last_used[slots] <= self._step]",
        _UNIT,
    ),
    Mutant(
        "slots decide between equals",
        _TABLE,
        "        by_id = np.argsort(self._index.ids_of(slots[equal]))",
        "        by_id = np.arange(equal.size)",
        _UNIT,
    ),
    Mutant(
        "the cap is exceeded by one",
        _TABLE,
        "        if not cap or len(self._index) + count <= cap:",
        "        if not cap or len(self._index) + count <= cap + 1:",
        _TWINS,
    ),
    Mutant(
        "rows that came back are told as gone",
        _TABLE,
        "gone = gone[(self._index.lookup(gone) == ABSENT) & ~self._candidates.has(gone)]",
        "gone = gone[~self._candidates.has(gone)]",
        _TWINS,
    ),
    Mutant(
        "ids that nobody waits for any more are not told",
        _CANDIDATES,
        "            self.forgotten.add(ids, step, self._pushes.size)",
        "            pass",
        _TWINS,
    ),
    Mutant(
        "the list of rows that went grows for ever",
        _CANDIDATES,
        "        while self._num_ids > most:",
        "        while self._num_ids < 0:",
        _UNIT,
    ),
    Mutant(
        "rows are admitted one push early",
        _CANDIDATES,
        "        admitted: Array = self._pushes[slots] >= self._needed",
        "        admitted: Array = self._pushes[slots] >= self._needed - 1",
        _TWINS,
    ),
    Mutant(
        "candidates are kept for ever",
        _CANDIDATES,
        "        if len(self._index) > most:",
        "        if len(self._index) < 0:",
        _UNIT,
    ),
    Mutant(
        "rows are one step too old",
        _CACHE,
        "        wanted = asked < use - self._staleness",
        "        wanted = asked < use - self._staleness - 1",
        _CACHED,
    ),
    Mutant(
        "rows that are too old stay for ever",
        _CACHE,
        "        old = self._asked[used] < now - self._staleness",
        "        old = self._asked[used] < -1",
        _CACHED,
    ),
    Mutant(
        "rows are asked for twice",
        _CACHE,
        "        self._asked[slots[wanted]] = now",
        "        self._asked[slots[wanted]] = now - 1",
        _CACHED,
    ),
    Mutant(
        "a row begins by its place and not by its id",
        _PIECE,
        "return initial_rows(init, layout.ids_of(number, places), layout.width, dtype)",
        "return initial_rows(init, places, layout.width, dtype)",
        _SERVED,
    ),
    Mutant(
        "each piece may have all rows",
        _PIECE,
        "max_rows=growth.retention.max_rows // layout.partitions)",
        "max_rows=growth.retention.max_rows)",
        _SERVED,
    ),
    Mutant(
        "gradients of rows that are not admitted go to others",
        _PIECE,
        "            slots, gradients = slots[admitted], gradients[admitted]",
        "            slots, gradients = slots[admitted], gradients[: admitted.size] * 2",
        _SERVED,
    ),
    Mutant(
        "ages begin anew with a restart",
        _PIECE,
        "        self._num_updates = int(arrays[UPDATES][0])",
        "        self._num_updates = max(1, int(arrays[LAST_USED].max(initial=0)))",
        _SERVED,
    ),
    Mutant(
        "a wide table asks for what has changed",
        "kvstore_mpi/worker/tables.py",
        "    if layout.grows:",
        "    if layout.num_rows < 0:",
        _SERVED,
    ),
    Mutant(
        "rows that are asked for ahead lack this batch",
        _BLOCK,
        "        if self._cache.may_ask(self._clock, use):",
        "        if use >= self._clock:",
        _BLOCKS,
    ),
    Mutant(
        "the next batch's rows are asked for twice",
        _BLOCK,
        "        use = self._clock + self._is_training",
        "        use = self._clock",
        _BLOCKS,
    ),
    Mutant(
        "gradients of the last lookup only",
        _BLOCK,
        "        self._used.append(_Used(ids, rows))",
        "        self._used = [_Used(ids, rows)]",
        _BLOCKS,
    ),
    Mutant(
        "gradients are not divided",
        _BLOCK,
        "        factor = dtype.type(1 / batch_size)",
        "        factor = dtype.type(1)",
        _BLOCKS,
    ),
    Mutant(
        "a lookup waits for pushes, too",
        _BLOCK,
        "            coming.here.wait_to_read()",
        "            self._table.array.wait_to_read()",
        _BLOCKS,
    ),
]
