"""Where operations are placed, and how pipelines are cut into stages."""

from __future__ import annotations

from mutants.table import Mutant

_PLACE = ("unit/test_dlplacer.py", "unit/test_dlplacer_brute.py")
_BRUTE = ("unit/test_dlplacer_brute.py",)
_SEARCH = ("unit/test_dlplacer_search.py",)
_RECORDS = ("unit/test_dlplacer_records.py",)
_REPEATS = ("unit/test_dlplacer_repeats.py",)
_ROUTES = ("unit/test_dlplacer_routes.py",)
_STAGES = ("unit/test_dlplacer_stages.py",)
_IN_TURN = ("unit/test_dlplacer_in_turn.py",)
_CUT = ("property/test_pipelines.py", "unit/test_unequal_devices.py")
_PARTS = ("unit/test_planner_cuts.py",)
_ANY = ("property/test_dlplacer.py",)
_GRAPH = ("contract/test_mxnet_graph.py",)
_IN = "kvstore_mpi/planner/placement/"

MUTANTS = [
    Mutant(
        "a net that nothing has divided is trained by each rank",
        "kvstore_mpi/adapters/mxnet/exchange/own_worker.py",
        "    if links is None or links.taken:",
        "    if True:",
        ("contract/test_store_names.py",),
    ),
    Mutant(
        "a net is cut where an edge leads past",
        _IN + "decompose.py",
        "if comparable and reach <= each and each not in inside:",
        "if comparable and each not in inside:",
        _PLACE,
    ),
    Mutant(
        "a net is cut between operations that share a weight",
        _IN + "decompose.py",
        "if comparable and reach <= each and each not in inside:",
        "if comparable and reach <= each:",
        _PLACE,
    ),
    Mutant(
        "the solver lets tasks overlap on a device",
        _IN + "cp.py",
        "self.model.add_no_overlap(intervals)",
        "self.model.add_no_overlap(intervals[1:])",
        _BRUTE,
    ),
    Mutant(
        "the search leaves out placements whose devices are busy one after the other",
        _IN + "search.py",
        "    return max(work)",
        "    return sum(work)",
        _BRUTE,
    ),
    Mutant(
        "the solver may not take longer than a placement that memory does not allow",
        _IN + "search.py",
        "    if not fits(problem, found.device):",
        "    if False:",
        _BRUTE,
    ),
    Mutant(
        "the solver takes the shortest transfer for all",
        _IN + "cp.py",
        "start >= ready + arc.delays[one][other]",
        "start >= ready + min(far)",
        _BRUTE,
    ),
    Mutant(
        "the solver looks at memory too late",
        _IN + "cp.py",
        "                self.model.add(sum(need) <= capacity)",
        "                self.model.add(sum(need) <= capacity + 1)",
        _BRUTE,
    ),
    Mutant(
        "the solver's bound is what it began with",
        _IN + "cp.py",
        "bound = max(start.bound, round(solver.best_objective_bound))",
        "bound = start.length",
        _BRUTE,
    ),
    Mutant(
        "without ortools the solver is asked all the same",
        _IN + "place.py",
        "        method = CP if _has_ortools() else SEARCH",
        "        method = CP",
        _SEARCH,
    ),
    Mutant(
        "without ortools the search is taken for the solver",
        _IN + "place.py",
        "    if method == CP and not _has_ortools():",
        "    if False:",
        _SEARCH,
    ),
    Mutant(
        "a search has no gap though nothing is proven",
        _IN + "search.py",
        "    best.bound = min(best.length, max(floor, bound))",
        "    best.bound = best.length",
        _SEARCH,
    ),
    Mutant(
        "the solver begins with a search as long as ever",
        _IN + "place.py",
        "min(QUICK_SECONDS, max(effort, least))",
        "QUICK_SECONDS",
        _SEARCH,
    ),
    Mutant(
        "the solver does not end",
        _IN + "cp.py",
        "    while best.bound < best.length and left > 0:",
        "    while best.bound < best.length and left > -100:",
        _SEARCH,
    ),
    Mutant(
        "a search is another in each process",
        _IN + "search.py",
        "chance = random.Random(0)",
        'chance = random.Random(hash("search"))',
        _REPEATS,
    ),
    Mutant(
        "the order of operations is that of their hashes",
        _IN + "problem.py",
        "    names = graph.order()",
        "    names = tuple(sorted(graph.order(), key=hash))",
        _REPEATS,
    ),
    Mutant(
        "list schedulers are asked only when their turn comes",
        _IN + "search.py",
        "        if fits(problem, listed.device):",
        "        if False:",
        _SEARCH,
    ),
    Mutant(
        "the solver begins with less than list schedulers find",
        _IN + "place.py",
        "(self._method == SEARCH or effort < QUICK_SECONDS):",
        "self._method == SEARCH:",
        _SEARCH,
    ),
    Mutant(
        "the work of a device ends before its work is done",
        _IN + "search.py",
        "                length = max(length, now - after)",
        "                length = max(length, now)",
        _SEARCH,
    ),
    Mutant(
        "memory is not looked at",
        _IN + "search.py",
        "    return all(not have or need <= have for need, have in zip(used, problem.capacity))",
        "    return all(not have or need <= have + 1 for need, have in zip(used, problem.capacity))",
        _SEARCH,
    ),
    Mutant(
        "all results take the way of the smallest",
        "kvstore_mpi/planner/cluster.py",
        "seconds + link.seconds(num_bytes), next(numbers)",
        "seconds + link.seconds(1), next(numbers)",
        _ROUTES,
    ),
    Mutant(
        "ways that take equally long cannot be told apart",
        "kvstore_mpi/planner/cluster.py",
        "seconds + link.seconds(num_bytes), next(numbers)",
        "seconds + link.seconds(num_bytes), len(waiting)",
        _ROUTES,
    ),
    Mutant(
        "devices forward what is not theirs",
        "kvstore_mpi/planner/cluster.py",
        "if node in best or (node != source and node not in routers):",
        "if node in best:",
        _ROUTES,
    ),
    Mutant(
        "a link that is shared is free at once",
        _IN + "simulate.py",
        "        self._free[link] = until",
        "        self._free[link] = since",
        _RECORDS,
    ),
    Mutant(
        "what overlaps on a device is not seen",
        _IN + "simulate.py",
        "            if other.since < one.until:",
        "            if other.since < one.since:",
        _RECORDS,
    ),
    Mutant(
        "an accelerator has as many turns as it likes",
        _IN + "in_turn.py",
        "        self._reach(states, states + 1, i, keep + lo, loads[keep])",
        "        self._reach(states, states, i, keep + lo, loads[keep])",
        _STAGES,
    ),
    Mutant(
        "a delay on a processor pays for a write and a read",
        _IN + "claims.py",
        "            own = _take(self._delays, reader, seconds)",
        "            own = min(seconds, self._delays[reader])",
        _IN_TURN,
    ),
    Mutant(
        "a claim that an ideal before may have parted counts again",
        _IN + "cuts.py",
        "            yield _Part(claim.pairs, np.array([0.0, claim.seconds]), claim.ahead)",
        "            yield _Part(claim.pairs, np.array([claim.seconds, claim.seconds]), claim.ahead)",
        _IN_TURN,
    ),
    Mutant(
        "what is paid before an ideal counts as behind it",
        _IN + "cuts.py",
        "            if part.ahead:",
        "            if not part.ahead:",
        _IN_TURN,
    ),
    Mutant(
        "two ideals of a chain count the same transfers",
        _IN + "cuts.py",
        "since[later[counted]] * PLACES > place + _TRIFLE:",
        "since[later[counted]] * PLACES >= 0:",
        _IN_TURN,
    ),
    Mutant(
        "a result that others read on the accelerator is paid for again",
        _IN + "load_table.py",
        "        self._until = _sums(early, self._cost) - self._since",
        "        self._until = _sums(early, self._cost)",
        _STAGES,
    ),
    Mutant(
        "what takes no time joins a neighbour though that costs transfers",
        _IN + "ideals.py",
        "    return added <= saved",
        "    return True",
        _STAGES,
    ),
    Mutant(
        "what processors can take over is left out of the bound",
        _IN + "max_load.py",
        "return accelerators * load + self._absorbed(processors * load)",
        "return accelerators * load",
        _STAGES,
    ),
    Mutant(
        "two uses of a layer have one name",
        "kvstore_mpi/adapters/mxnet/parts/graph.py",
        'f"{name}#{uses[name]}" if uses[name] > 1 else name',
        "name",
        _GRAPH,
    ),
    Mutant(
        "a method that is none is the solver",
        _IN + "place.py",
        "    if method not in METHODS:",
        "    if False:",
        _RECORDS,
    ),
    Mutant(
        "with contention nothing is looked for",
        _IN + "place.py",
        "tries = int(seconds * CONTENDED_TRIES_PER_SECOND)",
        "tries = 0",
        _RECORDS,
    ),
    Mutant(
        "what is looked for with contention is timed without",
        _IN + "place.py",
        "found.length = nanoseconds(placed(found).predicted_seconds)",
        "found.length = found.length",
        _RECORDS,
    ),
    Mutant(
        "what takes no time is computed after what starts with it",
        _IN + "place.py",
        "return start, start + problem.durations[task][here], position[task]",
        "return start, position[task]",
        _ANY,
    ),
    Mutant(
        "what takes no time is computed while its device computes something else",
        _IN + "cp.py",
        "                if here is None:",
        "                if here is None or not duration:",
        _ANY,
    ),
    Mutant(
        "each stage of a pipeline takes what the first device would take",
        "kvstore_mpi/planner/pipelines/stages.py",
        "return self._work(first, last) / self.devices[stage].speed",
        "return self._work(first, last) / self.devices[0].speed",
        _CUT,
    ),
    Mutant(
        "a stage on a slow device costs no more than its pace",
        "kvstore_mpi/planner/pipelines/stages.py",
        "each.spent + cut + more, each.bounds + bounds)",
        "each.spent + cut, each.bounds + bounds)",
        _CUT,
    ),
    Mutant(
        "all devices of a pipeline have the memory of the first",
        "kvstore_mpi/planner/pipelines/stages.py",
        "limit = self.devices[stage].memory_bytes",
        "limit = self.devices[0].memory_bytes",
        _CUT,
    ),
    Mutant(
        "parts of a profile are taken as they are",
        "kvstore_mpi/planner/net.py",
        "            net.parts.checked()",
        "            pass",
        _PARTS,
    ),
    Mutant(
        "layers of a pipeline need not follow each other",
        "kvstore_mpi/planner/cuts.py",
        "            if odd := sorted(edges ^ {*pairwise(self.graph.order())}):",
        "            if odd := sorted(edges - {*pairwise(self.graph.order())}):",
        _PARTS,
    ),
    Mutant(
        "a pin of what is no operation holds nothing",
        _IN + "problem.py",
        "    for name, device in wishes.pinned.items():",
        "    for name, device in ():",
        _RECORDS,
    ),
    Mutant(
        "ideals with no more work than there may be are not reached",
        _IN + "max_load.py",
        'return int(np.searchsorted(self._work, work, side="right"))',
        "return int(np.searchsorted(self._work, work))",
        _STAGES,
    ),
]
