"""``--leaders auto``: whether one rank of each client speaks to the servers, or all of them.

What the busiest host has to send or receive decides, counted in models: one leader's link carries all that
its client sums, pushes and gets; of all ranks as leaders each carries its share. More leaders mean more
messages, and ranks that wait in MPI keep a core each. So all are taken only where the busiest link has
clearly less to do, and where each host has a core for every rank and every server. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpilaunch.hosts.hostlist import Placement
    from mpilaunch.jobspec import JobSpec

AUTO, ALL = "auto", "all"

MARGIN = 0.9
"""The busiest link must have a tenth less to do: of less nothing was left where it was measured."""


def with_leaders(spec: JobSpec, placement: Placement, cores: Mapping[str, int]) -> JobSpec:
    """Return a job with ``leaders`` chosen, where that is left to us; ``auto`` that stays means one.

    Args:
        spec: The job.
        placement: The hosts of its processes.
        cores: Of each host.
    """
    node = spec.node
    if node.leaders != AUTO or not placement.servers or spec.max_restarts or node.model_parallel > 1:
        return spec
    if not _has_cores(placement, cores):
        return spec
    if busiest(placement, all_push=True) > MARGIN * busiest(placement, all_push=False):
        return spec
    return replace(spec, node=replace(node, leaders=ALL))


def _has_cores(placement: Placement, cores: Mapping[str, int]) -> bool:
    busy = Counter(host for ranks in placement.ranks for host in ranks) + Counter(placement.servers)
    return all(number <= cores.get(host, 0) for host, number in busy.items())


def busiest(placement: Placement, *, all_push: bool) -> float:
    """Return what the busiest link carries in its busier direction in one step, in sizes of the model.

    MPI and the servers share the links. Pushes and answers are alike, and so are a client's sum and what is
    shared afterwards: a host sends and receives as much.

    Args:
        placement: The hosts of ranks and servers.
        all_push: Every rank of a client speaks to the servers; otherwise its first one does.
    """
    served = {host: number / len(placement.servers) for host, number in Counter(placement.servers).items()}
    pushed = [_pushed(ranks, all_push=all_push) for ranks in placement.ranks]
    return max(
        sum(_of_client(host, ranks, shares, served) for ranks, shares in zip(placement.ranks, pushed))
        for host in placement.hosts
    )


def _pushed(ranks: Sequence[str], *, all_push: bool) -> dict[str, float]:
    """Return which part of a client's slices each of its hosts pushes."""
    if not all_push:
        return {ranks[0]: 1.0}
    return {host: number / len(ranks) for host, number in Counter(ranks).items()}


def _of_client(
    host: str, ranks: Sequence[str], pushed: Mapping[str, float], served: Mapping[str, float]
) -> float:
    """Return what one client makes a host send, which is what it makes it receive."""
    pushes, serves = pushed.get(host, 0.0), served.get(host, 0.0)
    to_servers = pushes * (1 - serves)
    to_client = serves * (1 - pushes)
    if host not in ranks or len(set(ranks)) == 1:
        return to_servers + to_client
    # Its sums of what others push leave. The values of what it pushes go to the other leaders' hosts, by a
    # ring; from a single leader they go once, along a tree, which is the least that is possible.
    return to_servers + to_client + (1 - pushes) + pushes * max(1, len(pushed) - 1)
