"""Workers of several ranks: cuts, schedules, who owns what, and what travels between ranks."""

from __future__ import annotations

from mutants.table import Mutant

_PIPELINES = ("property/test_pipelines.py",)
_PARTS = ("contract/test_mxnet_parts.py",)
_CONFIG = ("unit/test_config.py",)
_RECORDS = ("unit/test_records.py",)
_JOBSPEC = ("unit/test_launcher_jobspec.py",)
_SERVICE = ("unit/test_service.py",)
_CUTS = ("unit/test_planner_cuts.py",)
_PLANNED = ("contract/test_planned_cuts.py",)
_LAUNCHER = ("unit/test_launcher_planning.py",)
_CHAINS = ("unit/test_chains.py",)
_LINKING = ("unit/test_tracing_linking.py",)
_MARKS = ("contract/test_part_marks.py",)
_STEPS = ("contract/test_part_steps.py",)
_AGREEMENT = ("contract/test_agreement.py",)
_LINKS = ("unit/test_links.py",)
_DECISIONS = ("contract/test_decisions.py",)
_SYMBOL = ("contract/test_symbol_net.py",)
_BELLS = ("unit/test_bells.py",)
_CORES = ("unit/test_cores.py",)
_IN = "kvstore_mpi/planner/pipelines/"

