"""What every communicator must do; each check is called by all ranks of a group.

``mpiexec -n 3 python -m mpi4py -m kvstore_mpi.testing.communicator_contract`` runs all checks over MPI.
Expected values are computed from rank and size, so any size will do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import ITEMSIZES

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Communicator

Array = np.ndarray[Any, Any]
Check = Callable[["Communicator"], None]

SIZES = (0, 1, 7, 1000)

ABOVE_8_KB = (8 << 10) + 1
"""Elements; from there on two ranks take another way to their sum, whatever the type."""

LARGE = (4 << 20) + 3
"""Elements of one byte: more than one piece of what is handed to MPI at once."""

CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Add a check to those that every communicator must pass."""
    CHECKS.append(function)
    return function


def contribution(rank: int, size: int, dtype: str) -> Array:
    """Return what a rank adds: small numbers that differ between ranks and elements."""
    return repeated(((np.arange(3) + rank) % 3).astype(dtype), size)


def total(ranks: int, size: int, dtype: str) -> Array:
    """Return the sum of what all ranks add."""
    parts = [contribution(rank, 3, dtype) for rank in range(ranks)]
    return repeated(np.sum(parts, axis=0, dtype=dtype), size)


def repeated(three: Array, size: int) -> Array:
    """Return three elements again and again; to compute each of millions would take most of the time."""
    return np.tile(three, -(-size // 3))[:size]


@check
def ranks_are_numbered(comm: Communicator) -> None:
    """Every rank has a number of its own, among all and among those of its host."""
    assert 0 <= comm.rank < comm.size
    members = np.zeros(comm.size, np.int32)
    members[comm.rank] = 1
    comm.allreduce(members)
    np.testing.assert_array_equal(members, np.ones(comm.size))
    assert 0 <= comm.local_rank() <= comm.rank


@check
def sums_may_be_under_way_together(comm: Communicator) -> None:
    """Where they are, other calls come in between; elsewhere none is begun. Their memory is used again."""
    few = (ABOVE_8_KB, 1, 4 * ABOVE_8_KB, 2 * ABOVE_8_KB)
    # Float16 is begun among two ranks alone, and what is larger than MPI is handed at once by nobody.
    for dtype, sizes in (("float32", few), ("float16", few), ("int8", (ABOVE_8_KB, LARGE))):
        for _ in range(2):
            arrays = [contribution(comm.rank, size, dtype) for size in sizes]
            begun = []
            for array in arrays:
                begun.append(comm.begin_allreduce(array))
                assert comm.minimum(comm.rank) == 0
            for one, array in zip(begun, arrays):
                if one is None:
                    comm.allreduce(array)
                else:
                    assert one.pause_s() >= 0
                    if not one.has_ended():
                        one.wait()
                    assert one.has_ended()
                np.testing.assert_array_equal(array, total(comm.size, array.size, dtype))


@check
def what_goes_to_a_rank_and_comes_from_one_may_be_under_way_together(comm: Communicator) -> None:
    """With sums; a rank that does not get a sum keeps its values."""
    sizes = (ABOVE_8_KB, 1, 4 * ABOVE_8_KB)
    for dtype in ("float32", "float16", "int8"):
        for root in range(comm.size):
            arrays = [contribution(comm.rank, size, dtype) for size in sizes for _ in range(3)]
            begun, calls = [], []
            for place, array in enumerate(arrays):
                begin, call = (
                    (partial(comm.begin_allreduce, array), partial(comm.allreduce, array)),
                    (partial(comm.begin_reduce, array, root), partial(comm.reduce, array, root)),
                    (partial(comm.begin_broadcast, array, root), partial(comm.broadcast, array, root)),
                )[place % 3]
                begun.append(begin())
                calls.append(call)
            for one, call in zip(begun, calls):
                if one is None:
                    call()
                else:
                    one.wait()
            for place, array in enumerate(arrays):
                wanted = total(comm.size, array.size, dtype)
                if place % 3:
                    own = comm.rank if place % 3 == 1 else root
                    gets = place % 3 == 1 and comm.rank == root
                    wanted = wanted if gets else contribution(own, array.size, dtype)
                np.testing.assert_array_equal(array, wanted)


@check
def allreduce_gives_the_sum_to_all(comm: Communicator) -> None:
    """For every type that a key may have, and every size."""
    for dtype in ITEMSIZES:
        for size in (*SIZES, ABOVE_8_KB):
            array = contribution(comm.rank, size, dtype)
            comm.allreduce(array)
            np.testing.assert_array_equal(array, total(comm.size, size, dtype))


@check
def a_prepared_allreduce_can_be_repeated(comm: Communicator) -> None:
    """With what the array then holds; of any size and type."""
    for dtype in ITEMSIZES:
        for size in (*SIZES, *([LARGE] if dtype == "uint8" else [])):
            array = np.empty(size, dtype)
            call = comm.prepare_allreduce(array)
            for _ in range(2):
                array[:] = contribution(comm.rank, size, dtype)
                call()
                np.testing.assert_array_equal(array, total(comm.size, size, dtype))


@check
def minimum_is_the_least_number(comm: Communicator) -> None:
    """Whoever has it."""
    for holder in range(comm.size):
        assert comm.minimum(holder if comm.rank == holder else comm.size + comm.rank) == holder


@check
def reduce_gives_the_sum_to_the_root_alone(comm: Communicator) -> None:
    """The others keep what they have; few and many go different ways."""
    for root in range(comm.size):
        for dtype, size in itertools.product(ITEMSIZES, (7, 20_001)):
            array = contribution(comm.rank, size, dtype)
            comm.reduce(array, root)
            mine = contribution(comm.rank, size, dtype)
            expected = total(comm.size, size, dtype) if comm.rank == root else mine
            np.testing.assert_array_equal(array, expected)


@check
def broadcast_gives_the_roots_values_to_all(comm: Communicator) -> None:
    """From any root, for any type and size."""
    for root in range(comm.size):
        for dtype in ITEMSIZES:
            for size in SIZES:
                array = contribution(comm.rank, size, dtype)
                comm.broadcast(array, root)
                np.testing.assert_array_equal(array, contribution(root, size, dtype))


@check
def broadcast_bytes_takes_any_length(comm: Communicator) -> None:
    """Only the root knows it beforehand."""
    for data in (b"", b"x", bytes(range(256)) * 100):
        for root in range(comm.size):
            own = data if comm.rank == root else b"something else"
            assert comm.broadcast_bytes(own, root) == data


@check
def large_arrays_are_whole(comm: Communicator) -> None:
    """Also where they are cut into pieces."""
    array = contribution(comm.rank, LARGE, "int8")
    comm.allreduce(array)
    np.testing.assert_array_equal(array, total(comm.size, LARGE, "int8"))
    array = contribution(comm.rank, LARGE, "int8")
    comm.reduce(array, 0)
    comm.broadcast(array, 0)
    np.testing.assert_array_equal(array, total(comm.size, LARGE, "int8"))


@check
def parts_of_an_array_leave_the_rest_alone(comm: Communicator) -> None:
    """A slice is a view into the buffer of its key."""
    for dtype in ("float16", "float32", "bool"):
        array = contribution(comm.rank, 9, dtype)
        comm.allreduce(array[3:6])
        expected = contribution(comm.rank, 9, dtype)
        expected[3:6] = total(comm.size, 9, dtype)[3:6]
        np.testing.assert_array_equal(array, expected)


@check
def sums_have_the_same_bits_everywhere_and_every_time(comm: Communicator) -> None:
    """A fixed order of summing, so that runs can be repeated and replicas stay equal."""
    for dtype in ("float16", "float32", "float64"):
        numbers = np.random.default_rng(comm.rank).standard_normal(1000)
        first, again = numbers.astype(dtype), numbers.astype(dtype)
        comm.allreduce(first)
        comm.allreduce(again)
        assert first.tobytes() == again.tobytes()
        assert comm.broadcast_bytes(first.tobytes(), 0) == first.tobytes()


@check
def float16_is_rounded_once(comm: Communicator) -> None:
    """Ones added to 2048 one by one would all be lost in float16."""
    for collective in (comm.allreduce, lambda array: comm.reduce(array, 0)):
        array = np.array([2048.0 if comm.rank == 0 else 1.0], np.float16)
        collective(array)
        if comm.rank == 0 or collective == comm.allreduce:
            assert array[0] == np.float16(2048.0 + comm.size - 1)


@check
def what_is_not_a_number_passes(comm: Communicator) -> None:
    """A diverging training must see it."""
    array = np.array([np.nan if comm.rank == 0 else 1.0, np.inf, 1.0], np.float32)
    comm.allreduce(array)
    np.testing.assert_array_equal(array, np.array([np.nan, np.inf, comm.size], np.float32))


@check
def collectives_follow_each_other_without_confusion(comm: Communicator) -> None:
    """Ranks may leave one collective at different times and enter the next; messages do not meet sums."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for number, size in itertools.product(range(50), (3, 2_000)):
        root = number % comm.size
        array = np.full(size, comm.rank + number, np.int64)
        come = np.empty(size, np.int64)
        comm.exchange([(after, array)], [(before, come)])
        np.testing.assert_array_equal(come, np.full(size, before + number))
        comm.reduce(array, root)
        comm.broadcast(array, root)
        expected = sum(rank + number for rank in range(comm.size))
        np.testing.assert_array_equal(array, np.full(size, expected))


@check
def messages_go_to_whom_they_are_for(comm: Communicator) -> None:
    """All pairs at once, of any type and size, also of none; two between the same ranks arrive in order."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    for dtype in ("float32", "bool", "float16"):
        for size in SIZES:
            spaces = [(rank, np.zeros(size, dtype)) for rank in others for _ in range(2)]
            comm.exchange(
                [
                    (rank, contribution(comm.rank + again, size, dtype))
                    for rank in others
                    for again in range(2)
                ],
                spaces,
            )
            for index, (rank, space) in enumerate(spaces):
                np.testing.assert_array_equal(space, contribution(rank + index % 2, size, dtype))


@check
def messages_go_around_a_ring(comm: Communicator) -> None:
    """One to the right and one from the left, large enough to be more than one piece."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    space = np.zeros(LARGE, np.int8)
    comm.exchange([(right, contribution(comm.rank, LARGE, "int8"))], [(left, space)])
    np.testing.assert_array_equal(space, contribution(left, LARGE, "int8"))


@check
def a_barrier_is_for_those_who_are_named(comm: Communicator) -> None:
    """Pairs, and all; the others need not come."""
    everyone = tuple(range(comm.size))
    comm.barrier(everyone)
    for first in range(comm.size - 1):
        if comm.rank in (first, first + 1):
            comm.barrier((first, first + 1))
    comm.barrier(everyone)


@check
def every_rank_is_on_one_host(comm: Communicator) -> None:
    """And all see the same hosts, with their own place among them."""
    hosts = comm.hosts()
    assert sorted(rank for ranks in hosts for rank in ranks) == list(range(comm.size))
    [own] = [ranks for ranks in hosts if comm.rank in ranks]
    assert own.index(comm.rank) == comm.local_rank()
    text = repr(hosts).encode()
    assert comm.broadcast_bytes(text, 0) == text


@check
def the_library_has_one_name(comm: Communicator) -> None:
    """Or none; on all ranks the same."""
    text = comm.library().encode()
    assert comm.broadcast_bytes(text, 0) == text
    assert text.strip(b"\0\n ") == text


def main() -> None:
    """Run all checks on this rank of an MPI job; rank 0 says how many have passed."""
    from kvstore_mpi.comm.mpi import MpiCommunicator  # noqa: PLC0415  importing it initialises MPI

    communicator = MpiCommunicator()
    for one in CHECKS:
        one(communicator)
    if communicator.rank == 0:
        print(f"{len(CHECKS)} checks passed on {communicator.size} ranks", flush=True)  # noqa: T201
    communicator.close()


if __name__ == "__main__":
    main()
