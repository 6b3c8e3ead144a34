"""How one worker's net is divided among its ranks, by the names of its parts. Pure.

Parts are what a script can put on different ranks: the layers of a ``PipelineTrainer``, the parts of a
``PartTrainer``. A plan has the cut, and the trainers take it from there.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.planner.pipelines.schedules import Action
from kvstore_mpi.planner.placement.graph import Graph
from kvstore_mpi.planner.quantities import check_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.planner.pipelines.schedules import Schedule
    from kvstore_mpi.planner.pipelines.segments import SegmentGraph

PLACEMENT = "placement"
PIPELINE = "pipeline"
KINDS = (PLACEMENT, PIPELINE)
TRAINERS = {PLACEMENT: "PartTrainer", PIPELINE: "PipelineTrainer"}

SHOWN = 4
"""Most names of parts that are written out for people."""


class Handling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a message between two ranks takes of the processors of either, which compute nothing meanwhile.

    Attributes:
        byte_s: Seconds for each byte: to copy it out of the framework's memory, or into it.
        message_s: Seconds for the message.
    """

    byte_s: float = 0.0
    message_s: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        """Return what a message takes at one end."""
        return self.byte_s * num_bytes + self.message_s


class Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parts of a worker's net, as one device computes them.

    Attributes:
        graph: What each costs for one micro-batch, and what it reads.
        kind: ``pipeline`` if they follow each other and are cut into stages, else ``placement``.
        micro_batches: Of a step.
        handling: Of what travels between parts, besides what the link takes.
    """

    graph: Graph
    kind: str
    micro_batches: int = 1
    handling: Handling = Handling()

    def checked(self) -> Parts:
        """Return the parts.

        Raises:
            UsageError: There is no such kind, no micro-batch or no part, a message takes what no time is,
                the graph cannot be planned for, or layers of a pipeline do not follow each other.
        """
        if self.kind not in KINDS:
            raise UsageError(f"kind is {self.kind!r}; it must be one of {', '.join(KINDS)}")
        if self.micro_batches < 1:
            raise UsageError(f"micro_batches is {self.micro_batches}; a step has at least one")
        for name in ("byte_s", "message_s"):
            check_seconds(f"handling: {name}", getattr(self.handling, name))
        if not self.graph.checked().operations:
            raise UsageError("the graph has no operations; a net has at least one part")
        if self.kind == PIPELINE:
            edges = {(edge.source, edge.target) for edge in self.graph.edges}
            if odd := sorted(edges ^ {*pairwise(self.graph.order())}):
                raise UsageError(
                    "layers of a pipeline follow each other, with an edge from each to the next alone, and "
                    f"these do not: look at {' -> '.join(odd[0])}"
                )
        return self


class Cut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which rank of a worker computes which parts, and in which order.

    Attributes:
        kind: ``pipeline`` or ``placement``.
        structure: ``Graph.structure`` of the net that it is for.
        forward: For each rank, the names of its parts in the order of the forward pass.
        backward: The same for the backward pass.
    """

    kind: str
    structure: str
    forward: tuple[tuple[str, ...], ...]
    backward: tuple[tuple[str, ...], ...]

    @property
    def rank_of(self) -> dict[str, int]:
        """The rank of each part."""
        return {name: rank for rank, names in enumerate(self.forward) for name in names}

    def require(self, kind: str, structure: str, ranks: int) -> None:
        """Check that it is for this kind of trainer, this net and this number of ranks.

        Raises:
            UsageError: It is for another; the text says which, and what to do.
        """
        if kind != self.kind:
            raise UsageError(
                f"the plan has a {self.kind}, which is for a {TRAINERS[self.kind]} and not for a "
                f"{TRAINERS[kind]}: plan this script with mpilaunch plan"
            )
        if structure != self.structure:
            raise UsageError(
                f"the plan is for another net ({self.structure}; this one is {structure}): names, weights "
                "or inputs of its parts differ; make a new one with mpilaunch plan"
            )
        if ranks != len(self.forward):
            raise UsageError(
                f"the plan is for workers of {len(self.forward)} ranks, and these have {ranks}: "
                f"give --model-parallel {len(self.forward)}, or make a new one with mpilaunch plan"
            )

    def bounds(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the first layer of each stage but the first, by its place among all.

        Raises:
            UsageError: The stages are no runs of these layers.
        """
        firsts = tuple(names.index(stage[0]) for stage in self.forward)
        ends = (*firsts[1:], len(names))
        if [*self.forward] != [tuple(names[first:end]) for first, end in zip(firsts, ends)]:
            raise UsageError(
                f"the stages of the plan are no consecutive layers of {', '.join(names)}: make a new one "
                "with mpilaunch plan"
            )
        return firsts[1:]

    def schedule(self, graph: SegmentGraph, micro_batches: int) -> Schedule:
        """Return the planned order as a schedule: all forward, then all backward."""
        number = {segment.name: place for place, segment in enumerate(graph.segments)}
        batches = range(micro_batches)
        return tuple(
            (
                *(Action(number[name], batch, True) for batch in batches for name in forward),
                *(Action(number[name], batch, False) for batch in batches for name in backward),
            )
            for forward, backward in zip(self.forward, self.backward)
        )

    def __str__(self) -> str:
        """Say which rank has which parts."""
        return "; ".join(f"rank {rank} has {_listed(names)}" for rank, names in enumerate(self.forward))

    def to_json(self) -> str:
        """Return it as JSON, for ``read_cut``."""
        return msgspec.json.encode(self).decode()


def _listed(names: Sequence[str]) -> str:
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{names[0]} to {names[-1]} ({len(names)})"


def read_cut(text: str) -> Cut:
    """Read what ``Cut.to_json`` made.

    Raises:
        ConfigurationError: The text is nothing of the kind.
    """
    try:
        return msgspec.json.decode(text, type=Cut)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"this is no cut of a net: {error}; mpilaunch --plan tells it") from error


def write_parts(parts: Parts) -> bytes:
    """Return parts as JSON."""
    return msgspec.json.encode(parts)


def read_parts(text: bytes) -> Parts:
    """Read what ``write_parts`` made.

    Raises:
        ConfigurationError: The text is nothing of the kind.
        UsageError: They cannot be planned for.
    """
    try:
        parts = msgspec.json.decode(text, type=Parts)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"these are no parts of a net: {error}") from error
    return parts.checked()
