"""Placements of each kind, printed as JSON: ``python -m support.placement_questions METHOD``.

Names are what could be hashed differently in each process; the nets are small, and the effort is so little
that most of the answers are not proven.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.planner.cluster import uniform
from kvstore_mpi.planner.placement.graph import Graph
from kvstore_mpi.planner.placement.place import place
from kvstore_mpi.planner.placement.problem import Wishes
from support.placement_twins import ALIKE, UNLIKE, random_graph, series_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator

NET = random_graph(16, 1, trains=True, share=0.3)
HALVES = Graph(
    operations=tuple(
        msgspec.structs.replace(each, weight_gradient_seconds=each.backward_seconds / 2)
        for each in NET.operations
    ),
    edges=NET.edges,
)
SHORT = uniform(3, 1e6, 1e-3, memory_bytes=sum(each.memory_bytes for each in NET.operations) // 2)
TOGETHER = Wishes(pinned={"op3": "device1"}, together={("op0", "op1"), ("op4", "op5"), ("op7", "op8")})
ROOMY = msgspec.structs.replace(
    UNLIKE, devices=tuple(msgspec.structs.replace(each, memory_bytes=0) for each in UNLIKE.each_host)
)
QUESTIONS = {
    "pieces": (series_parallel(7, branches=3), ROOMY, Wishes()),
    "short memory": (NET, SHORT, Wishes()),
    "wishes": (NET, uniform(3, 1e6, 1e-3), TOGETHER),
    "contention": (NET, ALIKE, Wishes(contention=True)),
    "halves": (HALVES, ALIKE, Wishes(split_backward=True)),
}


def answers(method: str) -> Iterator[str]:
    """Yield the JSON of the answer to each question; by the solver one more, with two threads."""
    for name, (graph, cluster, wishes) in QUESTIONS.items():
        for workers in (1, 2) if (method, name) == ("cp", "wishes") else (1,):
            found = place(graph, cluster, wishes, method=method, seconds=0.2, workers=workers)
            yield found.to_json()


if __name__ == "__main__":
    sys.stdout.write("\n".join(answers(sys.argv[1])))
