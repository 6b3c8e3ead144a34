"""Rows of a table among the ranks of a client."""

from __future__ import annotations

from mutants.table import Mutant

_TESTS = ("contract/test_rows.py",)
_ROWS = "kvstore_mpi/tensor_collectives/rows.py"
_SUMS = "kvstore_mpi/tensor_collectives/row_sums.py"
_UNIONS = "kvstore_mpi/tensor_collectives/row_unions.py"
_MEMORY = "kvstore_mpi/tensor_collectives/row_memory.py"
_DEALING = "kvstore_mpi/tensor_collectives/row_dealing.py"
_BLOCKS = "kvstore_mpi/tensor_collectives/row_blocks.py"

_LOOKUPS = "kvstore_mpi/tensor_collectives/row_lookups.py"
_TOGETHER = ("scenarios/test_lookups_together.py",)
_ASKS = ("unit/test_worker_asks_for_host.py",)

MUTANTS = [
    Mutant(
        "every rank that asks is sent all ids",
        _LOOKUPS,
        "        mine: Array = self.ids[of_ids == asker]",
        "        mine: Array = self.ids",
        _TESTS,
    ),
    Mutant(
        "a rank knows only of ids that came with those of the same tables",
        _LOOKUPS,
        "if came else each.ids[:0] for rank in self._others}",
        "for rank in came}",
        _TESTS,
    ),
    Mutant(
        "of rows since a version all are taken to have come",
        _LOOKUPS,
        "        if self._may_lack:",
        "        if False:",
        _TESTS,
    ),
    Mutant(
        "what was fetched ahead makes a lookup wait for other ranks",
        "kvstore_mpi/adapters/mxnet/tables/row_fetches.py",
        "        together = self._worker.unites_lookups and not found.is_ahead",
        "        together = self._worker.unites_lookups",
        ("contract/test_row_fetches.py",),
    ),
    Mutant(
        "a pass waits for other ranks though its rows were asked for ahead",
        "kvstore_mpi/adapters/mxnet/table_embedding.py",
        "        return not is_ahead",
        "        return True",
        ("contract/test_table_embedding.py",),
    ),
    Mutant(
        "rows of another rank lie where the next ones come",
        _LOOKUPS,
        "                *(Rows(rows[number].ids, rows[number].values.copy()) for rows in came.values()),",
        "                *(Rows(rows[number].ids, rows[number].values) for rows in came.values()),",
        _TOGETHER,
    ),
    Mutant(
        "rows are taken in the order in which they came",
        _LOOKUPS,
        "        return Rows(ids, self._values[self._order[np.searchsorted(self._ids, ids)]])",
        "        return Rows(ids, self._values[np.searchsorted(self._ids, ids)])",
        _TESTS,
    ),
    Mutant(
        "a host without the rank that pushes has nobody who asks",
        "kvstore_mpi/worker/lookups.py",
        "    return pusher if pusher in host else host[pusher % len(host)]",
        "    return pusher",
        _ASKS,
    ),
    Mutant(
        "rows are given when one rank has its own",
        "kvstore_mpi/worker/state.py",
        "            elif operation.lookup.one_has_come(key.askers.number):",
        "            elif operation.lookup.one_has_come(1):",
        _TOGETHER,
    ),
    Mutant(
        "a rank that needs no row is not there",
        "kvstore_mpi/adapters/mxnet/tables/row_fetches.py",
        "        if found.others.size or together:",
        "        if found.others.size:",
        ("contract/test_row_fetches.py",),
    ),
    Mutant(
        "ranks that ask for themselves count once",
        "kvstore_mpi/hybrid/cost.py",
        "    asking = ranks if pull is Pull.EACH else 1",
        "    asking = 1",
        ("unit/test_hybrid_cost.py",),
    ),
    Mutant(
        "a rank alone in its range leaves -0.0 as it is",
        _SUMS,
        "(values + values.dtype.type(0)).astype(table.dtype, copy=False))",
        "values.astype(table.dtype))",
        _TESTS,
    ),
    Mutant(
        "hosts' sums of half precision are rounded on the way",
        _SUMS,
        "PartialSums(table.num_rows, table.width, sum_type(table.dtype))",
        "PartialSums(table.num_rows, table.width, table.dtype)",
        _TESTS,
    ),
    Mutant(
        "what is not merged is not summed in the order of ranks",
        _UNIONS,
        "of_hosts = [of_ranks[rank] for rank in self._leaders]",
        "of_hosts = list(of_ranks.values())",
        _TESTS,
    ),
    Mutant(
        "the overlap of ids is not remembered",
        _UNIONS,
        "self._overlap[each.key] = union.ids.size / number",
        "self._overlap[each.key] = 1.0",
        _TESTS,
    ),
    Mutant(
        "a host's agent of an owner elsewhere is always the first rank",
        _ROWS,
        "return owner if owner in host else host[owner % len(host)]",
        "return host[owner % len(host)]",
        _TESTS,
    ),
    Mutant(
        "the space of the round before is written again",
        _MEMORY,
        "self._current = (space + 1) % SPACES",
        "self._current = space",
        _TESTS,
    ),
    Mutant(
        "what has grown is mapped once only",
        _MEMORY,
        'self._seen[rank, space] = int(numbers["generation"])',
        "self._seen[rank, space] = 1",
        _TESTS,
    ),
    Mutant(
        "two ranks merge first, which saves nothing",
        _DEALING,
        "overlap < (ranks - 1) / ranks",
        "overlap <= (ranks - 1) / ranks + 1e-9",
        _TESTS,
    ),
    Mutant(
        "each rank merges a range of the ids",
        _DEALING,
        "mixed = ids.astype(np.uint64) * _GOLDEN >> _HALF",
        "mixed = ids.astype(np.uint64) * (1 << 32) // max(1, ids.max(initial=0) + 1)",
        _TESTS,
    ),
    Mutant(
        "the last id of a huge table does not fit",
        _BLOCKS,
        "table.num_rows <= 1 << 31",
        "table.num_rows <= 1 << 32",
        _TESTS,
    ),
    Mutant(
        "sums are carried out together where nothing is gained by it",
        "kvstore_mpi/worker/mpi_thread.py",
        "if not bucket and job.together > 1 and self._gains_together(job):",
        "if not bucket and job.together > 1:",
        ("contract/test_mpi_thread.py",),
    ),
    Mutant(
        "tables of ranks with a host each share no messages",
        "kvstore_mpi/worker/mpi_thread.py",
        "return first.key.table is not None or self._group",
        "return self._group",
        ("contract/test_mpi_thread.py",),
    ),
    Mutant(
        "every table has a message of its own",
        "kvstore_mpi/worker/mpi_thread.py",
        "            table_collectives.carry_out(self._group, tables)",
        "            [table_collectives.carry_out(self._group, [each]) for each in tables]",
        ("contract/test_mpi_thread.py",),
    ),
    Mutant(
        "blocks of several tables overlap",
        _BLOCKS,
        "starts.append(-(-end // ALIGNMENT) * ALIGNMENT)",
        "starts.append(end // ALIGNMENT * ALIGNMENT)",
        _TESTS,
    ),
    Mutant(
        "blocks lie over their shapes",
        _MEMORY,
        "return -(-num_tables * _SHAPE_BYTES // ALIGNMENT) * ALIGNMENT",
        "return 0",
        _TESTS,
    ),
    Mutant(
        "an owner of some tables is sent rows of the others",
        _ROWS,
        "each.get(target) or no_rows(partial)",
        "each.get(target) or next(iter(each.values()), None) or no_rows(partial)",
        _TESTS,
    ),
    Mutant(
        "tables are taken to have no bytes when buckets are filled",
        "kvstore_mpi/worker/records.py",
        "self.sizes = [max(1, each)] * len(self.slices)",
        "self.sizes = [1] * len(self.slices)",
        ("unit/test_announcements.py",),
    ),
    Mutant(
        "ranks poll though they are on several hosts",
        "kvstore_mpi/comm/waits.py",
        "int(here) < int(ranks)",
        "int(here) > int(ranks)",
        ("unit/test_waits.py",),
    ),
    Mutant(
        "a lookup is sent to a server that has died meanwhile",
        "kvstore_mpi/worker/servers.py",
        "for asked, each in self._asks.items() if asked[0] != server}",
        "for asked, each in self._asks.items()}",
        ("unit/test_worker_lookups.py",),
    ),
    Mutant(
        "every lookup has a message of its own",
        "kvstore_mpi/worker/servers.py",
        "self._asks.setdefault((server, operation.priority), ([], []))",
        "self._asks.setdefault((server, key.key_id), ([], []))",
        ("unit/test_worker_lookups.py",),
    ),
    Mutant(
        "each push that is applied is told by itself",
        "kvstore_mpi/server/server.py",
        "            case Send(peer, m.Applied(entries)):",
        "            case Send(peer, m.Applied(entries)) if not entries:",
        ("scenarios/test_applied_together.py",),
    ),
    Mutant(
        "a worker that is started again is told of its former run's pushes",
        "kvstore_mpi/server/replies.py",
        "        self._applied.pop(peer, None)",
        "        self._applied.get(peer, None)",
        ("unit/test_replies.py",),
    ),
    Mutant(
        "few rows that have come are not written",
        "kvstore_mpi/adapters/mxnet/exchange/exchange.py",
        "                action()",
        "                pass",
        ("contract/test_row_fetches.py",),
    ),
    Mutant(
        "a row that is asked for twice comes twice",
        "kvstore_mpi/adapters/mxnet/bridge/row_arrays.py",
        "    if not (numbers[:-1] < numbers[1:]).all():  # a sort gives up the interpreter's lock",
        "    if not (numbers[:-1] <= numbers[1:]).all():",
        ("contract/test_row_fetches.py",),
    ),
    Mutant(
        "numbers of rows are read before they are there",
        "kvstore_mpi/adapters/mxnet/bridge/native.py",
        "    check_call(_LIB.MXNDArrayWaitToRead(array.handle))",
        "    check_call(0)",
        ("contract/test_mxnet_row_arrays.py",),
    ),
    Mutant(
        "a server ends with the session of a worker that it answers",
        "kvstore_mpi/server/server.py",
        "            loop.reply,",
        "            loop.send,",
        ("scenarios/test_applied_together.py",),
    ),
]
