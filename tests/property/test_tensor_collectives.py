"""Collectives on tensors, all ranks in one thread under any order of delivery, against a plain sum in
float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated_ranks import run_together

from kvstore_mpi.tensor_collectives import cost, designs, hierarchical, hosts, rings, trees
from kvstore_mpi.tensor_collectives.executor import Memory, execute, make_slots
from kvstore_mpi.tensor_collectives.hierarchical import Levels
from kvstore_mpi.tensor_collectives.local_reduce import EachVector, HostMemory, NumpyReducer
from kvstore_mpi.tensor_collectives.steps import Program, Range, split
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, Operation, Tensor, accumulator

Array = np.ndarray[Any, Any]
Make = Callable[[int, int, Range], Program]

SIZES = st.one_of(st.integers(0, 40), st.integers(100, 3_000))
SEEDS = st.integers(0, 2**32 - 1)
RELAXED = settings(deadline=None)


def ring(num_rings: int) -> Make:
    return lambda size, rank, part: rings.allreduce(range(size), rank, part, num_rings)


def pipelined(num_rings: int, segment: int) -> Make:
    return lambda size, rank, part: rings.pipelined(range(size), rank, part, num_rings, segment)


def in_segments(num_rings: int, segments: int) -> Make:
    """Pipeline ``segments`` segments, or one more."""
    return lambda size, rank, part: pipelined(num_rings, max(1, (part[1] - part[0]) // segments))(
        size, rank, part
    )


def doubling(size: int, rank: int, part: Range) -> Program:
    return trees.recursive_doubling(range(size), rank, part)


def shared(size: int, rank: int, part: Range) -> Program:
    return hosts.shared_memory(range(size), rank, part)


def whole_first(size: int, rank: int, part: Range) -> Program:
    return designs.whole_first(range(size), rank, part)


ALLREDUCES = st.one_of(
    st.builds(ring, st.integers(1, 4)),
    st.builds(in_segments, st.integers(1, 4), st.integers(1, 12)),
    st.sampled_from([doubling, shared, whole_first]),
)
"""Algorithms, with any number of rings and size of segments."""

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8"]


def numbers(rank: int, vectors: int, size: int, dtype: str, seed: int) -> list[Array]:
    """Return what a rank has: whole numbers, so that every order of adding gives the same."""
    source = np.random.default_rng([seed, rank])
    return [source.integers(-8, 9, size).astype(dtype) for _ in range(vectors)]


def execute_all(  # noqa: PLR0917  what a program works on
    make: Make,
    buffers: list[Array],
    tensors: list[tuple[Tensor, Tensor]],
    rule: Operation,
    seed: int,
    divisor: int = 1,
) -> list[int]:
    """Let all ranks carry out their programs, from a tensor into another; return what each sends."""
    runs = []
    for rank, (tensor, into) in enumerate(tensors):
        program = make(len(tensors), rank, (0, tensor.size))
        memory = Memory(buffers[rank], make_slots(program, buffers[rank].dtype), dict(enumerate(buffers)))
        runs.append(execute(program, NumpyReducer(tensor, rule, into=into), memory, rule, divisor))
    return run_together(runs, random.Random(seed))


def run(
    make: Make,
    values: list[list[Array]],
    operation: str = "sum",
    seed: int = 0,
    *,
    in_place: bool = True,
) -> tuple[list[list[Array]], list[int]]:
    """Run an allreduce on copies; return all ranks' results and the bytes that each has sent."""
    ranks = len(values)
    tensors = [Tensor([vector.copy() for vector in vectors]) for vectors in values]
    outs = tensors if in_place else [Tensor([np.zeros_like(v) for v in t.vectors]) for t in tensors]
    size = tensors[0].size
    wide = accumulator(tensors[0].dtype)
    alias = in_place and len(values[0]) == 1 and wide == tensors[0].dtype
    buffers = [t.vectors[0] if alias else np.empty(size, wide) for t in tensors]
    rule = OPERATIONS[operation]
    divisor = ranks * len(values[0]) if rule.is_mean else 1
    sent = execute_all(make, buffers, list(zip(tensors, outs)), rule, seed, divisor)
    if not in_place:
        for tensor, vectors in zip(tensors, values):
            for before, after in zip(vectors, tensor.vectors):
                np.testing.assert_array_equal(before, after)
    return [out.vectors for out in outs], sent


