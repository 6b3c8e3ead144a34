"""Collectives on tensors, all ranks in one thread under any order of delivery, against a plain sum in
float64."""

from __future__ import annotations

import random
from typing import Any, Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore_mpi.tensor_collectives import cost, designs, hierarchical, hosts, rings, trees
from kvstore_mpi.tensor_collectives.executor import Memory, execute, make_slots
from kvstore_mpi.tensor_collectives.hierarchical import Levels
from kvstore_mpi.tensor_collectives.local_reduce import EachVector, HostMemory, NumpyReducer
from kvstore_mpi.tensor_collectives.steps import Program, Range, split
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS, Tensor, accumulator
from kvstore_mpi.testing.simulated_ranks import run_together

Array = np.ndarray[Any, Any]
Make = Callable[[int, int, Range], Program]

SIZES = st.one_of(st.integers(0, 40), st.integers(100, 3_000))
SEEDS = st.integers(0, 2**32 - 1)
RELAXED = settings(deadline=None)


def ring(num_rings: int) -> Make:
    return lambda size, rank, part: rings.allreduce(range(size), rank, part, num_rings)


def pipelined(num_rings: int, segment: int) -> Make:
    return lambda size, rank, part: rings.pipelined(range(size), rank, part, num_rings, segment)


def in_pieces(num_rings: int, pieces: int) -> Make:
    """Pipeline so many segments, or one more."""
    return lambda size, rank, part: pipelined(num_rings, max(1, (part[1] - part[0]) // pieces))(
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
    st.builds(in_pieces, st.integers(1, 4), st.integers(1, 12)),
    st.sampled_from([doubling, shared, whole_first]),
)
"""Algorithms, with any number of rings and size of segments."""

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8"]


def totals(counts: list[cost.Counts]) -> cost.Counts:
    """Add up what all ranks do."""
    return cost.Counts(*(sum(values) for values in zip(*counts)))


def ring_seconds(size: int, num_bytes: float, model: cost.Model) -> float:
    """Return what the formula at the top of ``cost.py`` says."""
    share = (size - 1) / size
    transfer = 2 * (size - 1) * model.alpha + 2 * share * num_bytes * model.beta
    return transfer + share * num_bytes * model.gamma


def numbers(rank: int, vectors: int, size: int, dtype: str, seed: int) -> list[Array]:
    """Return what a rank has: whole numbers, so that every order of adding gives the same."""
    source = np.random.default_rng([seed, rank])
    return [source.integers(-8, 9, size).astype(dtype) for _ in range(vectors)]


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
    runs = []
    for rank, tensor in enumerate(tensors):
        program = make(ranks, rank, (0, size))
        memory = Memory(buffers[rank], make_slots(program, wide), dict(enumerate(buffers)))
        reducer = NumpyReducer(tensor, rule, into=outs[rank])
        runs.append(execute(program, reducer, memory, rule, divisor))
    sent = run_together(runs, random.Random(seed))
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
def test_the_library_gets_sums_of_vectors_piece_by_piece(
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
def test_blocks_of_the_reduction_are_spread_to_all(  # noqa: PLR0917  one for each thing that varies
    ranks: int, vectors: int, size: int, dtype: str, operation: str, seed: int
) -> None:
    """A reduce-scatter leaves each rank its block, and changes no vector; an allgather spreads blocks."""
    values = [numbers(rank, vectors, size, dtype, seed) for rank in range(ranks)]
    tensors = [Tensor([vector.copy() for vector in own]) for own in values]
    dtype_of_sums, rule = accumulator(np.dtype(dtype)), OPERATIONS[operation]
    buffers = [np.empty(size, dtype_of_sums) for _ in range(ranks)]
    blocks = split(0, size, ranks)

    def all_ranks(make: Callable[..., Program]) -> None:
        runs = []
        for rank, tensor in enumerate(tensors):
            program = make(range(ranks), rank, (0, size))
            memory = Memory(buffers[rank], make_slots(program, dtype_of_sums))
            runs.append(execute(program, NumpyReducer(tensor, rule), memory, rule))
        sent = run_together(runs, random.Random(seed))
        assert sum(sent) == (ranks - 1) * size * dtype_of_sums.itemsize

    all_ranks(rings.reduce_scatter_blocks)
    everything = np.array([vector for own in values for vector in own]).astype(np.float64)
    wanted = getattr(np, operation)(everything, axis=0)
    if dtype in ("int8", "uint8"):
        wanted = wanted.astype(np.int64).astype(dtype)
    for rank, (lo, hi) in enumerate(blocks):
        np.testing.assert_array_equal(buffers[rank][lo:hi].astype(np.float64), wanted[lo:hi])
        buffers[rank][:lo] = buffers[rank][hi:] = 99  # what is not complete here must come from others
        for before, after in zip(values[rank], tensors[rank].vectors):
            np.testing.assert_array_equal(before, after)
    all_ranks(rings.allgather_blocks)
    for tensor in tensors:
        for vector in tensor.vectors:
            np.testing.assert_array_equal(vector.astype(np.float64), wanted)


def counts_of(make: Make, ranks: int, size: int) -> tuple[cost.Counts, int]:
    """Return what all ranks do together, and the rounds of the one with the most."""
    counts = [cost.count(make(ranks, rank, (0, size)), rank) for rank in range(ranks)]
    return totals(counts), max(each.rounds for each in counts)


@RELAXED
@given(st.integers(1, 9), st.integers(0, 8), st.integers(0, 3_000))
def test_the_other_algorithms_move_what_the_model_says(ranks: int, root: int, size: int) -> None:
    """Messages, elements that are sent and that are reduced, and waits without a message."""
    root %= ranks
    members = range(ranks)
    core = 1 << (ranks.bit_length() - 1)
    log = core.bit_length() - 1
    one_less = (ranks - 1) * size
    ring_of_hosts = Levels(tuple((rank,) for rank in members), doubling=False)

    total, rounds = counts_of(doubling, ranks, size)
    assert (total.sent, total.reduced) == (
        (core * log + 2 * (ranks - core)) * size,
        (core * log + ranks - core) * size,
    )
    assert rounds == log + 2 * (ranks > core)

    total, rounds = counts_of(
        lambda n, rank, part: rings.reduce_scatter_blocks(members, rank, part), ranks, size
    )
    assert (total.sent, total.reduced, rounds) == (one_less, one_less, ranks - 1)

    total, rounds = counts_of(
        lambda n, rank, part: rings.allgather_blocks(members, rank, part), ranks, size
    )
    assert (total.sent, total.reduced, rounds) == (one_less, 0, ranks - 1)

    total, rounds = counts_of(lambda n, rank, part: trees.broadcast(members, rank, part, root), ranks, size)
    assert (total.sent, total.reduced) == (one_less, 0)
    assert rounds <= max(0, (ranks - 1).bit_length())

    total, rounds = counts_of(lambda n, rank, part: rings.reduce(members, rank, part, root), ranks, size)
    own = rings.Ring(members, root, (0, size), 0).own
    assert (total.sent, total.reduced) == (one_less + size - (own[1] - own[0]), one_less)

    total, rounds = counts_of(whole_first, ranks, size)
    assert (total.sent, total.reduced, rounds) == (2 * one_less, one_less, 2 * (ranks - 1))

    total, rounds = counts_of(
        lambda n, rank, part: hosts.shared_memory_broadcast(members, rank, part, root), ranks, size
    )
    assert (total.sent, total.copied, total.barriers) == (0, one_less, 2 * ranks)

    total, rounds = counts_of(
        lambda n, rank, part: hierarchical.allreduce(members, rank, part, ring_of_hosts), ranks, size
    )
    assert (total.sent, total.reduced, rounds) == (2 * one_less, one_less, 2 * (ranks - 1))


@RELAXED
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 3_000))
def test_rings_move_what_the_model_says(ranks: int, num_rings: int, size: int) -> None:
    counts = [
        cost.count(rings.allreduce(range(ranks), rank, (0, size), num_rings), rank) for rank in range(ranks)
    ]
    total = totals(counts)
    assert total.sent == total.received == 2 * (ranks - 1) * size
    assert total.reduced == (ranks - 1) * size
    assert {each.rounds for each in counts} == {2 * (ranks - 1) * num_rings}