MUTANTS = [
    Mutant(
        "a rank that is told to end says that its program is over",
        "kvstore_mpi/adapters/mxnet/exchange/lifecycle.py",
        "    _links.clear()",
        "    _links.copy()",
        ("contract/test_mxnet_process.py",),
    ),
    Mutant(
        "a rank that has failed says that its program is over",
        "kvstore_mpi/adapters/mxnet/exchange/lifecycle.py",
        "    if all(worker.failure() is None for worker in _workers):",
        "    if _workers:",
        ("contract/test_mxnet_process.py",),
    ),
    Mutant(
        "a rank that has finished is waited for",
        "kvstore_mpi/comm/links.py",
        "            elif expected and self._bells.has_parted(expected[0].peer):",
        "            elif expected and self._bells.has_parted(-1):",
        _BELLS,
    ),
    Mutant(
        "what a rank on another host has sent before it has finished is given up",
        "kvstore_mpi/comm/links.py",
        "num_come >= int(self._told[peer][0])",
        "num_come >= 0",
        _LINKS,
    ),
    Mutant(
        "MPI is asked for what a rank that has finished will never send",
        "kvstore_mpi/comm/bells.py",
        "            if peer not in self._parted:",
        "            if peer:",
        _BELLS,
    ),
    Mutant(
        "ranks of a worker do not compare what one of them divides by",
        "kvstore_mpi/adapters/mxnet/parts/agreement.py",
        "self._described[key] + repr(batch_size).encode()",
        "self._described[key]",
        _AGREEMENT,
    ),
    Mutant(
        "the values of later batches are compared no more",
        "kvstore_mpi/adapters/mxnet/parts/agreement.py",
        "        if is_new or self._steps & (self._steps - 1) == 0:",
        "        if is_new:",
        _AGREEMENT,
    ),
    Mutant(
        "a batch of a new shape is compared when it has been computed",
        "kvstore_mpi/adapters/mxnet/parts/agreement.py",
        "            check()",
        "            pass",
        _AGREEMENT,
    ),
    Mutant(
        "a message that is too large is a lost rank",
        "kvstore_mpi/comm/links.py",
        "        if error.Get_error_class() != mpi.ERR_TRUNCATE:",
        "        if error.Get_error_class():",
        _LINKS,
    ),
    Mutant(
        "a smaller batch at the end of an epoch is refused by nets in parts",
        "kvstore_mpi/adapters/mxnet/parts/part_trainer.py",
        "        if isinstance(self._kvstore, KVStoreMPI):",
        "        if self._kvstore is None:",
        _STEPS,
    ),
    Mutant(
        "a loss of one number passes for one of each sample",
        "kvstore_mpi/adapters/mxnet/parts/segment_run.py",
        "    if not isinstance(loss, mx.nd.NDArray) or loss.ndim == 0 or len(loss) % num_samples:",
        "    if not isinstance(loss, mx.nd.NDArray):",
        ("contract/test_mxnet_parts.py",),
    ),
    Mutant(
        "a pipeline goes forward with all micro-batches before it goes back",
        "kvstore_mpi/adapters/mxnet/parts/pipeline.py",
        "schedule=one_f_one_b(size, micro_batches),",
        "schedule=None,",
        _STEPS,
    ),
    Mutant(
        "gradients are pushed for each micro-batch",
        "kvstore_mpi/adapters/mxnet/parts/part_trainer.py",
        "            step.carry_out(action, inputs, labels)",
        "            step.carry_out(action, inputs, labels), action.forward or self.trainer.step(16)",
        _STEPS,
    ),
    Mutant(
        "a step is a millionth too small",
        "kvstore_mpi/adapters/mxnet/parts/part_trainer.py",
        "return len(label) * int(workers)",
        "return len(label) * int(workers) * (1 + 1e-6)",
        ("contract/test_mxnet_parts.py::test_any_shape_computes_what_one_net_does",),
    ),
    Mutant(
        "the error of the rank that decides is no error of others",
        "kvstore_mpi/adapters/mxnet/decisions.py",
        "return msgspec.json.encode(_Decision(error=(type(error).__name__, str(error))))",
        "return msgspec.json.encode(_Decision())",
        _DECISIONS,
    ),
    Mutant(
        "what no times can mend is measured all the same",
        "kvstore_mpi/adapters/mxnet/parts/pipeline.py",
        "without_times = partition([_counted(layer) for layer in layers], size)",
        "without_times = partition([_counted(layer) for layer in layers], 1)",
        _DECISIONS,
    ),
    Mutant(
        "each worker decides for itself",
        "kvstore_mpi/adapters/mxnet/decisions.py",
        "told = links.broadcast(_of_worker_0(told), 0)",
        'told = links.broadcast(_of_worker_0(told) and _outcome(decide) if links.rank == 0 else b"", 0)',
        _DECISIONS,
    ),
    Mutant(
        "who hands a message over computes meanwhile",
        _IN + "timetable.py",
        "                    until += handling[edge.number]",
        "                    until += 0",
        (*_CUTS, *_PIPELINES),
    ),
    Mutant(
        "a gradient that nobody has written is what was in its memory",
        "kvstore_mpi/adapters/mxnet/parts/segment_run.py",
        "return array.grad if array._fresh_grad else",
        "return array.grad if array is not None else",
        _PARTS,
    ),
    Mutant(
        "two parts record of one array of the batch",
        "kvstore_mpi/adapters/mxnet/parts/segment_run.py",
        "data[index].detach() if of_batch",
        "data[index] if of_batch",
        _PARTS,
    ),
    Mutant(
        "MPI is asked before a message has left",
        "kvstore_mpi/comm/bells.py",
        "self._rung[peer, tag] > 0 or",
        "self._rung[peer, tag] >= 0 or",
        _BELLS,
    ),
    Mutant(
        "one bell is for all messages of its tag",
        "kvstore_mpi/comm/bells.py",
        "self._rung.subtract([(peer, tag)])",
        "self._rung.subtract([])",
        _BELLS,
    ),
    Mutant(
        "ranks take shares although one wants none",
        "kvstore_mpi/comm/cores.py",
        "told == [(has, True)] * len(told)",
        "told[0][0] == has",
        _CORES,
    ),
    Mutant(
        "what forks stays in one chain",
        _IN + "chains.py",
        "alone = len(sources) == 1 and all(len(readers[source]) == 1 for source in sources)",
        "alone = len(sources) == 1",
        _CHAINS,
    ),
    Mutant(
        "others may take several results of a chain",
        _IN + "chains.py",
        "if len(results[group]) > 1)",
        "if len(results[group]) > 2)",
        _CHAINS,
    ),
    Mutant(
        "branches draw a random mask each for itself",
        "kvstore_mpi/adapters/mxnet/parts/operation_parts.py",
        "chains(reads, last, _shared(nodes, reads))",
        "chains(reads, last)",
        ("contract/test_mxnet_operation_parts.py",),
    ),
    Mutant(
        "who waits for a message polls as often as ever",
        "kvstore_mpi/comm/links.py",
        "waits.around_calls(2, os.environ)",
        "waits.around_calls(2, {})",
        ("unit/test_links.py",),
    ),
    Mutant(
        "a cut with cheaper transfers but a slower stage is dropped",
        _IN + "stages.py",
        "if not kept or each.spent < kept[-1].spent:",
        "if not kept:",
        _PIPELINES,
    ),
    Mutant(
        "every stage holds one micro-batch",
        _IN + "stages.py",
        "held = min(self.num_stages - stage, self.micro_batches)",
        "held = 1",
        _PIPELINES,
    ),
    Mutant(
        "layers that share a weight are cut apart",
        _IN + "stages.py",
        "return end == len(chain.layers) or chain.may_cut(end)",
        "return True",
        _PIPELINES,
    ),
    Mutant(
        "a stage goes forward once too often before it goes back",
        _IN + "schedules.py",
        "ahead = min(num_stages - 1 - stage, micro_batches)",
        "ahead = min(num_stages - stage, micro_batches)",
        _PIPELINES,
    ),
    Mutant(
        "a schedule by which ranks wait for ever is taken",
        _IN + "schedules.py",
        "    if stuck:",
        "    if stuck and not stuck:",
        _PIPELINES,
    ),
    Mutant(
        "a weight may be on two ranks",
        _IN + "segments.py",
        "            if owner.rank != segment.rank:",
        "            if owner.rank > segment.rank:",
        _PIPELINES,
    ),
    Mutant(
        "of two parts that take an output one tells its gradient",
        "kvstore_mpi/adapters/mxnet/parts/segment_run.py",
        "            total = total + gradient",
        "            total = gradient",
        _PARTS,
    ),
    Mutant(
        "gradients of earlier steps are added",
        "kvstore_mpi/adapters/mxnet/parts/part_trainer.py",
        "                param.zero_grad()",
        "                pass",
        _PARTS,
    ),
    Mutant(
        "all parts meet the first part's scheduler",
        "kvstore_mpi/config.py",
        'self.scheduler.split(";")[self.model_rank]',
        'self.scheduler.split(";")[0]',
        _CONFIG,
    ),
    Mutant(
        "ranks of a worker are described as workers",
        "kvstore_mpi/records.py",
        "{worker * self.model_parallel + self.model_rank}",
        "{worker}",
        _RECORDS,
    ),
    Mutant(
        "each rank computes with the share of a worker",
        "launcher/jobspec.py",
        "cores // (spec.node.num_workers * spec.node.model_parallel)",
        "cores // spec.node.num_workers",
        _JOBSPEC,
    ),
    Mutant(
        "the error of one part's server is lost",
        "kvstore_mpi/node.py",
        "            ends.put(error)",
        "            ends.put(None)",
        _SERVICE,
    ),
    Mutant(
        "a plan for another net is run",
        "kvstore_mpi/planner/cuts.py",
        "        if structure != self.structure:",
        "        if structure < self.structure and structure > self.structure:",
        (*_CUTS, *_PLANNED),
    ),
    Mutant(
        "a pipeline measures where a plan has its stages",
        "kvstore_mpi/adapters/mxnet/parts/pipeline.py",
        "if stages == AUTO and size > 1 and (cut := planned_cut()) is not None:",
        "if stages == AUTO and size > 2 and (cut := planned_cut()) is not None:",
        _PLANNED,
    ),
    Mutant(
        "parts are computed in the script's order on the plan's ranks",
        "kvstore_mpi/adapters/mxnet/parts/part_trainer.py",
        "            schedule = cut.schedule(self._net.graph, micro_batches)",
        "            pass",
        _PLANNED,
    ),
    Mutant(
        "the backward pass has the order of the forward pass",
        "kvstore_mpi/planner/cuts.py",
        "*(Action(number[name], batch, False) for batch in batches for name in backward),",
        "*(Action(number[name], batch, False) for batch in batches for name in forward),",
        (*_CUTS, *_PLANNED),
    ),
    Mutant(
        "ranks are not told the cut",
        "launcher/cli.py",
        "node=replace(spec.node, cut=cut), planned_ranks=ranks",
        "planned_ranks=ranks",
        _LAUNCHER,
    ),
    Mutant(
        "what stages send each other takes no time in a plan",
        "kvstore_mpi/planner/predicted_step.py",
        "transfer[number] = sum(link.seconds(edge.num_bytes) for link in way)",
        "transfer[number] = 0.0 * len(way)",
        _CUTS,
    ),
    Mutant(
        "all devices of a worker are as fast as the first",
        "kvstore_mpi/planner/predicted_step.py",
        "speed = [places[segment.rank].speed for segment in graph.segments]",
        "speed = [places[0].speed for segment in graph.segments]",
        _CUTS,
    ),
    Mutant(
        "a plan has the cut of any workers",
        "kvstore_mpi/planner/planning.py",
        "if (each.ways, each.kind) == (best.ways, best.kind))",
        "if each.kind)",
        _CUTS,
    ),
    Mutant(
        "a gradient leaves in the trace of a plan when the output did",
        "kvstore_mpi/planner/predicted_step.py",
        "elif not action.forward and action.segment == edge.target:",
        "elif action.forward and action.segment == edge.target:",
        _CUTS,
    ),
    Mutant(
        "what the ranks of a worker have in common is one job on the trace",
        "kvstore_mpi/tracing/timeline.py",
        "        jobs.setdefault(each.header.model_rank, []).append(each)",
        "        jobs.setdefault(None, []).append(each)",
        _LINKING,
    ),
    Mutant(
        "hosts of a second coordinator have its clock",
        "kvstore_mpi/tracing/timeline.py",
        "Offset(here.offset_ns - there.offset_ns, here.error_ns + there.error_ns)",
        "Offset(0 * here.offset_ns - there.offset_ns, here.error_ns + there.error_ns)",
        _LINKING,
    ),
    Mutant(
        "a computation begins when it is asked for, though another is under way",
        "kvstore_mpi/adapters/mxnet/parts/part_marks.py",
        "self._recorder.span(name, max(begun, self._last), self._thread)",
        "self._recorder.span(name, begun, self._thread)",
        _MARKS,
    ),
    Mutant(
        "a rank waits while it computes",
        "kvstore_mpi/adapters/mxnet/parts/part_marks.py",
        "        if self._ended == self._asked:",
        "        if self._ended <= self._asked:",
        _MARKS,
    ),
    Mutant(
        "a constant is counted in the last part that takes it",
        "kvstore_mpi/adapters/mxnet/parts/operation_parts.py",
        "    for number in sorted(names, reverse=True):",
        "    for number in sorted(names):",
        _SYMBOL,
    ),
]
