"""When to add model parallelism: epochs, the time of a step, plans, and what is measured for them."""

from __future__ import annotations

from mutants.table import Mutant

_PAPER = ("paper/test_hybrid_speedups.py",)
_EPOCHS = ("unit/test_planner_epochs.py",)
_PLAN = ("unit/test_planner.py",)
_LAUNCHER = ("unit/test_launcher_planning.py",)
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
        "devices of a host cost nothing",
        _IN + "communication.py",
        "busiest = [max(pair) for pair in zip(network, inside)]",
        "busiest = network",
        _PLAN,
    ),
    Mutant(
        "a worker on several hosts has the whole model on each",
        _IN + "communication.py",
        "return Sites(workers, 1, cluster.num_each_host / ways)",
        "return Sites(workers, 1)",
        _PLAN,
    ),
    Mutant(
        "rows of tables cost as much as all of them",
        _IN + "communication.py",
        "touched = Density(layer.touched, layer.touched, max(layer.touched, layer.touched_by_all))",
        "touched = Density(1.0, 1.0, 1.0)",
        (*_PLAN, *_MEASURED),
    ),
    Mutant(
        "what is under way can be overtaken",
        _IN + "communication.py",
        "SLICES_TOO_LATE = 5.3",
        "SLICES_TOO_LATE = 0.0",
        _PLAN,
    ),
    Mutant(
        "processors take no time for rows",
        _IN + "communication.py",
        "seconds += cost.Speed(rows.byte_s, rows.message_s).seconds(traffic)",
        "seconds += 0.0 * (rows.byte_s + rows.message_s)",
        _PLAN,
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
        "a table has a piece for each server",
        _IN + "planning.py",
        "return max(cuts, default=0)",
        "return servers if cuts else 0",
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
        _LAUNCHER,
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
]
