"""Lookups that the ranks of a client make together: what those of a host want crosses its link once.

The ids are united on each host, once all ranks have come to the lookup. The rank that asks servers for a
piece gets the rows of all, and gives every rank those that it wants. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    Array = np.ndarray[Any, Any]


class Askers(NamedTuple):
    """Who asks servers for the pieces of a table.

    Attributes:
        of_pieces: The rank of this host, for each piece.
        number: Of ranks that ask for some piece, on all hosts of the client.
    """

    of_pieces: Sequence[int] = ()
    number: int = 0


def askers(hosts: Sequence[Sequence[int]], rank: int, pushers: Sequence[int]) -> Askers:
    """Return who asks for the pieces of a table.

    Args:
        hosts: The ranks of a client on each host.
        rank: One of them.
        pushers: The rank that pushes each piece for the client.
    """
    # From what all ranks know alike, and without a word: a piece for which no rank of a host asked would be
    # waited for, and one for which two did would cross the link twice. As many ranks as push, since a rank
    # that asks has the union of a host to spread.
    [own] = [host for host in hosts if rank in host]
    everywhere = {_agent(host, pusher) for host in hosts for pusher in pushers}
    return Askers([_agent(own, pusher) for pusher in pushers], len(everywhere))


def _agent(host: Sequence[int], pusher: int) -> int:
    """Return the rank of a host that does for it what another rank does for the client."""
    # The pusher itself on its own host: it has the connection to the server's part of the table already. On
    # others one rank for each pusher, so that these are spread as well.
    return pusher if pusher in host else host[pusher % len(host)]


class Lookup:
    """What one operation looks up.

    Attributes:
        ids: Those that this rank wants, as in ``records.Rows``.
        wanted: Of the pieces for which this rank asks: the ids that each rank of its host wants.
    """

    __slots__ = ("_come", "ids", "wanted")

    def __init__(self, ids: Array) -> None:
        """Want these."""
        self.ids = ids
        self.wanted: Mapping[int, Array] = {}
        self._come = 0

    def one_has_come(self, number: int) -> bool:
        """Note that one of the ranks that ask has all its rows; tell whether all these ranks have."""
        # By the leader alone, who announces that rows are given: a rank that began with that before its own
        # have come would have nothing to give.
        self._come += 1
        return self._come == number
