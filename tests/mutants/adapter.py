"""The MXNet adapter: what reaches the worker, and in which order."""

from __future__ import annotations

from mutants.table import Mutant

_ADAPTER = ("contract/test_mxnet_adapter.py", "contract/test_mxnet_asynchrony.py")
_PRIORITIES = ("contract/test_mxnet_priorities.py",)
_ARRAYS = ("contract/test_mxnet_arrays.py",)
_CENTERS = ("contract/test_centers.py",)
_ENGINE = ("contract/test_mxnet_engine.py",)
_SHARED = ("unit/test_adapters.py",)
_NAMES = ("contract/test_store_names.py",)
_ON_WORKERS = ("contract/test_updates_on_workers.py",)
_ALL = "kvstore_mpi/adapters/"
_IN = _ALL + "mxnet/"

MUTANTS = [
    Mutant(
        "the engine knows no priority",
        _IN + "engine.py",
        "            ctypes.c_int(priority),",
        "            ctypes.c_int(0),",
        _ENGINE,
    ),
    Mutant(
        "a push has no priority for the worker",
        _IN + "exchange.py",
        "lambda done: call(staging.store, key, priority, _unless_skipped(done)),",
        "lambda done: call(staging.store, key, 0, _unless_skipped(done)),",
        _PRIORITIES,
    ),
    Mutant(
        "a gradient sent from where it lies has no priority",
        _IN + "exchange.py",
        "self.worker.pushpull(staging.store, key, priority, _unless_skipped(done), source)",
        "self.worker.pushpull(staging.store, key, 0, _unless_skipped(done), source)",
        _PRIORITIES,
    ),
    Mutant(
        "a pull has no priority for the worker",
        _IN + "exchange.py",
        "lambda done: self.worker.pull(staging.store, key, priority, done),",
        "lambda done: self.worker.pull(staging.store, key, 0, done),",
        _PRIORITIES,
    ),
    Mutant(
        "a push has no priority for the engine",
        _IN + "exchange.py",
        "        self.queue(call, mutable=[staging.array], const=reads, priority=priority)",
        "        self.queue(call, mutable=[staging.array], const=reads, priority=0)",
        _PRIORITIES,
    ),
    Mutant(
        "weights are sent from where they lie",
        _ALL + "in_place.py",
        "    return gradients and num_arrays == 1 and num_bytes >= SENT_IN_PLACE_BYTES",
        "    return num_arrays == 1 and num_bytes >= SENT_IN_PLACE_BYTES",
        ("contract/test_mxnet_adapter.py::test_parameters_are_never_read_where_they_lie",),
    ),
    Mutant(
        "of several devices the first is sent from where it lies",
        _ALL + "in_place.py",
        "    return gradients and num_arrays == 1 and num_bytes >= SENT_IN_PLACE_BYTES",
        "    return gradients and num_bytes >= SENT_IN_PLACE_BYTES",
        ("unit/test_adapters.py",),
    ),
    Mutant(
        "shapes need not agree",
        _IN + "exchange.py",
        "            if shape != staging.shape or dtype != staging.dtype:",
        "            if dtype != staging.dtype:",
        _ADAPTER,
    ),
    Mutant(
        "errors stay where they happen",
        _ALL + "collected_errors.py",
        "        error = self._errors[0] if self._errors else self._worker.failure()",
        "        error = self._worker.failure()",
        _SHARED,
    ),
    Mutant(
        "the gradient of the first device counts alone",
        _IN + "arrays.py",
        "            for value in values[1:]:",
        "            for value in values[2:]:",
        ("contract/test_mxnet_adapter.py::test_values",),
    ),
    Mutant(
        "rows that are not there are taken",
        _IN + "row_arrays.py",
        "    if ids.size and not 0 <= ids[0] <= ids[-1] < num_rows:",
        "    if ids.size and not 0 <= ids[0]:",
        _ARRAYS,
    ),
    Mutant(
        "a new learning rate is not noticed",
        _ALL + "hyper_watch.py",
        "        if same_key and common == self._common:",
        "        if same_key and self._common:",
        _SHARED,
    ),
    Mutant(
        "a new multiplier is not noticed",
        _ALL + "hyper_watch.py",
        "        if same_key and common == self._common:",
        "        if common == self._common:",
        _SHARED,
    ),
    Mutant(
        "momentum does not travel",
        _IN + "optimizer_spec.py",
        "            if parameter.name not in common and not variadic:",
        '            if parameter.name not in common and not variadic and parameter.name != "momentum":',
        ("contract/test_optimizers_equal_mxnet.py::test_native_rule_in_float32",),
    ),
    Mutant(
        "centers are applied a step too early",
        _ALL + "timetable.py",
        "        while self._under_way and self._under_way[0][0] <= self.steps:",
        "        while self._under_way and self._under_way[0][0] <= self.steps + 1:",
        _SHARED,
    ),
    Mutant(
        "weights that have moved on are compared with the center",
        _IN + "centers.py",
        "return self._scratch_of(key) if self._overlap else self._arrays[key][0]",
        "return self._arrays[key][0]",
        _CENTERS,
    ),
    Mutant(
        "clients exchange at the same steps",
        _IN + "centers.py",
        '        staggered = "async" in store.type',
        "        staggered = False",
        _CENTERS,
    ),
    Mutant(
        "the center stays in the parameters",
        _IN + "centers.py",
        "                    array.copyto(target)",
        "                    array.copyto(array)",
        _CENTERS,
    ),
    Mutant(
        "an operation that is abandoned is completed twice",
        _IN + "engine.py",
        "            record = self._record.pop()",
        "            record = self._record[-1]",
        _ENGINE,
    ),
    Mutant(
        "what is no array of MXNet passes",
        _IN + "arrays.py",
        "    if not isinstance(array, NDArray):",
        "    if False:",
        _ARRAYS,
    ),
    Mutant(
        "an error is not an MXNetError",
        _IN + "mxnet_errors.py",
        "    return type(kind.__name__, (kind, mx.MXNetError), parts)",
        "    return type(kind.__name__, (kind,), parts)",
        ("contract/test_mxnet_errors.py",),
    ),
    Mutant(
        "a misspelt store trains apart",
        _IN + "names.py",
        '        if "mpi" in name:',
        "        if not name:",
        _NAMES,
    ),
    Mutant(
        "a stock name without servers is left to MXNet",
        _IN + "names.py",
        '        return None if "DMLC_ROLE" in os.environ else partial(_refuse_native, name, mode)',
        "        return None",
        _NAMES,
    ),
    Mutant(
        "a store that is taken over has another type",
        _IN + "names.py",
        "            return partial(_open, name, mode, store_type=name)",
        "            return partial(_open, name, mode)",
        _NAMES,
    ),
    Mutant(
        "a process of Slurm's PMIx counts as started by nobody",
        "kvstore_mpi/comm/mpi.py",
        "    return any(name in os.environ for name in (*_SIZE_VARIABLES, *_RANK_VARIABLES))",
        "    return any(name in os.environ for name in _SIZE_VARIABLES)",
        _NAMES,
    ),
    Mutant(
        "a barrier is settled while operations are under way",
        _IN + "store.py",
        "        self._worker.barrier(settled=settled)",
        "        self._worker.barrier(settled=True)",
        ("contract/test_mxnet_process.py",),
    ),
    Mutant(
        "pulls do not convert",
        _IN + "store.py",
        "            self._exchange.check_arrays(each, wanted, converts=True)",
        "            self._exchange.check_arrays(each, wanted)",
        _ADAPTER,
    ),
    Mutant(
        "numbers become integers in a pull",
        _ALL + "store_keys.py",
        '        floats = dtype.startswith("float") and staged.dtype.startswith("float")',
        '        floats = staged.dtype.startswith("float")',
        _SHARED,
    ),
    Mutant(
        "a list is pulled while it is pushed",
        _IN + "store.py",
        "        for each, staged in new.items():",
        "        for each, staged in list(new.items())[:1]:",
        _ADAPTER,
    ),
    Mutant(
        "a scheduler is asked for the first update only",
        _IN + "hyper_parameters.py",
        "            schedule = scheduler(optimizer.num_update) if self._evaluates else type(scheduler)",
        "            schedule = type(scheduler)",
        _ON_WORKERS,
    ),
    Mutant(
        "workers count no updates",
        _IN + "server_updates.py",
        "        self._optimizer._update_count(key)  # noqa: SLF001  as each optimizer's own update does",
        "        self._optimizer.num_update += 0",
        _ADAPTER,
    ),
    Mutant(
        "weights that the workers update begin with zeros",
        _IN + "local_updates.py",
        "                self._exchange.pull(key, 0)  # from servers; without them it is here",
        "                self._exchange.stagings[key].array[:] = 0",
        _ON_WORKERS,
    ),
    Mutant(
        "whole tensors are updated in parts",
        _IN + "server_updates.py",
        "        if self.spec is None and spread and terms_of(spec).whole:",
        "        if self.spec is None and spread and not terms_of(spec):",
        ("contract/test_updates_on_workers.py",),
    ),
]
