"""How the ranks of a client end together. Pure.

This file must not know what collectives are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvstore_mpi.records import NodeId


class Shutdown:
    """How one rank ends together with its client: nobody goes while another of them needs it.

    The leader and its members tell each other that their programs are over. Where every rank pushes, each
    of them is needed until all have finished, which the leader then says.

    Attributes:
        closing: The own program is over.
        began: Some rank's program is over: from now on operations can be left without a partner.
    """

    def __init__(self, leader: NodeId, members: Sequence[NodeId], *, leads: bool, all_push: bool) -> None:
        """Start while all are busy.

        Args:
            leader: Who leads the client.
            members: The other ranks.
            leads: This rank is the leader.
            all_push: Every rank pushes.
        """
        self.closing = False
        self.began = False
        self._leader = leader
        self._leads = leads
        self._partners = list(members) if leads else [leader]
        self._left: set[NodeId] = set()
        # Where the leader alone pushes, "all have finished" follows from what it and each member tell each
        # other. Where every rank pushes, a member knows of the leader only, and other members may need its
        # slices.
        self._released = not all_push

    @property
    def leader_has_finished(self) -> bool:
        """This rank's leader will announce nothing more."""
        return self.has_finished(self._leader)

    def has_finished(self, rank: NodeId) -> bool:
        """Another rank of the client has said that its program is over."""
        return rank in self._left

    @property
    def may_end(self) -> bool:
        """Nobody of this client needs this rank any more, once it has closed."""
        return self._released and self._left.issuperset(self._partners)

    def close(self, pushes: int, others: Iterable[NodeId]) -> list[Send]:
        """The own program is over: say so.

        Args:
            pushes: How many it has made that each rank makes for itself.
            others: At whom others may wait for this rank, beside its client.
        """
        self.closing = self.began = True
        told = [Send(node, m.Leave(pushes)) for node in self._partners]
        # At once, and not when all of the client have finished: one of them may be who waits.
        told += (send for node in others for send in self.tell(node))
        return [*told, *self._release_members()]

    def tell(self, node: NodeId) -> list[Send]:
        """Say that the own program is over, if it is, to who may wait for this rank."""
        # Alone it leaves at once; a partner who is the coordinator as well (rank 0 in pure MPI) knows.
        is_told = self.closing and self._partners and node not in self._partners
        return [Send(node, m.Finished())] if is_told else []

    def left(self, sender: NodeId) -> list[Send]:
        """Another rank's program is over."""
        self._left.add(sender)
        self.began = True
        return self._release_members()

    def released(self) -> None:
        """The leader says that all have finished."""
        self._released = True

    def leave(self, coordinator: NodeId) -> list[Send]:
        """Once this rank may end: the servers need not wait for this client any more."""
        # Not a second time where the coordinator is a partner (rank 0 in pure MPI): ``close`` has told it.
        return [] if coordinator in self._partners else [Send(coordinator, m.Leave())]

    def _release_members(self) -> list[Send]:
        if self._released or not (self._leads and self.closing and self._left.issuperset(self._partners)):
            return []
        # Once, and only when the last one has left: a member that ended earlier would take along slices
        # which it still has to push for another.
        self._released = True
        return [Send(member, m.Released()) for member in self._partners]
