"""Decisions on tables: what a way costs, which one is taken, and into how many pieces tables are cut."""

from __future__ import annotations

from mutants.table import Mutant

_TABLE3 = ("paper/test_parallax_table3.py",)
_COST = ("unit/test_hybrid_cost.py",)
_ROUTES = ("unit/test_hybrid_routes.py",)
_DENSITY = ("unit/test_hybrid_density.py",)
_KEYS = ("contract/test_mxnet_hybrid.py",)
_CALLS = ("contract/test_mxnet_hybrid_calls.py",)
_PARALLEL = ("contract/test_mxnet_parallel.py",)
_LIVE = ("contract/test_mxnet_partitions.py",)
_ANEW = ("scenarios/test_tables_cut_anew.py",)
_MOVED = ("unit/test_resumption_of_moved_tables.py",)
_SEARCH = ("unit/test_hybrid_partitions.py",)
_TABLE2 = ("paper/test_parallax_partitions.py",)
_PLACEMENT = ("unit/test_hybrid_placement.py",)
_PLAN = ("unit/test_hybrid_plan.py",)
_SHARDS = ("unit/test_sharding.py",)
_IN = "kvstore_mpi/hybrid/"

MUTANTS = [
    Mutant(
        "a route that a user wants is not taken",
        "kvstore_mpi/adapters/mxnet/exchange/key_routes.py",
        "return self.wanted(key) or (",
        "return (",
        _KEYS,
    ),
    Mutant(
        "a symbol with row-sparse gradients says nothing",
        "kvstore_mpi/adapters/mxnet/exchange/gluon_parameters.py",
        'each.get("sparse_grad") in _YES or (',
        "(",
        _CALLS,
    ),
    Mutant(
        "a table that comes after the optimizer changes nothing",
        "kvstore_mpi/adapters/mxnet/store.py",
        "        if self._tables.has_any or not native.is_dense(value):",
        "        if self._updates.updater is None:",
        _CALLS,
    ),
    Mutant(
        "a table moves dense keys that were to stay on servers",
        "kvstore_mpi/adapters/mxnet/store.py",
        '            if worker.dense == "auto":',
        "            if worker.dense:",
        _CALLS,
    ),
    Mutant(
        "snapshots lack what workers sum",
        "kvstore_mpi/adapters/mxnet/exchange/key_routes.py",
        'worker.dense == "auto" and not worker.has_snapshots',
        'worker.dense == "auto"',
        _CALLS,
    ),
    Mutant(
        "gradients of all workers are divided by the batch of one",
        "kvstore_mpi/adapters/mxnet/parallel.py",
        'workers = store.num_workers if mode == "sync" else 1',
        "workers = 1",
        _PARALLEL,
    ),
    Mutant(
        "a smaller batch at the end of an epoch is refused",
        "kvstore_mpi/adapters/mxnet/parallel.py",
        "trainer._check_and_rescale_grad = MethodType(_rescale, trainer)",
        "trainer._unused = MethodType(_rescale, trainer)",
        _PARALLEL,
    ),
    Mutant(
        "what has never been summed counts as sent",
        "kvstore_mpi/adapters/mxnet/tables/plan.py",
        "was_summed=staging.was_pushed and way.route.by_workers",
        "was_summed=way.route.by_workers",
        _CALLS,
    ),
    Mutant(
        "what is computed counts as measured",
        _IN + "plan.py",
        "computed=was_summed and predicted is not None",
        "computed=False",
        (*_PLAN, *_CALLS),
    ),
    Mutant(
        "a table that the workers have as a key is not let go",
        "kvstore_mpi/adapters/mxnet/tables/moves.py",
        "        if route is Route.SERVERS and not self._exchange.is_on_servers(key):",
        "        if route is Route.SERVERS and not staging:",
        _CALLS,
    ),
    Mutant(
        "what is summed among workers goes to the servers",
        "kvstore_mpi/adapters/mxnet/exchange/exchange.py",
        "staging.store = self.store_of(route)",
        "staging.store = self.store",
        _KEYS,
    ),
    Mutant(
        "a key that is there is summed by workers from now on",
        "kvstore_mpi/adapters/mxnet/exchange/exchange.py",
        "        for key, route in late:",
        "        for key, route in late[:0]:",
        _KEYS,
    ),
    Mutant(
        "a server's machine is charged for its own worker",
        _IN + "cost.py",
        "            (1 - share) * up + share * others * down,",
        "            up + share * others * down,",
        _TABLE3,
    ),
    Mutant(
        "one server on each machine is all that is thought of",
        _IN + "cost.py",
        "return min(self.servers, self.machines) if self.colocated else self.servers",
        "return self.machines if self.colocated else self.servers",
        _COST,
    ),
    Mutant(
        "servers of their own are as busy as workers",
        _IN + "cost.py",
        "    if share * machines > 1:",
        "    if share * machines > machines:",
        _COST,
    ),
    Mutant(
        "rows that are asked for cost no request",
        _IN + "cost.py",
        "    return Traffic(pushed + asked, came, table.pieces)",
        "    return Traffic(pushed, came, table.pieces)",
        _ROUTES,
    ),
    Mutant(
        "changes of others are not counted",
        _IN + "cost.py",
        "return Traffic(pushed, density.job * table.rows * a_row + headers, table.pieces)",
        "return Traffic(pushed, density.machine * table.rows * a_row + headers, table.pieces)",
        _ROUTES,
    ),
    Mutant(
        "an allreduce of rows never merges",
        _IN + "cost.py",
        "    return min(ways, key=lambda each: each.num_bytes)",
        "    return ways[0]",
        _ROUTES,
    ),
    Mutant(
        "links carry one direction at a time",
        _IN + "cost.py",
        "return self.byte_s * max(traffic.sent, traffic.received) + self.message_s * traffic.messages",
        "return self.byte_s * traffic.num_bytes + self.message_s * traffic.messages",
        _COST,
    ),
    Mutant(
        "tables that are cut anew lose their states",
        "kvstore_mpi/adapters/mxnet/tables/live_cuts.py",
        "        if states is not None:",
        "        if states is None:",
        _LIVE,
    ),
    Mutant(
        "workers feed the search with sums of times",
        "kvstore_mpi/adapters/mxnet/tables/live_cuts.py",
        "        search.feed((self._sums / self._exchange.worker.num_workers).tolist())",
        "        search.feed(self._sums.tolist())",
        _LIVE,
    ),
    Mutant(
        "workers of an async store cut tables anew",
        "kvstore_mpi/adapters/mxnet/tables/rows.py",
        '        if self._mode == "async":',
        '        if self._mode == "none":',
        _LIVE,
    ),
    Mutant(
        "patterns may come behind the tables that they are of",
        "kvstore_mpi/adapters/mxnet/tables/partitions.py",
        "        if name in keys or fitting:",
        "        if name in keys:",
        _LIVE,
    ),
    Mutant(
        "the first pattern counts before the name",
        "kvstore_mpi/adapters/mxnet/tables/partitions.py",
        "        return next(iter([*exact, *fitting]), Cut())",
        "        return next(iter([*fitting, *exact]), Cut())",
        _LIVE,
    ),
    Mutant(
        "servers keep what nobody uses any more",
        "kvstore_mpi/server/keys.py",
        "        return self.free_retired(now)",
        "        return []",
        _ANEW,
    ),
    Mutant(
        "states stay behind when a table is cut anew",
        "kvstore_mpi/server/optimizer_requests.py",
        "            units = [unit for unit in units if unit.key.key_id in message.keys]",
        "            units = [unit for unit in units if unit.key.key_id not in message.keys]",
        _ANEW,
    ),
    Mutant(
        "a job goes on with the oldest table of a name",
        "kvstore_mpi/server/resumption.py",
        "    for number in sorted(tables, reverse=True):",
        "    for number in sorted(tables):",
        _MOVED,
    ),
    Mutant(
        "a job takes up what workers had last",
        "kvstore_mpi/server/resumption.py",
        "        if numbers[0] not in retired",
        "        if numbers",
        _MOVED,
    ),
    Mutant(
        "the ranks of a client count as one",
        _IN + "density.py",
        "    rank, client = counted.rank / (whole * ranks), counted.client / whole",
        "    rank, client = counted.rank / whole, counted.client / whole",
        _DENSITY,
    ),
    Mutant(
        "what training touches is looked at once",
        _IN + "density.py",
        "    return steps >= WINDOW_STEPS and (steps - WINDOW_STEPS) % LATER_STEPS == 0",
        "    return steps == WINDOW_STEPS",
        _DENSITY,
    ),
    Mutant(
        "no margin keeps a key where it is",
        _IN + "routes.py",
        "        margin = MARGIN if self.decided else FIRST_MARGIN",
        "        margin = FIRST_MARGIN",
        _ROUTES,
    ),
    Mutant(
        "the first density is not the first",
        _IN + "routes.py",
        "        self.decided = True",
        "        self.decided = False",
        _ROUTES,
    ),
    Mutant(
        "a pattern counts before a name",
        _IN + "routes.py",
        "    if name in force:",
        "    if not force:",
        _ROUTES,
    ),
    Mutant(
        "whatever is slower ends the search",
        _IN + "fit.py",
        "    return sample.seconds - best.seconds > errors * noise",
        "    return sample.seconds > best.seconds",
        (*_TABLE2, *_SEARCH),
    ),
    Mutant(
        "the error does not shrink with the number of steps",
        _IN + "fit.py",
        "    error = _MEDIAN_ERROR * deviation / math.sqrt(len(seconds))",
        "    error = _MEDIAN_ERROR * deviation",
        _SEARCH,
    ),
    Mutant(
        "a sample is compared with the one before it",
        _IN + "partitions.py",
        "        return min(self._samples, key=lambda each: each.seconds)",
        "        return self._samples[-1]",
        (*_TABLE2, *_SEARCH),
    ),
    Mutant(
        "fewer pieces than the first are always tried",
        _IN + "partitions.py",
        "            return None if slower else self._start // 2 or None",
        "            return self._start // 2 or None",
        _SEARCH,
    ),
    Mutant(
        "the curve counts where a sample was better",
        _IN + "partitions.py",
        "        if seconds - best.seconds > 2 * best.error:",
        "        if not self._samples:",
        _SEARCH,
    ),
    Mutant(
        "servers get unequal numbers of pieces",
        _IN + "partitions.py",
        "        fewer = range(least, min(most, self._multiple) + 1)",
        "        fewer = range(least, most + 1)",
        _SEARCH,
    ),
    Mutant(
        "as many partitions as rows are too many",
        _IN + "partitions.py",
        "    if partitions > rows:",
        "    if partitions >= rows:",
        _SEARCH,
    ),
    Mutant(
        "the fullest servers get a piece more",
        _IN + "placement.py",
        "    for server in sorted(range(len(loads)), key=loads.__getitem__)[:rest]:",
        "    for server in sorted(range(len(loads)), key=loads.__getitem__)[-rest or len(loads):]:",
        _PLACEMENT,
    ),
    Mutant(
        "the bytes of tables are forgotten",
        "kvstore_mpi/scheduler/placement.py",
        "                self._table_loads[server] += dealt * piece_bytes",
        "                self._table_loads[server] += dealt",
        _PLACEMENT,
    ),
    Mutant(
        "servers with tables get less of the dense keys",
        "kvstore_mpi/scheduler/placement.py",
        "                self._table_loads[server] += dealt * piece_bytes",
        "                self._loads[server] += dealt * piece_bytes",
        ("unit/test_placement.py",),
    ),
    Mutant(
        "bytes that are unknown for one key count as none",
        _IN + "plan.py",
        "            return None",
        "            continue",
        _PLAN,
    ),
    Mutant(
        "a shard that is filled up begins with its own elements again",
        "kvstore_mpi/sharding.py",
        "            behind = self._index - len(this)",
        "            behind = self._index",
        _SHARDS,
    ),
    Mutant(
        "an incomplete round is given to some",
        "kvstore_mpi/sharding.py",
        "        if this and self._remainder == REPEAT:",
        "        if this and self._index < len(this):",
        _SHARDS,
    ),
    Mutant(
        "tables whose rows the workers merge are on servers",
        "kvstore_mpi/adapters/mxnet/exchange/exchange.py",
        "return self._summed_store if route.by_workers else self.store",
        "return self._summed_store if route is Route.ALLREDUCE else self.store",
        ("contract/test_mxnet_hybrid.py",),
    ),
    Mutant(
        "nobody updates tables whose rows the workers merge",
        "kvstore_mpi/adapters/mxnet/tables/rows.py",
        "return self._updates.on_workers or not self._exchange.is_on_servers(key)",
        "return self._updates.on_workers",
        ("contract/test_mxnet_hybrid.py",),
    ),
    Mutant(
        "row-sparse weights that workers update are not there",
        "kvstore_mpi/adapters/mxnet/tables/rows.py",
        "has_mirror = not is_sparse or self._updates.on_workers or route.by_workers",
        "has_mirror = not is_sparse or self._updates.on_workers",
        ("contract/test_mxnet_hybrid.py",),
    ),
    Mutant(
        "a push of rows that workers merge waits for all of them",
        "kvstore_mpi/adapters/mxnet/tables/rows.py",
        "        gradient = rows_behind(table.array, lambda: together(out, table).array)",
        "        gradient = (self._wait(table), together(out, table).array)[1]",
        ("contract/test_mxnet_hybrid.py",),
    ),
    Mutant(
        "what workers have updated reaches no array of the user",
        "kvstore_mpi/adapters/mxnet/exchange/row_tables.py",
        "return [Rows(ids, self.mirror[ids])]",
        "return []",
        ("contract/test_mxnet_hybrid.py",),
    ),
    Mutant(
        "a resumed job may update what servers have updated",
        "kvstore_mpi/adapters/mxnet/exchange/counts_before.py",
        "        if (count := self.of(key)) and ",
        "        if (count := self.of(key)) > 10 and ",
        ("faults/test_trainers.py::test_a_resumed_job_whose_workers_update",),
    ),
]
