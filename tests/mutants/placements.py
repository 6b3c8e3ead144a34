"""Where operations are placed, and how pipelines are cut into stages."""

from __future__ import annotations

from mutants.table import Mutant

_PLACE = ("unit/test_dlplacer.py",)
_RECORDS = ("unit/test_dlplacer_records.py",)
_STAGES = ("unit/test_dlplacer_stages.py",)
_GRAPH = ("contract/test_mxnet_graph.py",)
_IN = "kvstore_mpi/planner/placement/"

MUTANTS = [
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
        _PLACE,
    ),
    Mutant(
        "the work of a device ends before its work is done",
        _IN + "search.py",
        "                length = max(length, now - after)",
        "                length = max(length, now)",
        _PLACE,
    ),
    Mutant(
        "memory is not looked at",
        _IN + "search.py",
        "    return all(not have or need <= have for need, have in zip(used, problem.capacity))",
        "    return all(not have or need <= have + 1 for need, have in zip(used, problem.capacity))",
        _PLACE,
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
        "kvstore_mpi/adapters/mxnet/graph.py",
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
]
