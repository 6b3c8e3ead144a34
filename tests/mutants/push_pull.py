"""Push and then pull: which pushes bring the value, and which pulls take it."""

from __future__ import annotations

from mutants.table import Mutant

_VALUES = ("unit/test_pushed_values.py",)
_GIVEN = ("unit/test_given_values.py",)
_STORE = ("contract/test_mxnet_push_pull.py",)
_JOBS = ("scenarios/test_push_then_pull.py",)
_PURE = "kvstore_mpi/adapters/pushed_values.py"
_EXCHANGE = "kvstore_mpi/adapters/mxnet/exchange/exchange.py"
_WORKER = "kvstore_mpi/worker/"

MUTANTS = [
    Mutant(
        "every push brings the value",
        _PURE,
        "        wanted = not self._predicts or (last is not None and last.pulled)",
        "        wanted = True",
        _VALUES,
    ),
    Mutant(
        "a late pull misses what others have pushed",
        _PURE,
        "        if last is None or (self._others_push and last.has_ended):",
        "        if last is None:",
        _VALUES,
    ),
    Mutant(
        "a push is never over",
        _PURE,
        "            self.has_ended = True",
        "            self.has_ended = False",
        _VALUES,
    ),
    Mutant(
        "a pull takes the value of a push that wanted none",
        _PURE,
        "        return last if last.wanted else None",
        "        return last",
        _VALUES,
    ),
    Mutant(
        "the value of a push is taken after a pushpull",
        _EXCHANGE,
        "        staging.pushed.forget()  # another value comes into the array",
        "        pass",
        _STORE,
    ),
    Mutant(
        "a value that has not come is taken",
        _EXCHANGE,
        "        if pushed is not None and pushed.has_come:",
        "        if pushed is not None:",
        _STORE,
    ),
    Mutant(
        "all ranks ask after each push",
        _EXCHANGE,
        "        if pushed is None or not pushed.is_sure:",
        "        if True:",
        _STORE,
    ),
    Mutant(
        "rules that look at what workers have seen are not asked",
        "kvstore_mpi/adapters/mxnet/updates/server_updates.py",
        "        self.notes_values = params or terms.bases or terms.staleness",
        "        self.notes_values = params",
        _STORE,
    ),
    Mutant(
        "a rank that does not lead decides for itself",
        _WORKER + "worker.py",
        "operation.given = arrived is not None and not self.mpi_rank and on_servers",
        "operation.given = arrived is not None and on_servers",
        _JOBS,
    ),
    Mutant(
        "a member is not given what its leader wanted",
        _WORKER + "state.py",
        "        operation.given |= done.operation is Collective.REDUCE_GIVE",
        "        operation.given |= False",
        _GIVEN,
    ),
    Mutant(
        "the leader reduces for a value as for none",
        _WORKER + "state.py",
        "what = Collective.REDUCE_GIVE if operation.given else key.collectives[operation.kind]",
        "what = key.collectives[operation.kind]",
        _GIVEN,
    ),
    Mutant(
        "a value is told of that nobody has sent",
        _WORKER + "records.py",
        "        if operation.given and operation.arrived is not None:",
        "        if operation.arrived is not None:",
        _GIVEN,
    ),
    Mutant(
        "a wanted value is not asked for when its server is back",
        _WORKER + "servers.py",
        "        if is_push and (key.is_exchanged or not wants_value(operation)):",
        "        if operation.kind is Kind.PUSH or (is_push and key.is_exchanged):",
        _GIVEN,
    ),
]
