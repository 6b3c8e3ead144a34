"""When to add model parallelism: epochs, the time of a step, plans, and what is measured for them."""

from __future__ import annotations

from mutants.table import Mutant

_PAPER = ("paper/test_hybrid_speedups.py",)
_EPOCHS = ("unit/test_planner_epochs.py",)
_PLAN = ("unit/test_planner.py",)
_SAID = ("unit/test_planner_explanation.py",)
_PICTURE = ("unit/test_launcher_plan_picture.py",)
_LAUNCHER = ("unit/test_launcher_planning.py",)
_TABLES = ("unit/test_planner_tables.py",)
_LINKS = ("unit/test_measured_links.py",)
_MEASURED = ("unit/test_planner_measured.py",)
_DELAYED = ("contract/test_delayed_trainer.py",)
_SYMBOL = ("contract/test_symbol_net.py",)
_IN = "kvstore_mpi/planner/"

MUTANTS = [
    Mutant(
        "equation (6) has its epochs the other way round",
        _IN + "speedup.py",
        "least_model_speedup(ways, 1.0, few.epochs / many.epochs)",
        "least_model_speedup(ways, 1.0, many.epochs / few.epochs)",
        _PAPER,
    ),
    Mutant(
        "a curve of epochs is linear in the batch",
        _IN + "epochs.py",
        "math.log(ratio) / math.log(whole)",
        "(ratio - 1) / (whole - 1)",
        _EPOCHS,
    ),
    Mutant(
        "a curve of epochs falls where noise does",
        _IN + "epochs.py",
        "while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):",
        "while len(blocks) > 2 and _mean(blocks[-2]) > _mean(blocks[-1]):",
        _EPOCHS,
    ),
    Mutant(
        "what is not measured has the epochs of the largest batch",
        _IN + "epochs.py",
        "return Epochs(epochs) if batch == last or epochs == math.inf else None",
        "return Epochs(epochs)",
        _EPOCHS,
    ),
    Mutant(
        "workers of two devices have the batch of two workers",
        _IN + "planning.py",
        "batch = data * net.batch",
        "batch = data * workers.ways * net.batch",
        _PLAN,
    ),
    Mutant(
        "a step waits for its first layer alone",
        "kvstore_mpi/p3/bound.py",
        "longest = max(range(len(waits)), key=waits.__getitem__)",
        "longest = 0",
        _PLAN,
    ),
    Mutant(
        "a plan does not set pieces of tables",
        _IN + "plan_file.py",
        'job["partitions"] = best.partitions',
        "pass",
        _TABLES,
    ),
    Mutant(
        "what a server takes for rows does not grow with its share",
        "kvstore_mpi/hybrid/cost.py",
        "servers = cluster.machines * share",
        "servers = 1",
        (*_MEASURED, "unit/test_hybrid_cost.py"),
    ),
    Mutant(
        "a planned number counts for tables that are too small for it",
        "kvstore_mpi/hybrid/partitions.py",
        "fits = planned * SMALL_PIECE_BYTES <= rows * row_bytes <= planned * LARGE_PIECE_BYTES",
        "fits = rows * row_bytes <= planned * LARGE_PIECE_BYTES",
        ("unit/test_hybrid_partitions.py",),
    ),
    Mutant(
        "workers do not hear of planned pieces",
        "kvstore_mpi/worker/worker.py",
        "self._keys, config.partitions)",
        "self._keys)",
        ("mpi/test_measurements.py",),
    ),
    Mutant(
        "a slice costs nothing where nobody has measured it",
        _IN + "store_costs.py",
        "SLICE_S = 4e-5",
        "SLICE_S = 0.0",
        _MEASURED,
    ),
    Mutant(
        "a script whose batch is the same each time is believed",
        "kvstore_mpi/epoch_report.py",
        "return _mark_of(path).exists()",
        "return True",
        _LAUNCHER,
    ),
    Mutant(
        "a plan for another net is taken",
        _IN + "plan_file.py",
        "if net is not None and net.digest != plan.net_digest:",
        "if net is not None and net.name != plan.net:",
        _PLAN,
    ),
    Mutant(
        "plans for nets of other layers are compared",
        _IN + "plan_file.py",
        "if old.net_digest != new.net_digest and old.net_structure != new.net_structure:",
        "if old.net != new.net:",
        _PLAN,
    ),
    Mutant(
        "a net that is measured anew is another net",
        _IN + "net.py",
        "return digest([(layer.num_bytes, layer.rows) for layer in self.layers])",
        "return self.digest",
        _PLAN,
    ),
    Mutant(
        "a plan does not say that its cluster is another one",
        _IN + "plan_file.py",
        "if old.cluster_digest != new.cluster_digest:",
        "if old.cluster_digest is not new.cluster_digest and False:",
        _PLAN,
    ),
    Mutant(
        "a plan overrules the command line",
        "launcher/planned.py",
        "elif name in said and said[name] != value:",
        "elif name in said and said[name] == value:",
        _LAUNCHER,
    ),
    Mutant(
        "a plan is run on more hosts than planned",
        "launcher/planned.py",
        "if len(ranks) != needed or",
        "if len(ranks) < needed or",
        _LAUNCHER,
    ),
    Mutant(
        "a plan is run with more ranks on a host than planned",
        "launcher/planned.py",
        "or max(ranks.values()) > most:",
        "or max(ranks.values()) > most + 1:",
        _LAUNCHER,
    ),
    Mutant(
        "the hosts of a job are not compared with its plan's",
        "launcher/cli.py",
        "    if spec.planned_ranks:",
        "    if not spec.planned_ranks:",
        _LAUNCHER,
    ),
    Mutant(
        "a script is measured with all cores",
        "launcher/plan_command.py",
        "with_threads(spec, cores // cluster.num_each_host, os.environ)",
        "with_threads(spec, cores, os.environ)",
        _LAUNCHER,
    ),
    Mutant(
        "the first worker that reaches the target counts",
        "kvstore_mpi/epoch_report.py",
        "return max(found) if found",
        "return min(found) if found",
        _LAUNCHER,
    ),
    Mutant(
        "the fastest pair of hosts counts",
        "kvstore_mpi/measured_links.py",
        "rate = min(each.bytes_per_s for each in pairs)",
        "rate = max(each.bytes_per_s for each in pairs)",
        _LINKS,
    ),
    Mutant(
        "of a hybridized net everything hides",
        "launcher/step_profile.py",
        "times[-1] += last",
        "times[0] += last",
        _LAUNCHER,
    ),
    Mutant(
        "gradients of an update stay for the next",
        "kvstore_mpi/adapters/mxnet/delayed.py",
        "param.zero_grad()",
        "pass",
        _DELAYED,
    ),
    Mutant(
        "the learning rate of a delayed update is that of one batch",
        "kvstore_mpi/adapters/mxnet/delayed.py",
        "super().set_learning_rate(lr * self._lr_factor)",
        "super().set_learning_rate(lr)",
        _DELAYED,
    ),
    Mutant(
        "the kernel of a convolution is not counted",
        "kvstore_mpi/adapters/mxnet/op_costs.py",
        'return 2.0 * result * channels * math.prod(_tuple(attributes["kernel"]))',
        "return 2.0 * result * channels",
        _SYMBOL,
    ),
    Mutant(
        "an activation is no part of the layer before it",
        "kvstore_mpi/adapters/mxnet/symbol_net.py",
        "if own and pending:",
        "if pending:",
        _SYMBOL,
    ),
    Mutant(
        "hosts of a cluster are joined as devices of one host are",
        _IN + "cluster.py",
        "_between(self.between_hosts, self._name(here, one)",
        "_between(self.within_host, self._name(here, one)",
        _PLAN,
    ),
    Mutant(
        "a worker takes all devices of a host",
        _IN + "cluster.py",
        "return msgspec.structs.replace(self, hosts=1, devices=ways)",
        "return msgspec.structs.replace(self, hosts=1)",
        _PLAN,
    ),
    Mutant(
        "a worker of several devices is never idle",
        _IN + "planning.py",
        "return 1 - workers.speedup / workers.ways * times.compute_s / times.step_s",
        "return 1 - times.compute_s / times.step_s",
        _SAID,
    ),
    Mutant(
        "the wait of a step is that of the whole step",
        _IN + "explanation.py",
        '    exposed = f"{1e3 * (option.step_s - option.compute_s):.2f}"',
        '    exposed = f"{1e3 * option.step_s:.2f}"',
        _SAID,
    ),
    Mutant(
        "the next best is the best",
        _IN + "explanation.py",
        "        more = other.total_s - plan.best.total_s",
        "        more = other.total_s - plan.best.total_s * 1.01",
        _SAID,
    ),
    Mutant(
        "what data parallelism costs more is a share of it",
        _IN + "explanation.py",
        'f"{plain.total_s / best.total_s - 1:.1%} more"',
        'f"{1 - best.total_s / plain.total_s:.1%} more"',
        _SAID,
    ),
    Mutant(
        "what model parallelism would cost is a share of it",
        _IN + "explanation.py",
        "lost = tried[0].total_s / best.total_s - 1",
        "lost = 1 - best.total_s / tried[0].total_s",
        _SAID,
    ),
    Mutant(
        "equation (6) is said with the efficiency of the best",
        _IN + "explanation.py",
        "many.efficiency / best.efficiency",
        "best.efficiency / many.efficiency",
        _SAID,
    ),
    Mutant(
        "equation (6) is said with its epochs the other way round",
        _IN + "explanation.py",
        "ratio, efficiency = best.epochs / many.epochs,",
        "ratio, efficiency = many.epochs / best.epochs,",
        _SAID,
    ),
    Mutant(
        "the longest chain never leaves a rank",
        _IN + "pipelines/timetable.py",
        "if there[source, edge.number] > since or action not in waited:",
        "if action not in waited:",
        _SAID,
    ),
    Mutant(
        "a chain is computed all the time",
        _IN + "predicted_step.py",
        "return Chain(tuple(runs), self.table.step, self.table.step - took)",
        "return Chain(tuple(runs), self.table.step, 0.0)",
        _SAID,
    ),
    Mutant(
        "the picture of a plan is an empty frame",
        "launcher/plan_picture.py",
        "        figure.savefig(path, dpi=120)",
        "        Figure(figsize=(10, 4)).savefig(path, dpi=120)",
        _PICTURE,
    ),
    Mutant(
        "a picture that is asked for is not drawn",
        "launcher/plan_command.py",
        "        draw(found, curve, options.picture)",
        "        pass",
        _PICTURE,
    ),
    Mutant(
        "a plan says nothing of what is not proven",
        _IN + "workers.py",
        "backward), found.gap",
        "backward), 0.0",
        _SAID,
    ),
    Mutant(
        "a plan places with as much effort as ever",
        _IN + "planning.py",
        "several.append(divided(net.parts, cluster, ways, seconds, **step))",
        "several.append(divided(net.parts, cluster, ways, **step))",
        _SAID,
    ),
    Mutant(
        "the command plans with as much effort as ever",
        "launcher/plan_command.py",
        "options.devices, seconds=options.seconds)",
        "options.devices)",
        _LAUNCHER,
    ),
]
