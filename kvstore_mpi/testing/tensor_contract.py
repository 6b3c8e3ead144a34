"""What every group must do with tensors; each check is called by all ranks of a group.

``mpiexec -n 3 python -m mpi4py -m kvstore_mpi.testing.tensor_contract`` runs all checks over MPI. Expected
values are computed from rank and size, so any size will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.tensor_collectives.designs import DESIGNS, Design
from kvstore_mpi.tensor_collectives.tensor import Tensor
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup
from kvstore_mpi.testing.communicator_contract import repeated

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Communicator

Array = np.ndarray[Any, Any]
Check = Callable[[TensorGroup], None]

DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64")
SIZES = (0, 1, 7, 1_000, 30_011)
LARGE = (1 << 20) + 13
"""Elements of float32: more than goes around at once."""

CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Add a check to those that every group must pass."""
    CHECKS.append(function)
    return function


def vectors(rank: int, count: int, size: int, dtype: str) -> list[Array]:
    """Return what a rank has: small whole numbers that differ between ranks, vectors and elements."""
    return [repeated(((np.arange(3) + 2 * rank + each) % 3).astype(dtype), size) for each in range(count)]


def result(group: TensorGroup, count: int, size: int, dtype: str, name: str = "sum") -> Array:
    """Return what comes of all vectors of all ranks by an operation."""
    found = [each for rank in range(group.size) for each in vectors(rank, count, 3, dtype)]
    return repeated(getattr(np, name)(found, axis=0).astype(dtype), size)


@check
def allreduce_gives_the_result_to_all_vectors(group: TensorGroup) -> None:
    """For every type, number of vectors, size and operation, in place."""
    for dtype in DTYPES:
        for count in (1, 2, 3):
            for size in SIZES:
                for name in ("sum", "max", "min"):
                    tensor = Tensor(vectors(group.rank, count, size, dtype))
                    group.allreduce(tensor, name)
                    wanted = result(group, count, size, dtype, name)
                    for vector in tensor.vectors:
                        np.testing.assert_array_equal(vector, wanted)


@check
def out_of_place_leaves_the_tensor_alone(group: TensorGroup) -> None:
    """The result may go to another number of vectors."""
    for size in SIZES:
        tensor = Tensor(vectors(group.rank, 2, size, "float32"))
        out = Tensor([np.zeros(size, np.float32) for _ in range(3)])
        group.allreduce(tensor, out=out)
        wanted = result(group, 2, size, "float32")
        for vector in out.vectors:
            np.testing.assert_array_equal(vector, wanted)
        for vector, before in zip(tensor.vectors, vectors(group.rank, 2, size, "float32")):
            np.testing.assert_array_equal(vector, before)


@check
def a_mean_counts_all_vectors(group: TensorGroup) -> None:
    """Of all ranks; and 16 bits do not overflow on the way."""
    tensor = Tensor([np.full(9, 60_000.0, np.float16) for _ in range(2)])
    group.allreduce(tensor, "mean")
    np.testing.assert_array_equal(tensor.vectors[1], np.full(9, 60_000.0, np.float16))


@check
def large_tensors_are_whole(group: TensorGroup) -> None:
    """Also where they are cut into segments."""
    tensor = Tensor(vectors(group.rank, 2, LARGE, "float32"))
    group.allreduce(tensor)
    np.testing.assert_array_equal(tensor.vectors[1], result(group, 2, LARGE, "float32"))


@check
def allreduce_is_reduce_scatter_and_allgather(group: TensorGroup) -> None:
    """Every rank has its own chunk between the two."""
    for dtype in ("float16", "float32", "int64"):
        for size in SIZES:
            tensor = Tensor(vectors(group.rank, 2, size, dtype))
            lo, hi = group.chunk(size)
            chunk = np.empty(hi - lo, dtype)
            group.reduce_scatter(tensor, chunk)
            wanted = result(group, 2, size, dtype)
            np.testing.assert_array_equal(chunk, wanted[lo:hi])
            group.allgather(chunk, tensor)
            for vector in tensor.vectors:
                np.testing.assert_array_equal(vector, wanted)


