"""The segments of one net, and the rank of a worker that has each.

Pure: this file must not know about frameworks, MPI or time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Segment(NamedTuple):
    """A part of a net that one rank computes at a stretch.

    Attributes:
        name: What messages call it.
        rank: The rank of the worker that has it, from 0.
        inputs: Segments whose outputs it takes, in the order of its arguments; a segment without any takes
            the batch.
        parameters: Names of what it learns.
    """

    name: str
    rank: int
    inputs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()


class Edge(NamedTuple):
    """An output that a segment takes.

    Attributes:
        number: Place in ``SegmentGraph.edges``.
        source: Number of the segment that makes it.
        target: Number of the segment that takes it.
        position: Which argument of the target it is.
    """

    number: int
    source: int
    target: int
    position: int


class SegmentGraph:
    """Segments in an order in which they can be computed, and the edges between them.

    Attributes:
        segments: In the given order, unless some stand before their inputs.
        edges: All, in the order of their targets.
        num_ranks: Ranks of the worker.
        output: Number of the last segment, whose output is the net's.
    """

    def __init__(self, segments: Sequence[Segment], num_ranks: int) -> None:
        """Check the segments and put them in order.

        Args:
            segments: At least one; exactly one has an output that no other takes.
            num_ranks: Ranks of the worker; each has at least one segment.

        Raises:
            UsageError: They cannot be computed, or a weight is on two ranks; the text says which.
        """
        _check_names(segments)
        _check_ranks(segments, num_ranks)
        check_shared(segments)
        self.num_ranks = num_ranks
        self.segments = _in_order(segments)
        number = {segment.name: index for index, segment in enumerate(self.segments)}
        pairs = [
            (number[name], target, position)
            for target, segment in enumerate(self.segments)
            for position, name in enumerate(segment.inputs)
        ]
        self.edges = tuple(Edge(index, *pair) for index, pair in enumerate(pairs))
        self.output = self._only_output()

    def _only_output(self) -> int:
        taken = {edge.source for edge in self.edges}
        last = [index for index in range(len(self.segments)) if index not in taken]
        if len(last) != 1:
            names = ", ".join(self.segments[index].name for index in last)
            raise UsageError(f"the net must have one output, and no part takes those of: {names}")
        return last[0]

    def into(self, segment: int) -> list[Edge]:
        """Return what a segment takes, in the order of its arguments."""
        return [edge for edge in self.edges if edge.target == segment]

    def out_of(self, segment: int) -> list[Edge]:
        """Return who takes the output of a segment."""
        return [edge for edge in self.edges if edge.source == segment]

    def rank_of(self, segment: int) -> int:
        """Return the rank that has a segment."""
        return self.segments[segment].rank

    def crosses(self, edge: Edge) -> bool:
        """Tell whether the ends of an edge are on two ranks."""
        return self.rank_of(edge.source) != self.rank_of(edge.target)


def chain(stages: Sequence[Sequence[str]]) -> SegmentGraph:
    """Return the segments of a pipeline, one on each rank; ``stages`` has the parameters of each."""
    segments = [
        Segment(f"stage{rank}", rank, (f"stage{rank - 1}",) if rank else (), tuple(parameters))
        for rank, parameters in enumerate(stages)
    ]
    return SegmentGraph(segments, len(segments))


def check_shared(segments: Sequence[Segment]) -> None:
    """Make sure that each parameter is on one rank.

    Raises:
        UsageError: One is on two, where each would update its own.
    """
    owners: dict[str, Segment] = {}
    for segment in segments:
        for parameter in segment.parameters:
            owner = owners.setdefault(parameter, segment)
            if owner.rank != segment.rank:
                raise UsageError(
                    f"the weight {parameter!r} is shared by {owner.name} on rank {owner.rank} and "
                    f"{segment.name} on rank {segment.rank}, where each would update a copy of its own: "
                    "put both on one rank"
                )


def _check_names(segments: Sequence[Segment]) -> None:
    if not segments:
        raise UsageError("a net has at least one part")
    names = [segment.name for segment in segments]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"two parts have the name {', '.join(twice)}")
    for segment in segments:
        unknown = [name for name in segment.inputs if name not in names]
        if unknown:
            raise UsageError(
                f"part {segment.name} takes the output of {', '.join(unknown)}, and there is no such "
                f"part; there are {', '.join(names)}"
            )


def _check_ranks(segments: Sequence[Segment], num_ranks: int) -> None:
    for segment in segments:
        if not 0 <= segment.rank < num_ranks:
            more = f", or give --model-parallel {segment.rank + 1}" if segment.rank > 0 else ""
            raise UsageError(
                f"part {segment.name} is on rank {segment.rank}, and a worker has the ranks 0 to "
                f"{num_ranks - 1}: change the plan{more}"
            )
    idle = sorted(set(range(num_ranks)) - {segment.rank for segment in segments})
    if idle:
        raise UsageError(
            f"rank {idle[0]} of each worker has no part: give --model-parallel "
            f"{num_ranks - len(idle)}, or a plan for {num_ranks} ranks"
        )


def _in_order(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the segments, each behind its inputs, and otherwise as given."""
    ordered: list[Segment] = []
    known: set[str] = set()
    left = list(segments)
    while left:
        ready = next((each for each in left if known.issuperset(each.inputs)), None)
        if ready is None:
            names = ", ".join(segment.name for segment in left)
            raise UsageError(f"parts wait for each other's outputs, and none can begin: {names}")
        left.remove(ready)
        known.add(ready.name)
        ordered.append(ready)
    return tuple(ordered)
