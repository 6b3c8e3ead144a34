"""How fast a step of one client can be at all, with one leader and with all ranks as leaders.

The setting: each rank of the client has a host, and so has each server; the links of all hosts to the
servers carry the same in each direction; MPI has the same links, or others of which it is assumed that they
do not limit. Every byte of the model is summed over the ranks, pushed, answered and spread over the ranks
once. This file must not measure, read or start anything.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A client and its servers.

    Attributes:
        ranks: Ranks of the client, one on each host.
        servers: Servers, each on a host of its own.
        leaders: Who pushes and pulls: ``one`` rank or ``all``.
        shared_link: MPI has the links to the servers, and no other network.
    """

    ranks: int
    servers: int
    leaders: str
    shared_link: bool


def busiest_share(shape: Shape) -> float:
    """Return what crosses the busiest link in its busier direction in a step, in sizes of the model.

    A rank that pushes a part ``a`` of the model sends ``a`` to the servers. With MPI on the same link it
    also sends ``a`` at least once to share what has come back, and adds to the ``1 - a`` that others push:
    one model more. As much arrives.
    """
    part = 1.0 if shape.leaders == "one" else 1 / shape.ranks
    return max(part + 1.0 if shape.shared_link else part, 1 / shape.servers)


def least_seconds(shape: Shape, num_bytes: float, bytes_per_s: float) -> float:
    """Return the least seconds of a step.

    Args:
        shape: Client and servers.
        num_bytes: Size of the model.
        bytes_per_s: Goodput of a link to the servers in each direction.
    """
    return busiest_share(shape) * num_bytes / bytes_per_s
