"""What a leader announces: by priority, together where it is of one kind, and not too far ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.records import KeySpec, NodeId, Role, Rows, Shard, Topology
from kvstore_mpi.values.row_sparse import PushedRows, RowSparse
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.client import (
    AHEAD_BYTES,
    ALONE_BYTES,
    BUCKET_BYTES,
    BUCKETS_AHEAD,
    OVERLAPPING,
    LeaderSchedule,
)
from kvstore_mpi.worker.collectives import Collective, Kind
from kvstore_mpi.worker.instructions import Collect
from kvstore_mpi.worker.records import KeyState, Operation
from kvstore_mpi.worker.state import WorkerState

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMBER = NodeId(Role.WORKER, 1)
SMALL = 400


class Leader:
    """LeaderSchedule to one member, on keys of one slice each."""

    def __init__(self, hosts: Sequence[Sequence[int]] = ((0, 1),), *, all_push: bool = False) -> None:
        self.announcements = LeaderSchedule([MEMBER], hosts, by_priority=True, all_push=all_push)

    def put(self, name: int, what: Collective = Collective.REDUCE, *, num_bytes: int = SMALL) -> None:
        """Queue a collective on a key of that number, which is its priority, too."""
        size = num_bytes // 4
        key = KeyState(KeySpec(0, name, (size,), "float32"), None, b"")
        key.place(name, [Shard(0, 0, size)], size)
        self.announcements.put(key, Operation(Kind.PUSH, name, None), what, range(1))

    def next(self) -> list[list[Collect]]:
        """Return the buckets that are announced now; the member is told the same."""
        out = self.announcements.next()
        collects = [each for each in out if isinstance(each, Collect)]
        for send in out:
            if isinstance(send, Send):
                told = [(entry[1], entry[5]) for entry in send.message.entries]
                assert told == [(each.key.key_id, each.together) for each in collects]
        buckets: list[list[Collect]] = []
        left = 0
        for each in collects:
            if left == 0:
                buckets.append([])
            assert left in (0, each.together)
            buckets[-1].append(each)
            left = each.together - 1
        assert left == 0
        return buckets

    def end(self, bucket: Sequence[Collect]) -> None:
        """Say that a bucket has been carried out."""
        for each in bucket:
            self.announcements.ended(each)


def names(buckets: Sequence[Sequence[Collect]]) -> list[list[int]]:
    return [[each.key.key_id for each in bucket] for bucket in buckets]


def test_what_waits_is_announced_together_the_most_urgent_first() -> None:
    leader = Leader()
    for name in (1, 3, 2):
        leader.put(name)
    assert names(leader.next()) == [[3, 2, 1]]


def test_another_kind_begins_a_bucket() -> None:
    leader = Leader()
    leader.put(4)
    leader.put(3, Collective.SHARE)
    leader.put(2, Collective.SHARE)
    assert names(leader.next()) == [[4], [3, 2]]


def test_what_does_not_fit_any_more_begins_a_bucket() -> None:
    leader = Leader()
    leader.put(4)
    leader.put(3, num_bytes=BUCKET_BYTES)
    leader.put(2)
    leader.put(1)
    assert names(leader.next()) == [[4], [3]]  # these are enough under way; what is left is not full


def test_the_first_ones_wait_for_nothing() -> None:
    """The MPI threads are idle: nobody knows whether more will come."""
    leader = Leader()
    for name in range(BUCKETS_AHEAD):
        leader.put(name)
        assert names(leader.next()) == [[name]]


def test_a_bucket_fills_up_while_others_are_under_way_and_goes_when_one_ends() -> None:
    leader = Leader()
    under_way = []
    for name in range(BUCKETS_AHEAD):
        leader.put(name)
        under_way += leader.next()
    for name in (10, 11, 12):
        leader.put(name)
        assert leader.next() == []
    leader.end(under_way[0])
    assert names(leader.next()) == [[12, 11, 10]]


def test_a_full_bucket_goes_at_once_but_not_too_far_ahead() -> None:
    leader = Leader()
    for name in range(4 * AHEAD_BYTES // BUCKET_BYTES):
        leader.put(name, num_bytes=BUCKET_BYTES)
    buckets = leader.next()
    assert len(buckets) == AHEAD_BYTES // BUCKET_BYTES
    leader.end(buckets[0])
    assert len(leader.next()) == 1


def pushed(number: int, num_rows: int) -> tuple[KeyState, Operation]:
    """Return a table of three pieces, rows of 1 KB, of which some are pushed."""
    spec = KeySpec(0, number, (10_000, 256), "float32", layout="rows", partitions=3)
    key = KeyState(spec, None, None)
    key.place(number, [Shard(0, 2 * piece, 2 * piece + 1) for piece in range(3)], 1)
    rows = Rows(np.arange(num_rows), np.empty((num_rows, 256), np.float32))
    operation = Operation(Kind.PUSH, number, None, PushedRows(RowSparse(spec), rows))
    key.alone = False
    key.fill(operation)
    return key, operation


def test_tables_share_a_bucket_if_their_rows_are_few() -> None:
    """By what is pushed of them, and not by how large they are; a table is never cut."""
    leader = Leader()
    half = BUCKET_BYTES // 2048
    for number, num_rows in enumerate((1, 0, half, half, 3 * half, 5, 2)):
        key, operation = pushed(number, num_rows)
        leader.announcements.put(key, operation, Collective.REDUCE, range(3))
    buckets = leader.next()
    assert names(buckets) == [[6, 5], [4], [3, 2]]  # more than is announced ahead
    for bucket in buckets[:2]:
        leader.end(bucket)
    assert names(leader.next()) == [[1, 0]]
    assert {(each.first, each.last) for bucket in buckets for each in bucket} == {(0, 3)}


APART = ((0,), (1,))
THREE_APART = ((0,), (1,), (2,))
ALONE = ALONE_BYTES + 4


@pytest.mark.parametrize(
    ("hosts", "all_push", "what", "alone"),
    [
        (APART, False, Collective.ALLREDUCE, True),
        (APART, False, Collective.REDUCE, True),
        (APART, False, Collective.SHARE, True),
        (APART, False, Collective.BROADCAST, False),
        (((0, 1),), False, Collective.ALLREDUCE, False),
        (((0, 1),), True, Collective.REDUCE, False),
        (THREE_APART, False, Collective.ALLREDUCE, True),
        (THREE_APART, False, Collective.REDUCE, False),
        (THREE_APART, False, Collective.SHARE, False),
        (THREE_APART, True, Collective.REDUCE_SHARE, True),
        (THREE_APART, True, Collective.SHARE, True),
        (((0,), (1, 2)), True, Collective.ALLREDUCE, False),
    ],
)
def test_large_ones_of_hosts_of_one_rank_begin_by_themselves(
    hosts: Sequence[Sequence[int]], all_push: bool, what: Collective, alone: bool
) -> None:
    """Small ones between them are still announced together."""
    leader = Leader(hosts, all_push=all_push)
    together = [2, 1, 1, 3, 2, 1, 1] if alone else [7, 6, 5, 4, 3, 2, 1]
    for name, num_bytes in zip(range(7, 0, -1), [SMALL, SMALL, ALONE, SMALL, SMALL, ALONE_BYTES, ALONE]):
        leader.put(name, what, num_bytes=num_bytes)
    out = leader.announcements.next()
    collects = [each for each in out if isinstance(each, Collect)]
    assert [each.together for each in collects] == together
    [send] = [each for each in out if isinstance(each, Send)]
    assert [entry[5] for entry in send.message.entries] == together


@pytest.mark.parametrize(("hosts", "ahead"), [(APART, OVERLAPPING), (((0, 1),), BUCKETS_AHEAD)])
def test_how_many_small_buckets_are_announced_ahead(hosts: Sequence[Sequence[int]], ahead: int) -> None:
    """One after the other, as a program calls them."""
    leader = Leader(hosts)
    announced = []
    for name in range(2 * OVERLAPPING, 0, -1):
        leader.put(name, Collective.ALLREDUCE)
        announced += [each for each in leader.announcements.next() if isinstance(each, Collect)]
    assert len(announced) == ahead


@pytest.mark.parametrize(("leaders", "alone"), [("all", True), ("one", False)])
def test_a_leader_knows_whether_all_of_its_ranks_push(leaders: str, alone: bool) -> None:
    """As its MPI thread does, by the same word of the configuration."""
    config = NodeConfig(leaders=leaders, num_workers=3, num_servers=1)
    state = WorkerState(
        config,
        Topology(1, 3, 1),
        0,
        THREE_APART,
        coordinator=NodeId(Role.SCHEDULER),
        place=lambda _buffer: None,
    )
    reduces = Collective.REDUCE_SHARE in state._to_announce._overlapping
    assert reduces is alone
