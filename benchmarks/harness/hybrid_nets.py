"""The nets of ``hybrid_step.py``, in parts for two ranks; it measures nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from kvstore_mpi.mxnet import Part
from kvstore_mpi.planner.pipelines.schedules import Schedule, fill_drain, one_f_one_b
from kvstore_mpi.planner.pipelines.segments import Segment, SegmentGraph

if TYPE_CHECKING:
    from collections.abc import Callable

SIDE, CHANNELS = 28, 64


class Case(NamedTuple):
    """A net in parts.

    Attributes:
        parts: With their ranks.
        shapes: Of the arrays of a batch.
        micro_batches: Of a step.
        is_chain: Runs by 1F1B.
    """

    parts: list[Part]
    shapes: list[tuple[int, ...]]
    micro_batches: int
    is_chain: bool = False

    def graph(self, num_ranks: int) -> SegmentGraph:
        """Return the segments, as the trainer makes them of the parts."""
        return SegmentGraph(
            [
                Segment(part.name, part.rank, tuple(name for name in part.inputs if "data" not in name))
                for part in self.parts
            ],
            num_ranks,
        )

    def schedule(self, graph: SegmentGraph) -> Schedule:
        """Return in which order each rank computes."""
        if self.is_chain:
            return one_f_one_b(graph.num_ranks, self.micro_batches)
        return fill_drain(graph, self.micro_batches)

    def on_one_rank(self) -> list[Part]:
        """Return the parts as one rank has them."""
        return [part._replace(rank=0) for part in self.parts]


class _Join(gluon.HybridBlock):  # type: ignore[misc]
    """Two outputs side by side."""

    def hybrid_forward(self, F: Any, left: Any, right: Any) -> Any:  # noqa: N803  MXNet's name
        """See ``HybridBlock``."""
        return F.concat(left, right, dim=1)


class _Top(gluon.HybridBlock):  # type: ignore[misc]
    """The classes of two outputs."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.pool = nn.MaxPool2D(7)
            self.classes = nn.Dense(10)

    def hybrid_forward(self, F: Any, *outputs: Any) -> Any:  # noqa: N803  MXNet's name
        """See ``HybridBlock``."""
        return self.classes(self.pool(F.concat(*outputs, dim=1) if len(outputs) > 1 else outputs[0]))


def _convolutions(*sizes: int, channels: int = CHANNELS) -> nn.HybridSequential:
    block = nn.HybridSequential()
    for size in sizes:
        block.add(nn.Conv2D(channels, size, padding=size // 2, activation="relu"))
    return block


def inception() -> Case:
    """Return blocks of two branches of about equal work, as in Inception, and a stem and the classes."""
    parts, last = [Part("stem", _convolutions(3), 0)], "stem"
    for number in range(3):
        left, right, join = f"left{number}", f"right{number}", f"join{number}"
        parts += [
            Part(right, _convolutions(1, 3, 3, channels=CHANNELS // 2), 1, (last,)),
            Part(left, _convolutions(1, 5, 1, channels=CHANNELS // 2), 0, (last,)),
            Part(join, _Join(), 0, (left, right)),
        ]
        last = join
    return Case([*parts, Part("top", _Top(), 0, (last,))], [(1, SIDE, SIDE)], 1)


def towers() -> Case:
    """Return two towers with an input each, and the classes above them."""
    parts = [
        Part("left", _convolutions(3, 3, 3), 0, ("data",)),
        Part("right", _convolutions(3, 3, 3), 1, ("data1",)),
        Part("top", _Top(), 0, ("left", "right")),
    ]
    return Case(parts, [(1, SIDE, SIDE), (1, SIDE, SIDE)], 1)


def pipeline() -> Case:
    """Return two stages of convolutions."""
    last = _convolutions(3, 3)
    last.add(nn.MaxPool2D(7), nn.Dense(10))
    parts = [Part("stage0", _convolutions(3, 3, 3), 0), Part("stage1", last, 1, ("stage0",))]
    return Case(parts, [(1, SIDE, SIDE)], 8, is_chain=True)


NETS: dict[str, Callable[[], Case]] = {"inception": inception, "towers": towers, "pipeline": pipeline}


def make(name: str) -> Case:
    """Build a net with values."""
    mx.random.seed(4)
    case = NETS[name]()
    for part in case.parts:
        part.block.initialize(mx.init.Xavier())
    return case
