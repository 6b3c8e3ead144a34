"""Who belongs to a job, who has joined it and who has left, and what people call them. Pure.

This file must not know what follows from it that somebody comes or goes; that is ``state.py``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvstore_mpi.errors import PeerLostError
from kvstore_mpi.records import NodeId, Role, Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvstore_mpi.wire import messages as m

RANK_0 = NodeId(Role.WORKER, 0)

MOST_NAMED = 20
"""In one text, which each of thousands of processes may get."""


class Roster:
    """The processes of one job.

    Attributes:
        expected: All of them.
        joined: What those that have joined said of themselves.
        left: What has become of those that have left, or are down, or have not been waited for; ``depart``
            and ``expect_again`` change it.
        finished: Whose programs are over, but not those of all their client, for which they stay.
    """

    def __init__(self, topology: Topology) -> None:
        """Start with nobody there."""
        self.expected = {NodeId(Role.WORKER, rank) for rank in range(topology.num_workers)}
        self.expected |= {NodeId(Role.SERVER, index) for index in range(topology.num_servers)}
        self.joined: dict[NodeId, m.Join] = {}
        self.left: dict[NodeId, m.PeerGone] = {}
        self.finished: dict[NodeId, m.PeerGone] = {}
        self._topology = topology
        # For good. Kept, because each departure asks for it: to look at all of 10,000 workers takes a
        # millisecond.
        self._workers_gone: set[NodeId] = set()

    def depart(self, nodes: Sequence[NodeId], gone: m.PeerGone) -> None:
        """Some processes have left, or are down, or are not waited for."""
        self.expect_again(nodes)
        self.left.update(dict.fromkeys(nodes, gone))
        if not gone.returns:
            self._workers_gone.update(node for node in nodes if node.role is Role.WORKER)

    def expect_again(self, nodes: Iterable[NodeId]) -> None:
        """Some processes are no longer away."""
        for node in nodes:
            self.left.pop(node, None)
            self.finished.pop(node, None)
            self._workers_gone.discard(node)

    @property
    def complete(self) -> bool:
        """Everybody has joined."""
        return len(self.joined) == len(self.expected)

    @property
    def present(self) -> list[NodeId]:
        """Those that have joined and have not left, in the order in which they joined."""
        return [node for node in self.joined if node not in self.left]

    @property
    def servers_present(self) -> list[NodeId]:
        """Those of them that are servers, by their numbers."""
        servers = (NodeId(Role.SERVER, index) for index in range(self._topology.num_servers))
        return [server for server in servers if server in self.joined and server not in self.left]

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

    def over(self, node: NodeId) -> m.PeerGone | None:
        """Return what has become of a process that begins nothing more, if it does not."""
        return self.left[node] if self.is_gone_for_good(node) else self.finished.get(node)

    @property
    def workers_remain(self) -> bool:
        """Some worker is there or will be again."""
        return len(self._workers_gone) < self._topology.num_workers

    def all_in(self, workers: set[NodeId]) -> bool:
        """Return whether these are all workers that are there or will be again."""
        return len(self._workers_gone | workers) == self._topology.num_workers

    def never_back(self) -> PeerLostError | None:
        """Return the error of a job whose other workers have finished without one that was lost."""
        # The launcher sees the ends of processes, and one that is frozen, or cut off, has none: it would
        # wait for it for ever.
        gone = [news for node, news in self.left.items() if node.role is Role.WORKER]
        lost = [news for news in gone if not (news.orderly or news.asked)]
        return PeerLostError(f"{lost[0].reason}; the others have finished without it") if lost else None

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
        """Return the names of several processes, of the first ones where they are many."""
        first = sorted(nodes)
        return _listed([self.name(node) for node in first[:MOST_NAMED]], len(first))

    def names_missing(self, nodes: Iterable[NodeId]) -> str:
        """Return the names of processes that have not joined, of the first ones where they are many.

        A client of which nobody has joined is named as one. Its ranks meet in MPI before they join, so that
        all of them but one may be there and wait for that one.
        """
        missing = sorted(nodes)
        workers = Counter(self._client(node) for node in missing)
        ranks = self._topology.client_size * self._topology.model_parallel
        names: dict[str, None] = {}  # a set in order
        for node in missing:
            client = self._client(node)
            whole = client is not None and workers[client] == self._topology.client_size and ranks > 1
            text = f"client{client} (at least one of its {ranks} ranks, for which the others wait)"
            names[text if whole else self.name(node)] = None
        return _listed(list(names)[:MOST_NAMED], len(names))

    def _client(self, node: NodeId) -> int | None:
        return self._topology.client_of(node.index) if node.role is Role.WORKER else None


def _listed(first: list[str], count: int) -> str:
    """Return the first of some names, and how many there are beyond them."""
    more = count - len(first)
    return ", ".join([*first, f"and {more} more"] if more > 0 else first)
