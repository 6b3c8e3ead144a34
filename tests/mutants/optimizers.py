"""Update rules of servers, and learning rates."""

from __future__ import annotations

from mutants.table import Mutant

_EQUAL = ("contract/test_optimizers_equal_mxnet.py::test_native_rule_in_float32",)
_SCHEDULES = ("contract/test_optimizers_equal_mxnet.py::test_schedules_equal_mxnets_schedulers",)
_RULES = ("unit/test_server_optimizers.py",)
_CENTER = (
    "property/test_esgd.py::TestElastic::test_exchanges_conserve_the_sum",
    "property/test_esgd.py::TestWhatIsEqualToWhat",
    "unit/test_esgd.py::test_the_center_is_not_decayed",
)
_DELAYED = ("property/test_esgd.py::TestDelayedGradients",)
_IN = "kvstore_mpi/server_optimizers/"

_CLIPPING = ("contract/test_mxnet_clipping.py",)

MUTANTS = [
    Mutant(
        "states of row-sparse weights are saved dense",
        "kvstore_mpi/adapters/mxnet/row_weights.py",
        "leaf if native.is_dense(next(forms)) else _with_all_rows(leaf)",
        "leaf if native.is_dense(next(forms)) else leaf",
        ("contract/test_states_of_rows.py",),
    ),
    Mutant(
        "states of row-sparse weights stay so beside dense ones",
        "kvstore_mpi/adapters/mxnet/row_weights.py",
        "        states[key] = map_leaves(state, _dense)",
        "        states[key] = map_leaves(state, lambda leaf: leaf)",
        ("contract/test_states_of_rows.py",),
    ),
    Mutant(
        "a key that was left out for a while begins the schedule anew",
        "kvstore_mpi/server_optimizers/spec.py",
        "num_update = numbers.begin_num_update + count + numbers.ahead_of.get(key, 0)",
        "num_update = numbers.begin_num_update + count",
        ("contract/test_schedules_of_keys.py",),
    ),
    Mutant(
        "servers are not told that a key has been left out",
        "kvstore_mpi/adapters/hyper_watch.py",
        "if same_key and ahead == self._ahead.get(key, 0) and common == self._common:",
        "if same_key and common == self._common:",
        ("contract/test_schedules_of_keys.py", "unit/test_adapters.py"),
    ),
    Mutant(
        "an optimizer that is given once more begins its schedule anew",
        "kvstore_mpi/adapters/mxnet/hyper_parameters.py",
        "ahead: int = optimizer.num_update - own + self._counts.get(key, 0)",
        "ahead: int = optimizer.num_update - own",
        ("contract/test_schedules_of_keys.py",),
    ),
    Mutant(
        "the schedules of ranks differ that push their keys in other orders",
        "kvstore_mpi/adapters/mxnet/hyper_parameters.py",
        "if step is not None and scheduler is not None and follows(scheduler):",
        "if step == -1:",
        ("contract/test_same_optimizers.py",),
    ),
    Mutant(
        "an optimizer is compared with another's one before",
        "kvstore_mpi/adapters/mxnet/local_updates.py",
        "            self._given += 1",
        "            self._given = 1",
        ("contract/test_same_optimizers.py",),
    ),
    Mutant(
        "the optimizer that was before states were loaded is compared",
        "kvstore_mpi/adapters/mxnet/local_updates.py",
        "if self._same.optimizer is not self.updater.optimizer:",
        "if False:",
        ("contract/test_same_optimizers.py",),
    ),
    Mutant(
        "half of the momentum",
        _IN + "rules.py",
        "        ahead *= self.momentum",
        "        ahead *= self.momentum / 2",
        _EQUAL,
    ),
    Mutant(
        "weight decay without the learning rate",
        _IN + "rules.py",
        "                gradient += weight * decay",
        "                gradient += weight * hyper.wd",
        _EQUAL,
    ),
    Mutant(
        "Adam without its correction",
        _IN + "rules.py",
        "scratch *= hyper.lr * math.sqrt(1.0 - self.beta2**step) / (1.0 - self.beta1**step)",
        "scratch *= hyper.lr",
        _EQUAL,
    ),
    Mutant(
        "Adam's averages exchanged",
        _IN + "rules.py",
        "        mean, variance = state",
        "        variance, mean = state",
        _EQUAL,
    ),
    Mutant(
        "AdaGrad forgets",
        _IN + "rules.py",
        "        history += scratch",
        "        history[:] = scratch",
        _EQUAL,
    ),
    Mutant(
        "RMSProp's weights are not clipped",
        _IN + "rules.py",
        "if self.clip_weights and self.clip_weights > 0:",
        "if False:",
        _EQUAL,
    ),
    Mutant(
        "gradients are clipped where nobody has asked for it",
        _IN + "rules.py",
        "if hyper.clip_gradient is None or hyper.clip_gradient <= 0:",
        "if hyper.clip_gradient is None:",
        _RULES,
    ),
    Mutant(
        "updates do not count on from before",
        _IN + "rules.py",
        "apply(weight, gradient, state, hyper, self.begin_num_update + count)",
        "apply(weight, gradient, state, hyper, count)",
        _RULES,
    ),
    Mutant(
        "half precision is computed in half",
        _IN + "rules.py",
        "apply = self._apply_to_half if weight.dtype == np.float16 else self.apply",
        "apply = self.apply",
        _RULES,
    ),
    Mutant(
        "decays in double precision",
        _IN + "rules.py",
        "    decay = float(np.float32(decay))",
        "    decay = float(decay)",
        _EQUAL,
    ),
    Mutant(
        "multipliers of the learning rate do not count",
        _IN + "spec.py",
        "        lr * lr_mult.get(key, 1.0),",
        "        lr,",
        _RULES,
    ),
    Mutant(
        "the numbers of the first update stay",
        _IN + "spec.py",
        "    if newest is not None and newest[0] == num_update:",
        "    if newest is not None:",
        _RULES,
    ),
    Mutant(
        "the rate falls an update too early",
        _IN + "schedules.py",
        "reductions = math.ceil((num_update - self.count) / self.step) - 1",
        "reductions = math.ceil((num_update + 1 - self.count) / self.step) - 1",
        _SCHEDULES,
    ),
    Mutant(
        "the rate falls below its floor",
        _IN + "schedules.py",
        "return max(self.base_lr * self.factor**reductions, self.stop_factor_lr)",
        "return self.base_lr * self.factor**reductions",
        _SCHEDULES,
    ),
    Mutant(
        "a warm-up ends too late",
        _IN + "schedules.py",
        "        if num_update >= self.warmup_steps:",
        "        if num_update > self.warmup_steps:",
        _SCHEDULES,
    ),
    Mutant(
        "half a cosine too fast",
        _IN + "schedules.py",
        "return (1.0 + math.cos(math.pi * done)) / 2.0",
        "return (1.0 + math.cos(2 * math.pi * done)) / 2.0",
        _SCHEDULES,
    ),
    Mutant(
        "the center moves away",
        _IN + "center.py",
        "np.subtract(center, pushed[0], out=out, dtype=out.dtype)",
        "np.subtract(pushed[0], center, out=out, dtype=out.dtype)",
        _CENTER,
    ),
    Mutant(
        "the center does not move by alpha",
        _IN + "center.py",
        "        gradient *= self.alpha",
        "        gradient *= 1.0",
        _CENTER,
    ),
    Mutant(
        "Nesterov's momentum moves at every push",
        _IN + "center.py",
        "        if step % self.num_clients == 0:",
        "        if step:",
        _CENTER,
    ),
    Mutant(
        "what a client has learned is not divided",
        _IN + "center.py",
        "        gradient /= self.num_clients",
        "        gradient /= 1",
        _CENTER,
    ),
    Mutant(
        "the sum of the clients is taken for their mean",
        _IN + "wrappers.py",
        "            gradient /= origin.contributions",
        "            gradient /= 1",
        _CENTER,
    ),
    Mutant(
        "the center is decayed",
        _IN + "wrappers.py",
        "return Hyper(hyper.lr, wd=0.0, rescale_grad=1.0, clip_gradient=hyper.clip_gradient)",
        "return Hyper(hyper.lr, wd=hyper.wd, rescale_grad=1.0, clip_gradient=hyper.clip_gradient)",
        _CENTER,
    ),
    Mutant(
        "fresh gradients are divided, too",
        _IN + "wrappers.py",
        "lr = hyper.lr / max(1, origin.staleness)",
        "lr = hyper.lr / (1 + origin.staleness)",
        _DELAYED,
    ),
    Mutant(
        "the compensation has one gradient too few",
        _IN + "wrappers.py",
        "            compensation *= lamda",
        "            compensation *= lamda / 2",
        _DELAYED,
    ),
    Mutant(
        "threads look up the fields of a description together",
        "kvstore_mpi/server_optimizers/spec.py",
        "msgspec.json.Decoder(OptimizerSpec)",
        "OptimizerSpec",
        ("unit/test_optimizer_spec_threads.py",),
    ),
    Mutant(
        "workers clip each key by itself",
        "kvstore_mpi/adapters/mxnet/clipped_steps.py",
        "            if not self._closed or len(self._held) < len(self.pushed):",
        "            if not self._held:",
        _CLIPPING,
    ),
    Mutant(
        "workers clip sums as if they were means",
        "kvstore_mpi/adapters/mxnet/clipped_steps.py",
        "for each in held)) * abs(self._rescale_grad)",
        "for each in held))",
        _CLIPPING,
    ),
    Mutant(
        "rows do not count in the norm of a step",
        "kvstore_mpi/adapters/mxnet/rows.py",
        "        self._updates.hold(key, table.array, partial(own_values, out))",
        "        self._updates.hold(key, table.array, lambda: [])",
        _CLIPPING,
    ),
]