@RELAXED
@given(
    ALLREDUCES,
    st.integers(1, 9),
    st.integers(1, 8),
    SIZES,
    st.sampled_from(DTYPES),
    st.sampled_from(["sum", "max", "min"]),
    SEEDS,
    st.booleans(),
)
def test_all_ranks_get_the_reduction_of_all_vectors(  # noqa: PLR0917  one for each thing that varies
    make: Make, ranks: int, vectors: int, size: int, dtype: str, operation: str, seed: int, in_place: bool
) -> None:
    """And each sends the bytes that the model counts."""
    values = [numbers(rank, vectors, size, dtype, seed) for rank in range(ranks)]
    results, sent = run(make, values, operation, seed, in_place=in_place)
    item = accumulator(np.dtype(dtype)).itemsize
    assert sent == [cost.count(make(ranks, rank, (0, size)), rank).sent * item for rank in range(ranks)]
    everything = np.array([vector for rank in values for vector in rank]).astype(np.float64)
    wanted = getattr(np, operation)(everything, axis=0)
    if dtype in ("int8", "uint8"):
        wanted = wanted.astype(np.int64).astype(dtype)  # it wraps, as in NumPy
    for rank in results:
        for vector in rank:
            np.testing.assert_array_equal(vector.astype(np.float64), wanted)


@RELAXED
@given(st.integers(1, 5), st.integers(1, 4), SIZES, st.integers(1, 900), SEEDS)
def test_the_library_gets_sums_of_vectors_segment_by_segment(
    ranks: int, vectors: int, size: int, segment: int, seed: int
) -> None:
    values = [numbers(rank, vectors, size, "float16", seed) for rank in range(ranks)]
    results, sent = run(
        lambda n, rank, part: designs.through_library(range(n), rank, part, segment), values, "mean", seed
    )
    wanted = np.mean([vector.astype(np.float64) for rank in values for vector in rank], axis=0)
    for rank in results:
        for vector in rank:
            np.testing.assert_allclose(vector.astype(np.float64), wanted, rtol=1e-3)
    assert not any(sent)


@RELAXED
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    SIZES,
    st.sampled_from(["float16", "float32", "int64"]),
    st.sampled_from(["sum", "max", "min"]),
    SEEDS,
)
def test_a_ring_over_every_vector_reduces_alike_and_moves_what_the_model_says(  # noqa: PLR0917
    ranks: int, vectors: int, size: int, dtype: str, operation: str, seed: int
) -> None:
    values = [numbers(rank, vectors, size, dtype, seed) for rank in range(ranks)]
    tensors = [Tensor([vector.copy() for vector in own]) for own in values]
    wide = accumulator(np.dtype(dtype))
    runs = []
    for rank, tensor in enumerate(tensors):
        program = designs.every_vector(range(ranks), rank, (0, vectors * size), vectors)
        memory = Memory(np.empty(vectors * size, wide), make_slots(program, wide))
        reducer = EachVector(HostMemory, tensor, OPERATIONS[operation], tensor)
        runs.append(execute(program, reducer, memory, OPERATIONS[operation]))
    sent = run_together(runs, random.Random(seed))
    everything = np.array([vector for own in values for vector in own]).astype(np.float64)
    wanted = getattr(np, operation)(everything, axis=0)
    for tensor in tensors:
        for vector in tensor.vectors:
            np.testing.assert_array_equal(vector.astype(np.float64), wanted)
    members = ranks * vectors
    assert sum(sent) == 2 * (members - 1) * size * wide.itemsize