@check
def broadcast_copies_the_roots_first_vector_to_all(group: TensorGroup) -> None:
    """From any root."""
    for root in range(group.size):
        for size in SIZES:
            tensor = Tensor(vectors(group.rank, 2, size, "float64"))
            group.broadcast(tensor, root)
            for vector in tensor.vectors:
                np.testing.assert_array_equal(vector, vectors(root, 1, size, "float64")[0])


@check
def work_goes_on_in_the_background_in_the_order_of_the_calls(group: TensorGroup) -> None:
    """Many may be under way at once."""
    tensors = [Tensor(vectors(group.rank, 1, 5_000 + number, "float32")) for number in range(20)]
    works = [group.start_allreduce(tensor) for tensor in tensors]
    for tensor, work in zip(reversed(tensors), reversed(works)):
        work.wait(60)
        assert work.done()
        wanted = result(group, 1, tensor.size, "float32")
        np.testing.assert_array_equal(tensor.vectors[0], wanted)


@check
def all_ranks_have_the_same_bits_every_time(group: TensorGroup) -> None:
    """So that runs can be repeated and replicas stay equal."""
    for size in (100, 50_000):
        numbers = np.random.default_rng(group.rank).standard_normal(size).astype(np.float32)
        results = []
        for _ in range(2):
            tensor = Tensor([numbers.copy(), numbers[::-1].copy()])
            group.allreduce(tensor)
            results.append(tensor.vectors[0])
        assert results[0].tobytes() == results[1].tobytes()
        roots = Tensor([results[0].copy()])
        group.broadcast(roots, 0)
        assert roots.vectors[0].tobytes() == results[0].tobytes()


@check
def mistakes_are_named_before_anything_is_sent(group: TensorGroup) -> None:
    """And the group goes on."""
    tensor = Tensor([np.zeros(8, np.int32)])
    out, chunk = Tensor([np.zeros(9, np.int32)]), np.zeros(99, np.int32)
    _refused("no operation 'product'", lambda: group.allreduce(tensor, "product"))
    _refused("int32 has no mean", lambda: group.allreduce(tensor, "mean"))
    _refused("out has vectors of 9 int32", lambda: group.allreduce(tensor, out=out))
    _refused("not (99,) int32", lambda: group.reduce_scatter(tensor, chunk))
    _refused("no rank", lambda: group.broadcast(tensor, group.size))
    group.allreduce(tensor)


def _refused(words: str, call: Callable[[], None]) -> None:
    """Make sure that a call is refused with these words."""
    said = ""
    try:
        call()
    except (UsageError, MismatchError) as error:
        said = str(error)
    assert words in said, said or f"not noticed: {words}"


def run_checks(communicator: Communicator, design: Design) -> None:
    """Run all checks on a group over a communicator, which it owns."""
    group = TensorGroup(communicator, design=design)
    for one in CHECKS:
        one(group)
    group.close()


def check_designs(make: Callable[[], Communicator]) -> None:
    """Sum in every design, with segments so small that tensors are cut."""
    for name, design in DESIGNS.items():
        group = TensorGroup(make(), design=design._replace(segment_bytes=16 << 10))
        for dtype in ("float16", "float32"):
            for count in (1, 3):
                for size in SIZES:
                    tensor = Tensor(vectors(group.rank, count, size, dtype))
                    group.allreduce(tensor, timeout=60)
                    wanted = result(group, count, size, dtype).astype(np.float64)
                    for vector in tensor.vectors:
                        np.testing.assert_array_equal(vector.astype(np.float64), wanted, err_msg=name)
        group.close()


def main() -> None:
    """Run all checks on this rank of an MPI job with those that others build on; sum in all designs."""
    from kvstore_mpi.comm.mpi import MpiCommunicator  # noqa: PLC0415  importing it initialises MPI

    check_designs(MpiCommunicator)
    for name in ("ring", "multiring", "auto"):
        communicator = MpiCommunicator()
        run_checks(communicator, DESIGNS[name])
        if communicator.rank == 0:
            print(f"{len(CHECKS)} checks passed on {communicator.size} ranks", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
