"""Which rank of a host asks servers for the rows that its ranks look up together."""

from __future__ import annotations

import pytest
from support.one_worker import Worker

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.records import Announced, NodeId, Role
from kvstore_mpi.worker.client import MemberSchedule
from kvstore_mpi.worker.collectives import Collective, Kind
from kvstore_mpi.worker.lookups import Lookup, askers
from kvstore_mpi.worker.records import Operation

ONE_HOST, TWO_HOSTS, UNEVEN = [[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0], [1, 2, 3]]


@pytest.mark.parametrize(
    ("hosts", "rank", "pushers", "of_pieces", "number"),
    [
        (ONE_HOST, 3, [0, 0, 0], [0, 0, 0], 1),  # one rank pushes for the client, and asks for the host
        (ONE_HOST, 1, [2, 0, 2], [2, 0, 2], 2),  # all push: a piece's pusher asks
        (TWO_HOSTS, 1, [0, 0], [0, 0], 2),  # a host without the pusher has another that asks
        (TWO_HOSTS, 3, [0, 0], [2, 2], 2),
        (TWO_HOSTS, 2, [0, 1, 3], [2, 3, 3], 4),
        (UNEVEN, 0, [0, 1, 2], [0, 0, 0], 4),
        (UNEVEN, 2, [0, 1, 2], [1, 1, 2], 3),
    ],
)
def test_who_asks(hosts, rank, pushers, of_pieces, number):
    """A rank of this host for every piece, and how many ranks of all hosts do."""
    found = askers(hosts, rank, pushers)
    assert list(found.of_pieces) == of_pieces
    assert found.number == len(
        {each for host in hosts for each in askers(hosts, host[0], pushers).of_pieces}
    )
    if (hosts, rank) != (UNEVEN, 0):
        assert found.number == number


def test_the_last_rank_that_has_its_rows():
    """Only then are they given to others."""
    lookup = Lookup("ids")
    assert [lookup.one_has_come(3) for _ in range(3)] == [False, False, True]


class Member:
    """A rank that is not the leader, with one key, and the operation that its program has called."""

    def __init__(self, kind, *, sequence=1):
        worker = Worker(rank=1, workers=2).init("t")
        self.key = worker.state.keys.by_name[0, "t"]
        self.key.queue.append(Operation(kind, 0, None, sequence=sequence))
        self.schedule = MemberSchedule("worker 1", NodeId(Role.WORKER, 0), [[0, 1]], all_push=False)

    def hears(self, what, sequence=1):
        """The leader announces a collective; return it."""
        entry = Announced(what, self.key.key_id, sequence, 0, 2, 1)
        return self.schedule.begin(entry, {self.key.key_id: self.key})


def test_a_lookup_that_both_have_called():
    """It is begun."""
    assert Member(Kind.LOOKUP).hears(Collective.UNITE).operation is Collective.UNITE


@pytest.mark.parametrize(
    ("kind", "sequence", "what"),
    [
        (Kind.PUSH, 7, Collective.UNITE),
        (Kind.LOOKUP, 7, Collective.REDUCE),
        (Kind.PUSH, 1, Collective.UNITE),
        (Kind.PUSH, 2, Collective.REDUCE),
    ],
)
def test_ranks_that_call_different_things(kind, sequence, what):
    """Whoever is to push where others look up, or reversed, is told so, and does not wait."""
    with pytest.raises(MismatchError, match=f"called {kind.value} number {sequence} where"):
        Member(kind, sequence=sequence).hears(what)
