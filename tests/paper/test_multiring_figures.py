"""MXNET-MPI's multi-ring allreduce: the order of operations of Figure 9, and what it is for."""

from __future__ import annotations

import pytest

from kvstore_mpi.tensor_collectives.rings import Ring, make_rings, reduce_scatter
from kvstore_mpi.tensor_collectives.steps import Await, Exchange, Finish, Program, Reduce

pytestmark = pytest.mark.paper("MXNET-MPI figure 9")


def words(program: Program, rings: list[Ring]) -> list[str]:
    """Say what happens in the paper's words: operation, ring, step."""
    places = {
        chunk: (number, (rank_place - 1 - index) % ring.size)
        for number, ring in enumerate(rings)
        for rank_place in [ring.chunks.index(ring.own)]
        for index, chunk in enumerate(ring.chunks)
    }
    said = []
    for step in program:
        if isinstance(step, Reduce):
            ring, number = places[step.lo, step.hi]
            said.append(f"GpuStart({ring}, {number})")
        elif isinstance(step, Await):
            ring, number = places[step.lo, step.hi]
            said.append(f"GpuWait({ring}, {number})")
        elif isinstance(step, Exchange):
            ring, number = places[step.sends[0].lo, step.sends[0].hi]
            said.append(f"SendRecv({ring}, {number})")
        else:
            assert isinstance(step, Finish)
    return said


def figure_9(size: int, num_rings: int, rank: int = 0) -> list[str]:
    rings = make_rings(range(size), rank, (0, 64 * size * num_rings), num_rings)
    return words(reduce_scatter(rings), rings)


def test_figure_9_two_rings_of_two_ranks() -> None:
    assert figure_9(2, 2) == [
        "GpuStart(0, 0)",
        "GpuStart(1, 0)",
        "GpuWait(0, 0)",
        "SendRecv(0, 0)",
        "GpuStart(0, 1)",
        "GpuWait(1, 0)",
        "SendRecv(1, 0)",
        "GpuStart(1, 1)",
        "GpuWait(0, 1)",
        "GpuWait(1, 1)",
    ]


def test_one_ring_is_a_case_of_its_own() -> None:
    """The figure's loop would start step 0 twice."""
    assert figure_9(3, 1) == [
        "GpuStart(0, 0)",
        "GpuWait(0, 0)",
        "SendRecv(0, 0)",
        "GpuStart(0, 1)",
        "GpuWait(0, 1)",
        "SendRecv(0, 1)",
        "GpuStart(0, 2)",
        "GpuWait(0, 2)",
    ]


@pytest.mark.parametrize("num_rings", [2, 3, 4])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_every_ring_goes_through_all_steps_in_order(size: int, num_rings: int) -> None:
    for rank in range(size):
        said = figure_9(size, num_rings, rank)
        for ring in range(num_rings):
            wanted = []
            for step in range(size):
                wanted += [f"GpuStart({ring}, {step})", f"GpuWait({ring}, {step})"]
                wanted += [f"SendRecv({ring}, {step})"] if step < size - 1 else []
            assert [word for word in said if f"({ring}, " in word] == wanted


@pytest.mark.parametrize("num_rings", [2, 3, 4])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_while_one_ring_transfers_the_next_one_reduces(size: int, num_rings: int) -> None:
    under_way = 0
    for word in figure_9(size, num_rings):
        under_way += word.startswith("GpuStart")
        under_way -= word.startswith("GpuWait")
        assert under_way <= 2
        if word.startswith("SendRecv"):
            assert under_way == 1