@st.composite
def levels(draw: st.DrawFn) -> Levels:
    """Return the ranks of one to four hosts, with as many on each or not, in any order of hosts."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    ranks = draw(st.permutations(range(sum(counts))))
    hosts = tuple(tuple(sorted(ranks[sum(counts[:n]) :][:count])) for n, count in enumerate(counts))
    return Levels(hosts, draw(st.booleans()))


@RELAXED
@given(levels(), st.integers(1, 3), SIZES, SEEDS)
def test_hosts_and_ranks_within_them_reduce_alike(
    where: Levels, vectors: int, size: int, seed: int
) -> None:
    ranks = sum(map(len, where.hosts))
    values = [numbers(rank, vectors, size, "float32", seed) for rank in range(ranks)]
    results, sent = run(
        lambda n, rank, part: hierarchical.allreduce(range(n), rank, part, where), values, "sum", seed
    )
    wanted = sum(vector for rank in values for vector in rank)
    for rank in results:
        for vector in rank:
            np.testing.assert_array_equal(vector, wanted)
    if not where.doubling:  # what a ring of the hosts sends, whatever the number of their ranks
        assert sum(sent) == 2 * (len(where.hosts) - 1) * 4 * size


@RELAXED
@given(levels(), st.integers(0, 15), SIZES, SEEDS)
def test_of_several_hosts_one_rank_gets_the_sum_or_gives_its_vector_to_all(
    where: Levels, root: int, size: int, seed: int
) -> None:
    ranks = sum(map(len, where.hosts))
    root %= ranks
    values = [numbers(rank, 1, size, "float32", seed) for rank in range(ranks)]
    results, _ = run(
        lambda n, rank, part: hierarchical.reduce(range(n), rank, part, root, where), values, "sum", seed
    )
    np.testing.assert_array_equal(results[root][0], sum(vector for [vector] in values))
    results, sent = run(
        lambda n, rank, part: hierarchical.broadcast(range(n), rank, part, root, where), values, seed=seed
    )
    for [vector] in results:
        np.testing.assert_array_equal(vector, values[root][0])
    assert sum(sent) == (len(where.hosts) - 1) * 4 * size


@RELAXED
@given(levels(), st.integers(1, 300), st.tuples(SEEDS, SEEDS))
def test_several_hosts_have_the_same_bits_in_any_order_of_delivery(
    where: Levels, size: int, seeds: tuple[int, int]
) -> None:
    """And two of them whatever lies beside a number, so that keys may be fused."""
    source = np.random.default_rng(seeds[0])
    ranks = sum(map(len, where.hosts))
    values = [[source.standard_normal(size).astype(np.float32)] for _ in range(ranks)]

    def make(n: int, rank: int, part: Range) -> Program:
        return hierarchical.allreduce(range(n), rank, part, where)

    one, other = (run(make, values, "sum", seed)[0] for seed in seeds)
    assert len({vector.tobytes() for result in (one, other) for [vector] in result}) == 1
    if len(where.hosts) <= 2:
        half, _ = run(make, [[vector[: size // 2].copy()] for [vector] in values], "sum", seeds[0])
        assert half[0][0].tobytes() == one[0][0][: size // 2].tobytes()


@RELAXED
@given(
    ALLREDUCES,
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 500),
    st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    st.tuples(SEEDS, SEEDS),
)
def test_results_have_the_same_bits_everywhere_and_in_any_order_of_delivery(  # noqa: PLR0917
    make: Make, ranks: int, vectors: int, size: int, dtype: str, seeds: tuple[int, int]
) -> None:
    source = np.random.default_rng(seeds[0])
    values = [[source.standard_normal(size).astype(dtype) for _ in range(vectors)] for _ in range(ranks)]
    one, _ = run(make, values, "sum", seeds[0])
    other, _ = run(make, values, "sum", seeds[1])
    bits = {vector.tobytes() for result in (one, other) for rank in result for vector in rank}
    assert len(bits) == 1
    exact = np.sum([v.astype(np.float64) for rank in values for v in rank], axis=0)
    magnitude = np.sum([np.abs(v.astype(np.float64)) for rank in values for v in rank], axis=0)
    terms = ranks * vectors
    unit = np.finfo(accumulator(np.dtype(dtype))).eps * terms * magnitude
    limits = ml_dtypes.finfo(dtype)
    once = float(limits.eps) * np.abs(exact)  # 16 bits are rounded once, at the end
    assert (np.abs(one[0][0].astype(np.float64) - exact) <= unit + once + float(limits.tiny)).all()


@RELAXED
@given(st.integers(1, 6), st.integers(0, 200), SEEDS)
def test_with_shared_memory_neighbours_in_a_buffer_do_not_change_a_bit(
    ranks: int, size: int, seed: int
) -> None:
    """So that keys may be fused, or not."""
    source = np.random.default_rng(seed)
    values = [[source.standard_normal(2 * size).astype(np.float32)] for _ in range(ranks)]
    whole, _ = run(shared, values, "sum", seed)
    halves = [
        run(shared, [[v[part].copy()] for [v] in values], "sum", seed)[0][0][0]
        for part in (slice(None, size), slice(size, None))
    ]
    assert whole[0][0].tobytes() == b"".join(half.tobytes() for half in halves)


@RELAXED
@given(ALLREDUCES, st.integers(1, 9), st.integers(1, 3), SEEDS)
def test_a_mean_is_the_sum_over_the_number_of_vectors(
    make: Make, ranks: int, vectors: int, seed: int
) -> None:
    values = [numbers(rank, vectors, 50, "float64", seed) for rank in range(ranks)]
    results, _ = run(make, values, "mean", seed)
    wanted = np.mean([v for rank in values for v in rank], axis=0)
    np.testing.assert_allclose(results[0][0], wanted, rtol=1e-12, atol=1e-12)


@RELAXED
@given(st.integers(1, 9), st.integers(0, 4), st.integers(0, 2_000), SEEDS)
def test_a_broadcast_gives_all_the_vector_of_the_root(ranks: int, root: int, size: int, seed: int) -> None:
    root %= ranks
    values = [numbers(rank, 1, size, "float32", seed) for rank in range(ranks)]
    results, sent = run(
        lambda n, rank, part: trees.broadcast(range(n), rank, part, root), values, seed=seed
    )
    for [vector] in results:
        np.testing.assert_array_equal(vector, values[root][0])
    assert sum(sent) == 4 * size * (ranks - 1)


@RELAXED
@given(st.integers(1, 9), st.integers(0, 4), st.integers(1, 3), SIZES, SEEDS)
def test_a_reduce_gives_the_sum_to_the_root_alone(
    ranks: int, root: int, vectors: int, size: int, seed: int
) -> None:
    root %= ranks
    values = [numbers(rank, vectors, size, "float16", seed) for rank in range(ranks)]
    results, _ = run(
        lambda n, rank, part: hosts.shared_memory_reduce(range(n), rank, part, root), values, seed=seed
    )
    wanted = sum(vector.astype(np.float64) for rank in values for vector in rank)
    for rank, vectors_of_rank in enumerate(results):
        for vector, before in zip(vectors_of_rank, values[rank]):
            np.testing.assert_array_equal(vector.astype(np.float64), wanted if rank == root else before)


@RELAXED
@given(st.integers(1, 9), st.integers(0, 4), SIZES, SEEDS)
def test_a_broadcast_through_shared_memory(ranks: int, root: int, size: int, seed: int) -> None:
    root %= ranks
    values = [numbers(rank, 1, size, "int32", seed) for rank in range(ranks)]
    results, sent = run(
        lambda n, rank, part: hosts.shared_memory_broadcast(range(n), rank, part, root), values, seed=seed
    )
    for [vector] in results:
        np.testing.assert_array_equal(vector, values[root][0])
    assert not any(sent)


@RELAXED
@given(
    st.integers(1, 9),
    st.integers(1, 4),
    SIZES,
    st.sampled_from(DTYPES),
    st.sampled_from(["sum", "max", "min"]),
    SEEDS,
)
def test_chunks_of_the_reduction_are_spread_to_all(  # noqa: PLR0917  one for each thing that varies
    ranks: int, vectors: int, size: int, dtype: str, operation: str, seed: int
) -> None:
    """A reduce-scatter leaves each rank its chunk, and changes no vector; an allgather spreads chunks."""
    values = [numbers(rank, vectors, size, dtype, seed) for rank in range(ranks)]
    tensors = [Tensor([vector.copy() for vector in own]) for own in values]
    dtype_of_sums, rule = accumulator(np.dtype(dtype)), OPERATIONS[operation]
    buffers = [np.empty(size, dtype_of_sums) for _ in range(ranks)]
    chunks = split(0, size, ranks)

    def all_ranks(make: Callable[..., Program]) -> None:
        sent = execute_all(
            lambda n, rank, part: make(range(n), rank, part), buffers, [*zip(tensors, tensors)], rule, seed
        )
        assert sum(sent) == (ranks - 1) * size * dtype_of_sums.itemsize

    all_ranks(rings.reduce_scatter_chunks)
    everything = np.array([vector for own in values for vector in own]).astype(np.float64)
    wanted = getattr(np, operation)(everything, axis=0)
    if dtype in ("int8", "uint8"):
        wanted = wanted.astype(np.int64).astype(dtype)
    for rank, (lo, hi) in enumerate(chunks):
        np.testing.assert_array_equal(buffers[rank][lo:hi].astype(np.float64), wanted[lo:hi])
        buffers[rank][:lo] = buffers[rank][hi:] = 99  # what is not complete here must come from others
        for before, after in zip(values[rank], tensors[rank].vectors):
            np.testing.assert_array_equal(before, after)
    all_ranks(rings.allgather_chunks)
    for tensor in tensors:
        for vector in tensor.vectors:
            np.testing.assert_array_equal(vector.astype(np.float64), wanted)
