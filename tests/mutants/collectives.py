"""Sums over the ranks of a client: programs, what carries them out, and which is chosen."""

from __future__ import annotations

from mutants.table import Mutant

_PROGRAMS = ("property/test_tensor_collectives.py",)
_COSTS = ("property/test_tensor_costs.py",)
_CHOICE = ("unit/test_collective_choice.py",)
_GROUP = ("contract/test_group.py",)
_TENSORS = ("contract/test_tensor_group.py",)
_IN = "kvstore_mpi/tensor_collectives/"

MUTANTS = [
    Mutant(
        "the last of several ranges ends too early",
        _IN + "steps.py",
        "for index in range(count)] + [hi]",
        "for index in range(count)] + [hi - (hi > lo)]",
        _PROGRAMS,
    ),
    Mutant(
        "slots are as large as the last segment",
        _IN + "steps.py",
        "sizes[receive.slot] = max(sizes.get(receive.slot, 0), receive.hi - receive.lo)",
        "sizes[receive.slot] = receive.hi - receive.lo",
        _PROGRAMS,
    ),
    Mutant(
        "in place, what has come is not added",
        _IN + "steps.py",
        "steps += [Combine(step.lo, step.hi, step.slot)] if step.slot is not None else []",
        "steps += []",
        _PROGRAMS,
    ),
    Mutant(
        "a ring begins with the own chunk",
        _IN + "rings.py",
        "return self.chunks[(self._place - 1 - step) % self.size]",
        "return self.chunks[(self._place - step) % self.size]",
        _PROGRAMS,
    ),
    Mutant(
        "what has arrived is not added",
        _IN + "rings.py",
        "return Reduce(*self._chunk(step), self._slot if step else None)",
        "return Reduce(*self._chunk(step), None)",
        _PROGRAMS,
    ),
    Mutant(
        "rings share a slot",
        _IN + "rings.py",
        "return [Ring(ranks, rank, each, slot) for slot, each in enumerate(shares)]",
        "return [Ring(ranks, rank, each, 0) for each in shares]",
        _PROGRAMS,
    ),
    Mutant(
        "a mean is not made of the own chunk",
        _IN + "rings.py",
        "return [*turns, *(Finish(*ring.own) for ring in rings)]",
        "return [*turns]",
        _PROGRAMS,
    ),
    Mutant(
        "the last chunk is not copied to the vectors",
        _IN + "rings.py",
        "program.append(Share(*ring.came(ring.size - 1)))",
        "program.append(Share(*ring.came(0)))",
        _PROGRAMS,
    ),
    Mutant(
        "a segment too few goes around",
        _IN + "rings.py",
        "for lo in range(extent[0], extent[1], segment):",
        "for lo in range(extent[0], extent[1] - 1, segment):",
        _PROGRAMS,
    ),
    Mutant(
        "the root gathers its left neighbour's chunk from itself",
        _IN + "rings.py",
        "others = [(peer, chunk) for peer, chunk in zip(ranks, ring.chunks) if peer != root]",
        "others = [(peer, chunk) for peer, chunk in zip(ranks, ring.chunks)]",
        _PROGRAMS,
    ),
    Mutant(
        "doubling stops a round too early",
        _IN + "trees.py",
        "        while distance < core:",
        "        while 2 * distance < core:",
        _PROGRAMS,
    ),
    Mutant(
        "the spare rank gets no result",
        _IN + "trees.py",
        "core = 1 << (size.bit_length() - 1)",
        "core = 1 << size.bit_length()",
        _PROGRAMS,
    ),
    Mutant(
        "a tree that does not begin at the root",
        _IN + "trees.py",
        "place = (ranks.index(rank) - ranks.index(root)) % size",
        "place = ranks.index(rank)",
        _PROGRAMS,
    ),
    Mutant(
        "sums in shared memory begin with the last rank",
        _IN + "hosts.py",
        "Collect(*own, everyone, tuple(targets), complete=True),",
        "Collect(*own, everyone[::-1], tuple(targets), complete=True),",
        ("property/test_summing_order.py",),
    ),
    Mutant(
        "a carrier's chunk gets the sum of its own rank alone",
        _IN + "hierarchical.py",
        "own = Collect(*self.own, self.host, (self.carrier,), complete=False)",
        "own = Collect(*self.own, (self._rank,), (self.carrier,), complete=False)",
        _PROGRAMS,
    ),
    Mutant(
        "sums are not divided",
        _IN + "executor.py",
        "    if divisor != 1:",
        "    if divisor > 1e9:",
        _PROGRAMS,
    ),
    Mutant(
        "what is collected is not divided",
        _IN + "executor.py",
        "add(targets, sources, operation, divisor if step.complete else 1)",
        "add(targets, sources, operation, 1)",
        _PROGRAMS,
    ),
    Mutant(
        "the reduction of a step costs nothing",
        _IN + "cost.py",
        "return step.hi - step.lo if step.slot is not None else 0",
        "return 0",
        _COSTS,
    ),
    Mutant(
        "links carry one direction at a time",
        _IN + "cost.py",
        "return max(sent, sum(receive.hi - receive.lo for receive in step.receives))",
        "return sent + sum(receive.hi - receive.lo for receive in step.receives)",
        _COSTS,
    ),
    Mutant(
        "reductions wait for transfers on a device as well",
        _IN + "cost.py",
        "now = now if model.asynchronous else device",
        "now = device",
        _COSTS,
    ),
    Mutant(
        "what is more complicated is taken for nothing",
        _IN + "choice.py",
        "if seconds(plan) < seconds(best) * _MARGIN:",
        "if seconds(plan) < seconds(best):",
        _CHOICE,
    ),
    Mutant(
        "the choice looks at one segment size",
        _IN + "choice.py",
        "useful = sum(each < num_bytes for each in _SEGMENTS_BYTES) + 1",
        "useful = 1",
        _CHOICE,
    ),
    Mutant(
        "small sums between hosts go around a ring",
        _IN + "choice.py",
        "doubling=len(self.hosts) > 1 and num_bytes <= SMALL_BYTES",
        "doubling=False",
        _CHOICE,
    ),
    Mutant(
        "several ranks sum through MPI whatever lies beside",
        _IN + "choice.py",
        "if possible and self._ranks > PAIR and (self._buckets or len(self.hosts) > 1):",
        "if possible and self._ranks > PAIR and len(self.hosts) > 1:",
        _CHOICE,
    ),
    Mutant(
        "a bucket of types that differ",
        _IN + "group.py",
        "key = (plan, run.buffer.dtype, run.root)",
        "key = (plan, run.root)",
        _GROUP,
    ),
    Mutant(
        "what was staged is not copied back",
        _IN + "group.py",
        'if name == "allreduce" or (root == self.rank) is (name == "reduce"):',
        'if name == "allreduce" or (root != self.rank and name == "reduce"):',
        _GROUP,
    ),
    Mutant(
        "runs of three ranks are summed together by MPI",
        _IN + "group.py",
        'same_bits = name == "broadcast" or self.size <= PAIR',
        "same_bits = True",
        _GROUP,
    ),
    Mutant(
        "what one rank cannot reach others use",
        _IN + "driver.py",
        "return reached if communicator.minimum(len(reached) == len(host)) else {}",
        "return reached",
        _TENSORS,
    ),
    Mutant(
        "runs of one size share slots",
        _IN + "driver.py",
        "alike[kind] += 1",
        "alike[kind] += 0",
        _GROUP,
    ),
    Mutant(
        "nobody is named while the ranks find each other",
        _IN + "driver.py",
        "self._waiting = Barrier(tuple(range(self.size)))",
        "self._waiting = Barrier(())",
        _TENSORS,
    ),
    Mutant(
        "a mean over tensors counts ranks and not vectors",
        _IN + "blocking.py",
        "return self._driver.size * len(tensor.vectors) if operation.is_mean else 1",
        "return self._driver.size if operation.is_mean else 1",
        _TENSORS,
    ),
    Mutant(
        "half sums are rounded at each hop",
        _IN + "group.py",
        "work = segment if wide == segment.dtype else segment.astype(wide)",
        "work = segment",
        _GROUP,
    ),
]
