"""The step of one worker of several devices, in the order in which its ranks will compute it. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kvstore_mpi.planner.cuts import PIPELINE
from kvstore_mpi.planner.pipelines.schedules import check, one_f_one_b
from kvstore_mpi.planner.pipelines.segments import Segment, SegmentGraph, chain
from kvstore_mpi.planner.pipelines.timetable import Times, Timetable, simulate
from kvstore_mpi.planner.step_trace import Box, step_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.cuts import Cut, Parts
    from kvstore_mpi.planner.pipelines.schedules import Action
    from kvstore_mpi.planner.placement.graph import Graph


SHOWN = 6
"""Most ranks of a chain that are written out at either end of it, for people."""


class Chain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The computations of a step that wait for each other longest.

    Attributes:
        runs: What is computed on one rank before the chain goes on to another, as ``forward a, b``.
        seconds: All of it.
        between_s: In which the chain is under way between ranks.
    """

    runs: tuple[str, ...]
    seconds: float
    between_s: float

    def __str__(self) -> str:
        """Say it; the middle of a long one is left out."""
        runs = self.runs
        if left := max(0, len(runs) - 2 * SHOWN):
            runs = (*runs[:SHOWN], f"({left} more)", *runs[-SHOWN:])
        return (
            f"{' -> '.join(runs)}: {1e3 * self.seconds:.2f} ms, "
            f"{1e3 * self.between_s:.2f} ms of them between ranks"
        )


class PredictedStep(NamedTuple):
    """What the ranks of one worker compute, and when; nothing is sent to other workers.

    Attributes:
        graph: The stages, or the parts, on the worker's ranks.
        times: What each takes.
        table: When all of it happens.
        devices: Name of each rank's device.
    """

    graph: SegmentGraph
    times: Times
    table: Timetable
    devices: tuple[str, ...]

    def trace(self) -> dict[str, Any]:
        """Return it as a trace, with the names that the trace of a job has."""
        return step_trace([*self._computations()], [*self._messages()])

    def chain(self) -> Chain:
        """Return what makes the step as long as it is."""
        actions = self.table.longest_chain()
        runs = [", ".join(self._said([*group])) for _, group in groupby(actions, key=self._rank_of)]
        took = sum(self.table.ends[action] - self.table.starts[action] for action in actions)
        return Chain(tuple(runs), self.table.step, self.table.step - took)

    def _rank_of(self, action: Action) -> int:
        return self.graph.rank_of(action.segment)

    def _said(self, actions: Sequence[Action]) -> Iterator[str]:
        """Yield what is computed in words, ``forward`` and ``backward`` once for what is in a row."""
        for forward, group in groupby(actions, key=lambda action: action.forward):
            names = [self.graph.segments[action.segment].name for action in group]
            parts = [
                f"{name} x {count}" if (count := len([*same])) > 1 else name
                for name, same in groupby(names)
            ]
            yield f"{'forward' if forward else 'backward'} {', '.join(parts)}"

    def _computations(self) -> Iterator[Box]:
        for action, since in self.table.starts.items():
            kind = "forward" if action.forward else "backward"
            segment = self.graph.segments[action.segment]
            yield _box(
                self.devices[segment.rank],
                f"{kind} {segment.name} {action.micro_batch}",
                kind,
                since,
                self.table.ends[action],
            )

    def _messages(self) -> Iterator[Box]:
        for edge in self.graph.edges:
            if not self.graph.crosses(edge):
                continue
            name = self.graph.segments[edge.source].name
            ranks = self.graph.rank_of(edge.source), self.graph.rank_of(edge.target)
            there, back = (
                " -> ".join(self.devices[rank] for rank in each) for each in (ranks, ranks[::-1])
            )
            took = self.times.transfer[edge.number] + 2 * self.times.handling[edge.number]
            for action, end in self.table.ends.items():
                if action.forward and action.segment == edge.source:
                    yield _box(there, f"output {action.micro_batch} of {name}", "transfer", end, end + took)
                elif not action.forward and action.segment == edge.target:
                    text = f"gradient {action.micro_batch} of {name}'s output"
                    yield _box(back, text, "transfer", end, end + took)


def _box(place: str, name: str, category: str, since: float, until: float) -> Box:
    return Box(place, name, category, round(since * 1e9), round(until * 1e9))


def predicted_step(parts: Parts, cut: Cut, devices: Cluster) -> PredictedStep:
    """Return the step of all micro-batches, in the order in which the trainer computes them.

    Args:
        parts: Of the net.
        cut: Which rank has what.
        devices: Of one worker.
    """
    if cut.kind == PIPELINE:
        graph, members = chain([()] * len(cut.forward)), cut.forward
        schedule = one_f_one_b(len(cut.forward), parts.micro_batches)
    else:
        graph = _segments_of(parts.graph, cut.rank_of)
        members = tuple((segment.name,) for segment in graph.segments)
        schedule = cut.schedule(graph, parts.micro_batches)
    check(graph, schedule, parts.micro_batches)
    times = _times(parts, graph, members, devices)
    names = tuple(device.name for device in devices.all_devices)
    return PredictedStep(graph, times, simulate(graph, schedule, times), names)


def _segments_of(graph: Graph, rank_of: Mapping[str, int]) -> SegmentGraph:
    """Return the operations of a graph as segments on ranks."""
    segments = [
        Segment(
            name,
            rank_of[name],
            tuple(edge.source for edge in graph.edges if edge.target == name),
            graph.by_name()[name].weights,
        )
        for name in graph.order()
    ]
    return SegmentGraph(segments, 1 + max(rank_of.values()))


def _times(parts: Parts, graph: SegmentGraph, members: Sequence[Sequence[str]], devices: Cluster) -> Times:
    """Return what segments take, given the operations of each."""
    by_name, places = parts.graph.by_name(), devices.all_devices
    speed = [places[segment.rank].speed for segment in graph.segments]
    ends = {(members[edge.source][-1], members[edge.target][0]): edge.number for edge in graph.edges}
    transfer, handling = [0.0] * len(graph.edges), [0.0] * len(graph.edges)
    for edge in parts.graph.edges:
        number = ends.get((edge.source, edge.target))
        if number is not None and graph.crosses(graph.edges[number]):
            source, target = (graph.edges[number].source, graph.edges[number].target)
            way = devices.route(
                places[graph.rank_of(source)].name, places[graph.rank_of(target)].name, edge.num_bytes
            )
            transfer[number] = sum(link.seconds(edge.num_bytes) for link in way)
            handling[number] = parts.handling.seconds(edge.num_bytes)
    return Times(
        [
            sum(by_name[name].forward_seconds for name in names) / fast
            for names, fast in zip(members, speed)
        ],
        [
            sum(by_name[name].backward_seconds for name in names) / fast
            for names, fast in zip(members, speed)
        ],
        transfer,
        handling,
    )
