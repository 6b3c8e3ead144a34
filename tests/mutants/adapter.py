"""The MXNet adapter: what reaches the worker, and in which order."""

from __future__ import annotations

from mutants.table import Mutant

_ADAPTER = ("contract/test_mxnet_adapter.py",)
_PRIORITIES = ("contract/test_mxnet_adapter.py::test_priorities_reach_the_worker",)
_CENTERS = ("contract/test_centers.py",)
_ENGINE = ("contract/test_mxnet_engine.py",)
_IN = "kvstore_mpi/adapters/mxnet/"

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
        "lambda done: call(self.store, key, priority, _unless_skipped(done)),",
        "lambda done: call(self.store, key, 0, _unless_skipped(done)),",
        _PRIORITIES,
    ),
    Mutant(
        "a gradient sent from where it lies has no priority",
        _IN + "exchange.py",
        "self.worker.pushpull(self.store, key, priority, _unless_skipped(done), source)",
        "self.worker.pushpull(self.store, key, 0, _unless_skipped(done), source)",
        _PRIORITIES,
    ),
    Mutant(
        "a pull has no priority for the worker",
        _IN + "exchange.py",
        "lambda done: self.worker.pull(self.store, key, priority, done), staging, priority=priority",
        "lambda done: self.worker.pull(self.store, key, 0, done), staging, priority=priority",
        _PRIORITIES,
    ),
    Mutant(
        "a push has no priority for the engine",
        _IN + "exchange.py",
        "        self._queue(call, mutable=[staging.array], const=reads, priority=priority)",
        "        self._queue(call, mutable=[staging.array], const=reads, priority=0)",
        _PRIORITIES,
    ),
    Mutant(
        "weights are sent from where they lie",
        _IN + "exchange.py",
        "in_place = gradients and staging.buffer.nbytes >= SENT_IN_PLACE_BYTES and may_view(values)",
        "in_place = staging.buffer.nbytes >= SENT_IN_PLACE_BYTES and may_view(values)",
        ("contract/test_mxnet_adapter.py", "contract/test_elastic_training.py"),
    ),
    Mutant(
        "shapes need not agree",
        _IN + "exchange.py",
        "if native.shape_of(array) != staging.shape or not fits:",
        "if not fits:",
        _ADAPTER,
    ),
    Mutant(
        "errors stay where they happen",
        _IN + "exchange.py",
        "        error = self._errors[0] if self._errors else self.worker.failure()",
        "        error = self.worker.failure()",
        _ADAPTER,
    ),
    Mutant(
        "the gradient of the first device counts alone",
        _IN + "arrays.py",
        "            for value in values[1:]:",
        "            for value in values[2:]:",
        _ADAPTER,
    ),
    Mutant(
        "rows that are not there are taken",
        _IN + "arrays.py",
        "    if rows.size and not 0 <= rows[0] <= rows[-1] < array.shape[0]:",
        "    if rows.size and not 0 <= rows[0]:",
        _ADAPTER,
    ),
    Mutant(
        "a new learning rate is not noticed",
        _IN + "hyper_parameters.py",
        "        if same_key and common == self._common:",
        "        if same_key and self._common:",
        _ADAPTER,
    ),
    Mutant(
        "a new multiplier is not noticed",
        _IN + "hyper_parameters.py",
        "        if same_key and common == self._common:",
        "        if common == self._common:",
        _ADAPTER,
    ),
    Mutant(
        "momentum does not travel",
        _IN + "optimizer_spec.py",
        "            if parameter.name not in common and not variadic:",
        '            if parameter.name not in common and not variadic and parameter.name != "momentum":',
        ("contract/test_optimizers_equal_mxnet.py", "contract/test_mxnet_adapter.py"),
    ),
    Mutant(
        "centers are applied a step too early",
        _IN + "centers.py",
        "            while self._under_way and self._under_way[0].due <= self.steps:",
        "            while self._under_way and self._under_way[0].due <= self.steps + 1:",
        _CENTERS,
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
        '        if "async" not in self._store.type:',
        "        if self._store.type:",
        _CENTERS,
    ),
    Mutant(
        "the center stays in the parameters",
        _IN + "centers.py",
        "                    array.copyto(target)",
        "                    array.copyto(array)",
        (*_CENTERS, "contract/test_elastic_training.py"),
    ),
    Mutant(
        "an operation that is abandoned is completed twice",
        _IN + "engine.py",
        "            record = self._record.pop()",
        "            record = self._record[-1]",
        _ENGINE,
    ),
    Mutant(
        "NumPy arrays of other layouts pass",
        _IN + "arrays.py",
        "    if type(array) is NDArray:",
        "    if isinstance(array, NDArray):",
        _ADAPTER,
    ),
]