@RELAXED
@given(st.integers(1, 9), st.integers(1, 3), st.integers(0, 3_000), st.integers(1, 1_000))
def test_pipelined_rings_move_no_more(ranks: int, num_rings: int, size: int, segment: int) -> None:
    make = pipelined(num_rings, segment)
    counts = [cost.count(make(ranks, rank, (0, size)), rank) for rank in range(ranks)]
    total = totals(counts)
    assert total.sent == total.received == 2 * (ranks - 1) * size
    assert total.reduced == (ranks - 1) * size
    assert {each.rounds for each in counts} == {2 * (ranks - 1) * num_rings * -(-size // segment)}


@RELAXED
@given(st.integers(1, 9), st.integers(0, 3_000))
def test_shared_memory_sends_nothing_and_reads_what_is_needed(ranks: int, size: int) -> None:
    total = totals([cost.count(shared(ranks, rank, (0, size)), rank) for rank in range(ranks)])
    assert total.sent == total.rounds == 0
    assert total.reduced == total.copied == (ranks - 1) * size
    assert total.barriers == 2 * ranks


@RELAXED
@given(st.integers(1, 33))
def test_doubling_takes_so_many_rounds_as_the_size_has_bits(ranks: int) -> None:
    rounds = max(cost.count(doubling(ranks, rank, (0, 8)), rank).rounds for rank in range(ranks))
    spare = ranks & (ranks - 1) != 0
    assert rounds == ranks.bit_length() - 1 + 2 * spare


@pytest.mark.parametrize("ranks", range(2, 10))
@pytest.mark.parametrize("size", [64_000, 1_000_000])
def test_the_prediction_of_a_ring_is_the_formula(ranks: int, size: int) -> None:
    model = cost.Model(alpha=2e-6, beta=1e-9, gamma=2e-10)
    size -= size % (16 * ranks)
    program = rings.allreduce(range(ranks), 0, (0, size))
    assert cost.predict(program, 4, model) == pytest.approx(ring_seconds(ranks, 4 * size, model))


def test_two_rings_hide_the_smaller_of_reduction_and_transfer() -> None:
    """Section 6.2: at most a factor of two, and here, with eight ranks, most of it."""
    ranks, size = 8, 8_000_000
    model = cost.Model(alpha=1e-6, beta=1e-9, gamma=0.0, gamma_local=1e-9, asynchronous=True)
    one, two = (
        cost.predict(rings.reduce_scatter(rings.make_rings(range(ranks), 0, (0, size), n)), 4, model)
        for n in (1, 2)
    )
    assert 1.6 < one / two < 2


def test_pipelined_rings_hide_nearly_all_of_the_smaller() -> None:
    """Also of two ranks and where both take equally long; of that, Figure 9 hides half."""
    size, segment = 16_000_000, 1_000_000
    seconds = 4 * size * 1e-9  # of all transfers, and of all reductions
    model = cost.Model(alpha=1e-7, beta=1e-9, gamma=0.0, gamma_local=1e-9, asynchronous=True)
    figure_9 = cost.predict(rings.allreduce(range(2), 0, (0, size), 2), 4, model)
    pipelined = cost.predict(rings.pipelined(range(2), 0, (0, size), 2, segment), 4, model)
    assert 2 * seconds - figure_9 == pytest.approx(seconds / 2, rel=0.01)
    assert 2 * seconds - pipelined > 0.9 * seconds
