"""Who belongs to a job, who has joined it and who has left, and what people call them. Pure.

This file must not know what follows from it that somebody comes or goes; that is ``state.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.records import NodeId, Role, Topology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.wire import messages as m

RANK_0 = NodeId(Role.WORKER, 0)


class Roster:
    """The processes of one job.

    Attributes:
        expected: All of them.
        joined: What those that have joined said of themselves.
        left: What has become of those that have left, or are down, or have not been waited for.
    """

    def __init__(self, topology: Topology) -> None:
        """Start with nobody there."""
        self.expected = {NodeId(Role.WORKER, rank) for rank in range(topology.num_workers)}
        self.expected |= {NodeId(Role.SERVER, index) for index in range(topology.num_servers)}
        self.joined: dict[NodeId, m.Join] = {}
        self.left: dict[NodeId, m.PeerGone] = {}
        self._topology = topology

    @property
    def complete(self) -> bool:
        """Everybody has joined."""
        return len(self.joined) == len(self.expected)

    @property
    def present(self) -> list[NodeId]:
        """Those that have joined and have not left, in the order in which they joined."""
        return [node for node in self.joined if node not in self.left]

    def group(self, node: NodeId) -> list[NodeId]:
        """Return which processes live and die together: a client, led by its leader, or a server alone."""
        if node.role is not Role.WORKER:
            return [node]
        members = self._topology.members_of(self._topology.client_of(node.index))
        return [NodeId(Role.WORKER, rank) for rank in members]

    def can_work(self, node: NodeId) -> bool:
        """Return whether all that a process needs has joined: the servers and the rest of its client."""
        servers = (NodeId(Role.SERVER, index) for index in range(self._topology.num_servers))
        return all(each in self.joined for each in self.group(node)) and all(
            server in self.joined for server in servers
        )

    def is_gone_for_good(self, node: NodeId) -> bool:
        """Return whether a process has left and is not being started again."""
        return node in self.left and not self.left[node].returns

    @property
    def workers_remain(self) -> bool:
        """Some worker is there or will be again."""
        return any(node.role is Role.WORKER and not self.is_gone_for_good(node) for node in self.expected)

    def named(self, name: str) -> list[NodeId]:
        """Return whom the launcher means: the ranks of ``client1``, the leader first, or ``server0``."""
        client = name.partition("client")[2]
        return self.group(self._topology.leader_of(int(client)) if client else NodeId.parse(name))

    def name(self, node: NodeId) -> str:
        """Return how people know a process, with host and process number once it has joined."""
        name = self._topology.describe_worker(node.index) if node.role is Role.WORKER else str(node)
        join = self.joined.get(node)
        return f"{name} (host {join.host}, pid {join.pid})" if join else name

    def names(self, nodes: Iterable[NodeId]) -> str:
        """Return the names of several processes."""
        return ", ".join(self.name(node) for node in sorted(nodes))
