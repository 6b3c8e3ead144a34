"""The answer: which device computes what, in which order, over which links; and how good that is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.placement.graph import Graph

FORWARD = "forward"
BACKWARD = "backward"
WEIGHT_GRADIENT = "weight_gradient"
"""The half of the backward pass that gives gradients of parameters, where the two halves are apart."""


class Task(msgspec.Struct, frozen=True, order=True):
    """One pass of one operation: ``forward``, ``backward`` or ``weight_gradient``."""

    operation: str
    phase: str = FORWARD


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The way of one result to the device of one that reads it, and of its gradient back.

    Attributes:
        source: Operation whose result travels.
        target: Operation that reads it.
        nodes: Names of devices and routers on the way, both ends included.
        back: The same for the gradient; empty if nothing is trained.
        num_bytes: That travel each way.
    """

    source: str
    target: str
    nodes: tuple[str, ...]
    back: tuple[str, ...] = ()
    num_bytes: int


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when each operation is computed; ``simulate`` checks it and predicts its time.

    Attributes:
        graph_digest: ``Graph.digest`` of the net that it is for.
        cluster_digest: ``Cluster.digest`` of the cluster that it is for.
        device_of: Name of the device, by the name of the operation.
        order: What each device computes, from first to last, by the name of the device.
        routes: One for each edge whose ends are on different devices.
        predicted_seconds: Of one step.
        single_seconds: What the fastest device takes alone; memory is not looked at.
        bound_seconds: No placement takes less.
        contention: A link carries one transfer at a time in the prediction.
        split_backward: The two halves of the backward pass are apart.
        method: What found it.
    """

    graph_digest: str
    cluster_digest: str
    device_of: dict[str, str]
    order: dict[str, tuple[Task, ...]]
    routes: tuple[Route, ...]
    predicted_seconds: float
    single_seconds: float
    bound_seconds: float
    contention: bool = False
    split_backward: bool = False
    method: str = ""

    @property
    def gap(self) -> float:
        """How much more than the bound it may take, as a share of itself; 0: nothing is better."""
        if self.predicted_seconds <= self.bound_seconds:
            return 0.0
        return 1 - self.bound_seconds / self.predicted_seconds

    @property
    def speedup(self) -> float:
        """How many times as fast as the fastest device alone."""
        return self.single_seconds / self.predicted_seconds if self.predicted_seconds else 1.0

    def require(self, graph: Graph, cluster: Cluster) -> None:
        """Check that it is for this net and this cluster.

        Raises:
            UsageError: It was made for another; the error has both hashes.
        """
        for what, mine, other in (
            ("net", self.graph_digest, graph.digest),
            ("cluster", self.cluster_digest, cluster.digest),
        ):
            if mine != other:
                raise UsageError(
                    f"the placement was made for another {what} (hash {mine}; this one has {other}): "
                    "plan again"
                )

    def to_json(self) -> str:
        """Return the placement as JSON, for ``from_json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Placement:
        """Read what ``to_json`` made.

        Raises:
            UsageError: The text is nothing of the kind; the error says where.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise UsageError(f"this is not the JSON of a placement: {error}") from None
