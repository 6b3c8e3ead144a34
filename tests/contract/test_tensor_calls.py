"""Ranks of a tensor group that call different things: an error says so, instead of wrong numbers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.delegating import DelegatingCommunicator

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.tensor_collectives.blocking import COMPARED_CALLS
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.tensor import Tensor
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup

DEADLINE_S = 60


def tensor(size, dtype="float32", count=1):
    return Tensor([np.ones(size, dtype) for _ in range(count)])


CALLS = {
    "sum allreduce of 1 x 8 float32": lambda group: group.start_allreduce(tensor(8)),
    "sum allreduce of 1 x 9 float32": lambda group: group.start_allreduce(tensor(9)),
    "sum allreduce of 2 x 8 float32": lambda group: group.start_allreduce(tensor(8, count=2)),
    "sum allreduce of 1 x 8 int32": lambda group: group.start_allreduce(tensor(8, "int32")),
    "mean allreduce of 1 x 8 float32": lambda group: group.start_allreduce(tensor(8), "mean"),
    "sum reduce_scatter of 1 x 8 float32": lambda group: group.start_reduce_scatter(
        tensor(8), np.empty(4, np.float32)
    ),
    "allgather of 8 float32": lambda group: group.start_allgather(np.empty(4, np.float32), tensor(8)),
    "broadcast from rank 0 of 8 float32": lambda group: group.start_broadcast(tensor(8), 0),
    "broadcast from rank 1 of 8 float32": lambda group: group.start_broadcast(tensor(8), 1),
}


@pytest.mark.parametrize("name", ["ring", "library", "shared", "auto"])
@pytest.mark.parametrize("other", [each for each in CALLS if each != next(iter(CALLS))])
def test_both_of_two_ranks_learn_what_the_other_calls(name, other):
    """Before anything is sent, so that the group goes on."""
    one = next(iter(CALLS))
    groups = [TensorGroup(each, design=DESIGNS[name]) for each in memory_communicators(2)]
    for rank, work in enumerate([CALLS[one](groups[0]), CALLS[other](groups[1])]):
        mine, before = (one, other) if rank == 0 else (other, one)
        with pytest.raises(MismatchError) as raised:
            work.wait(DEADLINE_S)
        said = f"rank {rank} calls {mine}, but rank {1 - rank} {before}; all ranks make the same calls"
        assert said in str(raised.value)
    tensors = [tensor(8), tensor(8)]
    for work in [group.start_allreduce(each) for group, each in zip(groups, tensors)]:
        work.wait(DEADLINE_S)
    assert all((each.vectors[0] == 2).all() for each in tensors)
    for group in groups:
        group.close()


def test_ranks_may_have_what_is_broadcast_in_different_numbers_of_vectors():
    groups = [TensorGroup(each) for each in memory_communicators(2)]
    tensors = [tensor(4), Tensor([np.zeros(4, np.float32)] * 2)]
    for work in [group.start_broadcast(each, 0) for group, each in zip(groups, tensors)]:
        work.wait(DEADLINE_S)
    assert all((vector == 1).all() for vector in tensors[1].vectors)
    for group in groups:
        group.close()


class Counting(DelegatingCommunicator):
    """Counts messages."""

    def __init__(self, inner):
        super().__init__(inner)
        self.exchanges = 0

    def exchange(self, sends, receives):
        self.exchanges += 1
        super().exchange(sends, receives)


def test_later_calls_cost_no_message_more():
    """Of three ranks each compares with the one before it."""
    counting = [Counting(each) for each in memory_communicators(3)]

    def run(communicator):
        group = TensorGroup(communicator, design=DESIGNS["library"])
        seen = []
        for _ in range(COMPARED_CALLS + 2):
            group.allreduce(tensor(8), timeout=DEADLINE_S)
            seen.append(communicator.exchanges)
        group.close()
        return seen

    with ThreadPoolExecutor(3) as pool:
        for seen in pool.map(run, counting):
            assert seen == [*range(1, COMPARED_CALLS + 1), COMPARED_CALLS, COMPARED_CALLS]


def test_nothing_can_follow_close():
    """The thread that would do it has ended, and the wait for it would never end."""
    [alone] = memory_communicators(1)
    group = TensorGroup(alone)
    tensor = Tensor([np.ones(4, np.float32)])
    group.allreduce(tensor)
    group.close()
    group.close()
    with pytest.raises(UsageError, match="allreduce of 1 x 4 float32 on rank 0: the group is closed"):
        group.allreduce(tensor)
