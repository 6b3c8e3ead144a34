"""Laws of exchanges with a center: what is conserved, and what is equal to what."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.center import Center
from support.elastic_client import adopt, elastic_step, mix

from kvstore_mpi import (
    BMUF,
    DCASGD,
    DelayedNesterov,
    DiLoCo,
    Elastic,
    LocalSGD,
    Outer,
    SlowMo,
    StalenessAware,
)
from kvstore_mpi.esgd.stagger import exchange_offset
from kvstore_mpi.server_optimizers import (
    HyperParameters,
    OptimizerSpec,
    Origin,
    build,
    hyper_for,
    pseudo_gradient,
)
from kvstore_mpi.values.coding import CODINGS

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=100)
SEEDS = st.integers(0, 2**32 - 1)
ALPHAS = st.floats(0, 1)
CLIENTS = st.integers(1, 12)
DTYPES = st.sampled_from(["float32", "float64"])
OUTER = [LocalSGD(), DiLoCo(), SlowMo(), BMUF(3), Outer("adam", learning_rate=0.1)]


def some(seed, *shape, dtype="float64"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def sgd(lr, **params):
    return OptimizerSpec(name="sgd", hyper=HyperParameters(lr=lr), params=params)


def elastic_exchange(center, client, weight, alpha):
    elastic_step(weight, center.exchange(client, weight.copy()), alpha)


class TestElastic:
    @pytest.mark.paper("MXNET-MPI equations 2 and 3")
    @REPEATABLE
    @given(seed=SEEDS, dtype=st.sampled_from(["float16", "float32", "float64"]))
    def test_alpha_0_changes_nothing(self, seed, dtype):
        """Parameters and center keep every bit."""
        center, weight = (
            Center(Elastic(0).spec(), some(seed, 7, dtype=dtype)),
            some(seed + 1, 7, dtype=dtype),
        )
        before = center.weight.tobytes(), weight.tobytes()
        elastic_exchange(center, 0, weight, 0.0)
        assert (center.weight.tobytes(), weight.tobytes()) == before

    @pytest.mark.paper("MXNET-MPI equations 2 and 3")
    @REPEATABLE
    @given(seed=SEEDS)
    def test_alpha_1_swaps(self, seed):
        """With one client parameters and center change places."""
        old_center, old_weight = some(seed, 2, 7)
        center, weight = Center(Elastic(1).spec(), old_center), old_weight.copy()
        elastic_exchange(center, 0, weight, 1.0)
        np.testing.assert_allclose(center.weight, old_weight, rtol=1e-12)
        np.testing.assert_allclose(weight, old_center, rtol=1e-12)

    @pytest.mark.paper("MXNET-MPI equations 2 and 3")
    @REPEATABLE
    @given(data=st.data(), seed=SEEDS, alpha=ALPHAS, p=CLIENTS, bits=st.sampled_from([None, 8, 4]))
    def test_exchanges_conserve_the_sum(self, *, data, seed, alpha, p, bits):
        """Sum of weights and center stays, in float32 and any order; compressed both ways, too."""
        order = data.draw(st.lists(st.integers(0, p - 1), max_size=30))
        weights = some(seed, p, 9, dtype="float32")
        if bits is None:
            center = Center(Elastic(alpha).spec(), some(seed + 1, 9, dtype="float32"))
            exchange = elastic_exchange
        else:
            center = CompressedCenter(alpha, some(seed + 1, 9, dtype="float32"), p, bits)
            exchange = CompressedCenter.exchange
        sum_before = weights.sum(axis=0, dtype=float) + center.weight
        largest = np.abs(weights).max() + np.abs(center.weight).max()
        for client in order:
            exchange(center, client, weights[client], alpha)
        sum_after = weights.sum(axis=0, dtype=float) + center.weight
        assert np.abs(sum_after - sum_before).max() <= 1e-5 * largest

    @pytest.mark.paper("EASGD section 2")
    @REPEATABLE
    @given(seed=SEEDS, p=CLIENTS, data=st.data())
    def test_rounds_conserve_the_sum(self, seed, p, data):
        """So does a synchronous round of p clients, all of which use the one center before it."""
        alpha = data.draw(st.floats(0, 1 / p))
        weights, center = some(seed, p, 9), Center(Elastic(alpha).spec(), some(seed + 1, 9))
        total = weights.sum(axis=0) + center.weight
        before = center.round(dict(enumerate(weights.copy())))
        for weight in weights:
            elastic_step(weight, before, alpha)
        np.testing.assert_allclose(weights.sum(axis=0) + center.weight, total, rtol=0, atol=1e-12)

    @pytest.mark.paper("EASGD section 2")
    @REPEATABLE
    @given(data=st.data(), seed=SEEDS, alpha=ALPHAS, p=CLIENTS)
    def test_nothing_leaves_the_range_of_the_start(self, data, seed, alpha, p):
        """Every element of weights and center stays between the least and greatest of them at the start."""
        order = data.draw(st.lists(st.integers(0, p - 1), max_size=30))
        weights, center = some(seed, p, 9), Center(Elastic(alpha).spec(), some(seed + 1, 9))
        everything = np.vstack([weights, center.weight])
        low, high = everything.min(axis=0) - 1e-12, everything.max(axis=0) + 1e-12
        for client in order:
            elastic_exchange(center, client, weights[client], alpha)
            everything = np.vstack([weights, center.weight])
            assert ((low <= everything) & (everything <= high)).all()

    @pytest.mark.paper("EASGD section 2")
    @REPEATABLE
    @given(seed=SEEDS, alpha=ALPHAS, p=CLIENTS, dtype=st.sampled_from(["float16", "float32"]))
    def test_agreement_is_a_fixed_point(self, seed, alpha, p, dtype):
        """If all are equal, no bit changes, however many clients are in a round."""
        weight = some(seed, 9, dtype=dtype)
        center = Center(Elastic(alpha).spec(), weight)
        elastic_step(weight, center.round(dict.fromkeys(range(p), weight.copy())), alpha)
        assert center.weight.tobytes() == weight.tobytes() == some(seed, 9, dtype=dtype).tobytes()

    @pytest.mark.paper("MXNET-MPI equations 2 and 3")
    @REPEATABLE
    @given(seed=SEEDS, alpha=ALPHAS, delay=st.integers(1, 5))
    def test_an_overlapped_exchange_conserves_and_keeps_what_was_learned(self, seed, alpha, delay):
        """The client goes on while its exchange is under way; both sides move by the same."""
        center, weight = Center(Elastic(alpha).spec(), some(seed, 5)), some(seed + 1, 5)
        learned = some(seed + 2, delay, 5)
        total = weight + center.weight + learned.sum(axis=0)
        pushed = weight.copy()
        before = center.exchange(0, pushed)
        for step in learned:
            weight += step
        elastic_step(weight, before, alpha, pushed)
        np.testing.assert_allclose(weight + center.weight, total, rtol=0, atol=1e-12)

    @REPEATABLE
    @given(seed=SEEDS, alpha=ALPHAS)
    def test_half_precision_is_computed_in_single(self, seed, alpha):
        """A float16 center moves as a float32 one would, rounded once."""
        start, pushed = some(seed, 2, 50, dtype="float16")
        half, single = (
            Center(Elastic(alpha).spec(), start),
            Center(Elastic(alpha).spec(), start.astype("f")),
        )
        half.round({0: pushed, 1: pushed / 2})
        single.round({0: pushed.astype("f"), 1: (pushed / 2).astype("f")})
        assert half.weight.tobytes() == single.weight.astype("float16").tobytes()


class CompressedCenter:
    """An elastic exchange of quantised differences, both ways, as a server and a client do it."""

    def __init__(self, alpha, initial, num_clients, bits):
        self.weight, self.bits = initial.copy(), bits
        self.given = [initial.copy() for _ in range(num_clients)]
        self.rule = build(Elastic(alpha).spec())

    def exchange(self, client, weight, alpha):
        base = self.given[client]
        pushed, reply = np.empty_like(weight), np.empty_like(weight)
        CODINGS[self.bits].encode(weight, base, pushed)
        CODINGS[self.bits].encode(self.weight, base, reply)
        gradient = np.empty_like(weight)
        pseudo_gradient(gradient, reply, [pushed])
        self.rule.update(self.weight, gradient, (), hyper_for(HyperParameters(lr=1.0), 0, 1), 1)
        elastic_step(weight, reply, alpha, pushed)
        self.given[client] = reply


class TestWhatIsEqualToWhat:
    @pytest.mark.paper("MXNET-MPI equations 2 and 3")
    @REPEATABLE
    @given(seed=SEEDS, alpha=ALPHAS, dtype=DTYPES)
    def test_elastic_is_sgd_on_the_pseudo_gradient(self, seed, alpha, dtype):
        """On the server, Elastic(alpha) is Outer("sgd", learning_rate=alpha), for single clients."""
        start = some(seed, 9, dtype=dtype)
        one, other = (
            Center(Elastic(alpha).spec(), start),
            Center(Outer("sgd", learning_rate=alpha).spec(), start),
        )
        for pushed in some(seed + 1, 4, 9, dtype=dtype):
            one.exchange(0, pushed)
            other.exchange(0, pushed)
            assert one.weight.tobytes() == other.weight.tobytes()

    @pytest.mark.paper("DiLoCo algorithm 1")
    @REPEATABLE
    @given(seed=SEEDS, p=CLIENTS)
    def test_diloco_is_nesterov_written_out(self, seed, p):
        """b = 0.9 b + g; c -= 0.7 (g + 0.9 b), with g the center minus the mean of the clients."""
        center = Center(DiLoCo().spec(), some(seed, 9))
        c, b = some(seed, 9), np.zeros(9)
        for pushed in some(seed + 1, 6, p, 9):
            reply = center.round(dict(enumerate(pushed)))
            g = c - pushed.mean(axis=0)
            b = 0.9 * b + g
            c = c - 0.7 * (g + 0.9 * b)
            np.testing.assert_allclose(center.weight, c, rtol=1e-9, atol=1e-12)
            assert reply.tobytes() == center.weight.tobytes()

    @pytest.mark.paper("FedAvg algorithm 1")
    @REPEATABLE
    @given(seed=SEEDS, p=CLIENTS)
    def test_local_sgd_is_the_mean(self, seed, p):
        """Whatever the center was before."""
        pushed = some(seed, p, 9)
        reply = Center(LocalSGD().spec(), some(seed + 1, 9)).round(dict(enumerate(pushed)))
        np.testing.assert_allclose(reply, pushed.mean(axis=0), rtol=1e-9, atol=1e-12)

    @pytest.mark.paper("SlowMo algorithm 1")
    @REPEATABLE
    @given(seed=SEEDS, p=CLIENTS, rate=st.floats(0.01, 1))
    def test_slowmo_is_its_paper_at_a_constant_rate(self, seed, p, rate):
        """u = beta u + (c - mean) / rate; c -= lr rate u: the clients' rate cancels."""
        center = Center(SlowMo(lr=0.8, momentum=0.6).spec(), some(seed, 9))
        c, u = some(seed, 9), np.zeros(9)
        for pushed in some(seed + 1, 5, p, 9):
            center.round(dict(enumerate(pushed)))
            u = 0.6 * u + (c - pushed.mean(axis=0)) / rate
            c = c - 0.8 * rate * u
            np.testing.assert_allclose(center.weight, c, rtol=1e-9, atol=1e-12)

    @pytest.mark.paper("BMUF equations 4 to 7")
    @REPEATABLE
    @given(seed=SEEDS, p=CLIENTS)
    def test_bmuf_is_block_momentum(self, seed, p):
        """d = (1 - 1/p) d + (mean - c); c += d."""
        center = Center(BMUF(p).spec(), some(seed, 9))
        c, d = some(seed, 9), np.zeros(9)
        for pushed in some(seed + 1, 5, p, 9):
            center.round(dict(enumerate(pushed)))
            d = (1 - 1 / p) * d + pushed.mean(axis=0) - c
            c = c + d
            np.testing.assert_allclose(center.weight, c, rtol=1e-9, atol=1e-12)

    @pytest.mark.paper("Async Local-SGD algorithm 3")
    @REPEATABLE
    @given(seed=SEEDS, p=CLIENTS, data=st.data())
    def test_delayed_nesterov_with_a_common_base_is_one_synchronous_step(self, seed, p, data):
        """Pushes of all clients, one by one in any order, end where one round of DiLoCo ends."""
        delayed, together = (
            Center(optimizer.spec(), some(seed, 9)) for optimizer in (DelayedNesterov(p), DiLoCo())
        )
        for pushed in some(seed + 1, 4, p, 9):
            for client in range(p):
                delayed.give(client)
            for client in data.draw(st.permutations(range(p))):
                delayed.exchange(client, pushed[client])
            together.round(dict(enumerate(pushed)))
            np.testing.assert_allclose(delayed.weight, together.weight, rtol=1e-9, atol=1e-9)

    @pytest.mark.paper("FedAvg algorithm 1")
    @REPEATABLE
    @given(seed=SEEDS, lr=st.floats(0.01, 1))
    def test_one_client_that_exchanges_every_step_is_plain_sgd(self, seed, lr):
        """Outer SGD at rate 1 then adds nothing of its own; the client adopts what it has pushed."""
        center = Center(LocalSGD().spec(), some(seed, 9))
        weight, plain = center.give(0), some(seed, 9)
        for curvature in np.abs(some(seed + 1, 8, 9)):
            weight -= lr * curvature * weight
            adopt(weight, center.exchange(0, weight.copy()))
            plain -= lr * curvature * plain
            np.testing.assert_allclose(weight, plain, rtol=1e-9, atol=1e-12)

    @pytest.mark.paper("Streaming DiLoCo equation 3")
    @REPEATABLE
    @given(seed=SEEDS, part=ALPHAS)
    def test_mixing_is_a_blend_and_all_of_it_is_adopting(self, seed, part):
        """mix goes a part of the way to the center; adopting without delay copies it."""
        weight, center = some(seed, 2, 9)
        mixed = weight.copy()
        mix(mixed, center, part)
        np.testing.assert_allclose(mixed, (1 - part) * weight + part * center, rtol=0, atol=1e-12)
        pushed, learned = weight.copy(), some(seed + 1, 9)
        weight += learned
        adopt(weight, center, pushed)
        np.testing.assert_allclose(weight, center + learned, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("optimizer", [Elastic(0.3), *OUTER], ids=str)
    @settings(deadline=None, derandomize=True, max_examples=20)
    @given(data=st.data(), seed=SEEDS, p=st.integers(1, 4))
    def test_the_order_of_keys_and_their_cuts_do_not_matter(self, *, optimizer, data, seed, p):
        """Any cut of a key over servers, updated in any order, gives the same bits."""
        cuts = sorted(data.draw(st.sets(st.integers(1, 29), max_size=4)) | {0, 30})
        start, rounds = some(seed, 30, dtype="float32"), some(seed + 1, 3, p, 30, dtype="float32")
        whole = Center(optimizer.spec(), start)
        parts = [(lo, hi, Center(optimizer.spec(), start[lo:hi])) for lo, hi in itertools.pairwise(cuts)]
        for pushed in rounds:
            whole.round(dict(enumerate(pushed)))
            for lo, hi, part in data.draw(st.permutations(parts)):
                part.round({client: pushed[client, lo:hi] for client in range(p)})
        assert np.concatenate([part.weight for *_, part in parts]).tobytes() == whole.weight.tobytes()


class TestDelayedGradients:
    @pytest.mark.paper("DC-ASGD equation 10")
    @REPEATABLE
    @given(seed=SEEDS, momentum=st.sampled_from([0.0, 0.9]), data=st.data())
    def test_without_lamda_it_is_asgd(self, seed, momentum, data):
        """lamda = 0 changes no bit, whatever the clients were given, and whenever."""
        order = data.draw(st.lists(st.integers(0, 3), max_size=12))
        own = DCASGD("sgd", learning_rate=0.1, momentum=momentum, lamda=0.0).spec()
        one, other = Center(own, some(seed, 9)), Center(sgd(0.1, momentum=momentum), some(seed, 9))
        for client in range(4):
            one.give(client)
        for client, gradient in zip(order, some(seed + 1, len(order), 9)):
            one.exchange(client, gradient)
            other.exchange(client, gradient)
        assert one.weight.tobytes() == other.weight.tobytes()

    @pytest.mark.paper("DC-ASGD equation 10")
    @REPEATABLE
    @given(seed=SEEDS)
    def test_each_client_is_compensated_for_its_own_delay(self, seed):
        """The same gradient of two clients, given different weights, moves the weight differently, each by
        the formula."""
        start, g = some(seed, 2, 9)
        center = Center(DCASGD(learning_rate=0.1, lamda=0.5).spec(), start)
        center.give(0)
        center.exchange(1, some(seed + 1, 9))  # client 1 now has a newer weight than client 0
        moves = {}
        for client in (1, 0):
            before = center.weight.copy()
            base = start if client == 0 else before
            center.exchange(client, g.copy())
            moves[client] = center.weight - before
            np.testing.assert_allclose(
                moves[client], -0.1 * (g + 0.5 * g * g * (before - base)), atol=1e-12
            )
        assert not np.allclose(moves[0], moves[1], rtol=0, atol=1e-9)

    @REPEATABLE
    @given(seed=SEEDS, rescale=st.floats(0.1, 2), bound=st.floats(0.1, 2))
    def test_gradients_are_rescaled_and_clipped_before_they_are_compensated(self, seed, rescale, bound):
        """The compensation squares the gradient of the mean loss, not of a sum."""
        w, base, g = some(seed, 3, 9)
        optimizer = DCASGD(learning_rate=0.1, lamda=0.5, rescale_grad=rescale, clip_gradient=bound)
        spec = optimizer.spec()
        weight = w.copy()
        build(spec).update(weight, g.copy(), (), hyper_for(spec.hyper, 0, 1), 1, origin=Origin(1, 3, base))
        scaled = np.clip(rescale * g, -bound, bound)
        expected = w - 0.1 * (scaled + 0.5 * scaled**2 * (w - base))
        np.testing.assert_allclose(weight, expected, rtol=1e-9, atol=1e-12)

    @pytest.mark.paper("Staleness-aware async-SGD section 3")
    @REPEATABLE
    @given(seed=SEEDS, staleness=st.integers(0, 20), momentum=st.sampled_from([0.0, 0.9]))
    def test_the_rate_is_divided_by_the_staleness(self, seed, staleness, momentum):
        """A gradient that is s > 0 updates old moves the weight as at rate / s."""
        w, g = some(seed, 2, 9)
        spec = StalenessAware("sgd", learning_rate=0.3, momentum=momentum).spec()
        rule = build(spec)
        weight = w.copy()
        origin = Origin(1, staleness, w)
        rule.update(weight, g.copy(), rule.init(w), hyper_for(spec.hyper, 0, 1), 1, origin=origin)
        np.testing.assert_allclose(weight, w - 0.3 / max(1, staleness) * g, rtol=1e-9, atol=1e-12)


class TestStagger:
    @REPEATABLE
    @given(p=CLIENTS, n=st.integers(1, 40), interval=st.integers(1, 600))
    def test_exchanges_are_dealt_evenly_over_the_interval(self, p, n, interval):
        """No step has more than its share, rounded up."""
        offsets = [exchange_offset(i, p, k, n, interval) for i in range(p) for k in range(n)]
        counts = np.bincount(offsets, minlength=interval)
        assert len(counts) == interval
        assert counts.max() <= -(-p * n // interval)

    @REPEATABLE
    @given(p=st.integers(2, 12), data=st.data(), interval=st.integers(12, 600))
    def test_clients_do_not_exchange_the_same_key_together(self, p, data, interval):
        """A key that is most of the model is asked for by one client after the other."""
        n = data.draw(st.integers(p, 40))
        key = data.draw(st.integers(0, n - 1))
        offsets = sorted(exchange_offset(i, p, key, n, interval) for i in range(p))
        gaps = np.diff([*offsets, offsets[0] + interval])
        assert gaps.min() >= (n // p - 1) * interval / n - 1
