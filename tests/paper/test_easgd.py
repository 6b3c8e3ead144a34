"""Elastic averaging as its papers state it: closed forms, stability bounds and the exchange's equations.

On f(x) = h x² / 2 with e = learning rate * h; e, alpha and the clients' start decide everything. Elements
of a key are independent, so that a whole basis, or thousands of noisy replicas, go through one exchange.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.center import Center
from support.elastic_client import elastic_step

from kvstore_mpi import Elastic

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=200)


class Clients:
    """Clients on a quadratic, and their center."""

    def __init__(self, center, weights, alpha, e):
        self.center = Center(Elastic(alpha).spec(), np.asarray(center, float))
        self.weights = [np.array(weight, float) for weight in weights]
        self.alpha, self.e = alpha, e

    def exchange(self, client):
        weight = self.weights[client]
        elastic_step(weight, self.center.exchange(client, weight.copy()), self.alpha)

    def simultaneous_step(self, noise=lambda: 0.0):
        """The update of EASGD section 2: gradient, elastic force and center use the values of one time."""
        gradients = [self.e * (weight + noise()) for weight in self.weights]
        before = self.center.round(dict(enumerate(map(np.copy, self.weights))))
        for weight, gradient in zip(self.weights, gradients):
            elastic_step(weight, before, self.alpha)
            np.subtract(weight, gradient, out=weight)

    def asynchronous_step(self, client):
        """Algorithm 1 of EASGD with period 1: the gradient is the one before the elastic force."""
        gradient = self.e * self.weights[client]
        self.exchange(client)
        self.weights[client] -= gradient

    def state(self):
        return np.stack([self.center.weight, *self.weights])


def on_a_basis(clients, alpha, e):
    """Let every element be one unit vector of (center, w_1 ... w_p): then the state is the linear map."""
    center, *weights = np.eye(clients + 1)
    return Clients(center, weights, alpha, e)


def spectral_radius(matrix):
    return max(abs(np.linalg.eigvals(matrix)))


def roots(p, alpha, e):
    """gamma and phi of Lemma 3.1."""
    s, product = e + (p + 1) * alpha, e * p * alpha
    return [1 - (s + sign * np.sqrt(s * s - 4 * product)) / 2 for sign in (-1, 1)]


def greatest_alpha(p, e):
    """Where the synchronous map of mean and center, of trace 2 - s and determinant 1 - s + e p alpha, has
    the eigenvalue -1: 4 - 2 s + e p alpha = 0."""
    return 2 * (2 - e) / (p * (2 - e) + 2)


@pytest.mark.paper("EASGD Lemma 3.1")
@pytest.mark.parametrize(("p", "alpha", "e"), [(4, 0.075, 0.1), (12, 0.05, 0.02), (1, 0.3, 0.5)])
def test_the_center_follows_the_closed_form_of_its_mean(p, alpha, e):
    """E[center_t] = gamma^t c_0 + (gamma^t - phi^t) / (gamma - phi) alpha u_0, without noise exactly."""
    start, weights = 0.7, np.linspace(-1.0, 2.0, p)
    run = Clients([start], weights[:, None], alpha, e)
    gamma, phi = roots(p, alpha, e)
    u0 = sum(weights - alpha / (1 - p * alpha - phi) * start)
    for t in range(1, 61):
        run.simultaneous_step()
        expected = gamma**t * start + (gamma**t - phi**t) / (gamma - phi) * alpha * u0
        assert run.center.weight[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.paper("EASGD Lemma 3.1")
def test_the_center_has_the_variance_of_the_closed_form():
    """Over 20,000 replicas with noisy gradients, within 5 % (three standard errors are 3 %)."""
    p, alpha, e, steps, replicas = 4, 0.075, 0.1, 60, 20_000
    rng = np.random.default_rng(7)
    run = Clients(np.zeros(replicas), np.zeros((p, replicas)), alpha, e)
    for _ in range(steps):
        run.simultaneous_step(lambda: rng.standard_normal(replicas))
    gamma, phi = roots(p, alpha, e)
    geometric = [
        (a * b - (a * b) ** steps) / (1 - a * b) for a, b in ((gamma, gamma), (phi, phi), (gamma, phi))
    ]
    sums = geometric[0] + geometric[1] - 2 * geometric[2]
    expected = (p * alpha * e / (gamma - phi)) ** 2 * sums / p
    assert run.center.weight.var() == pytest.approx(expected, rel=0.05)


@pytest.mark.paper("EASGD section 3")
@pytest.mark.parametrize("p", [2, 4, 12])
@pytest.mark.parametrize("e", [0.05, 0.5])
def test_synchronous_averaging_is_stable_up_to_its_bound_only(p, e):
    """Just below alpha = 2 (2 - e) / (p (2 - e) + 2) everything decays, just above it grows."""
    bound = greatest_alpha(p, e)
    radii = {}
    for factor in (0.98, 1.02):
        run = on_a_basis(p, factor * bound, e)
        run.simultaneous_step()
        radii[factor] = spectral_radius(run.state())
    assert radii[0.98] < 1 < radii[1.02]


@pytest.mark.paper("EASGD section 4")
@pytest.mark.parametrize("p", [1, 3, 8])
@pytest.mark.parametrize("e", [0.1, 1.0, 1.9])
def test_the_round_robin_scheme_is_stable_up_to_its_bound(p, e):
    """alpha <= (4 - 2 e) / (4 - e), whatever the number of clients; for odd numbers no further."""
    bound = (4 - 2 * e) / (4 - e)
    radii = {}
    for factor in (0.99, 1.01):
        run = on_a_basis(p, min(1.0, factor * bound), e)
        for client in range(p):
            run.asynchronous_step(client)
        radii[factor] = spectral_radius(run.state())
    assert radii[0.99] < 1
    if p % 2:
        assert radii[1.01] > 1


@pytest.mark.paper("EASGD section 4")
def test_with_the_exchange_after_the_step_no_order_and_no_number_of_clients_diverges():
    """With e = 1.9 and alpha = 0.9 the paper's order of gradient and exchange diverges; ours does not."""
    p, alpha, e = 3, 0.9, 1.9
    before, after = on_a_basis(p, alpha, e), on_a_basis(p, alpha, e)
    for client in range(p):
        before.asynchronous_step(client)
        after.weights[client] *= 1 - e
        after.exchange(client)
    assert spectral_radius(before.state()) > 1 > spectral_radius(after.state())


@pytest.mark.paper("EASGD section 4")
@REPEATABLE
@given(data=st.data(), p=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_exchanges_in_any_order_never_move_away_from_the_optimum(data, p, seed):
    """Each exchange is a symmetric, doubly stochastic map and each local run a contraction: the Euclidean
    norm of weights and center cannot grow, for any alpha in [0, 1], order and number of clients."""
    alpha = data.draw(st.floats(0, 1))
    order = data.draw(st.lists(st.integers(0, p - 1), min_size=1, max_size=40))
    rng = np.random.default_rng(seed)
    run = Clients(rng.normal(size=5), rng.normal(size=(p, 5)), alpha, 0.0)
    norm = np.linalg.norm(run.state())
    for client in order:
        run.weights[client] *= rng.uniform(-1, 1, size=5)  # steps on quadratics of any curvature
        run.exchange(client)
        now = np.linalg.norm(run.state())
        assert now <= norm * (1 + 1e-12)
        norm = now


@pytest.mark.paper("EASGD section 4")
def test_differences_to_stale_centers_diverge_where_whole_exchanges_do_not():
    """The original code pushes alpha (w - the center that was read): with 12 readers at once, alpha = 0.3
    diverges. Exchanges that read and update as one do not."""
    p, alpha, e = 12, 0.3, 0.05
    whole = on_a_basis(p, alpha, e)
    center, *weights = np.eye(p + 1)
    for client in range(p):
        whole.weights[client] *= 1 - e
        whole.exchange(client)
    stepped = [(1 - e) * weight for weight in weights]
    moves = [alpha * (weight - center) for weight in stepped]
    stale = np.stack([center + sum(moves), *(weight - move for weight, move in zip(stepped, moves))])
    assert spectral_radius(whole.state()) < 1 < spectral_radius(stale)


@pytest.mark.paper("EASGD section 3.1")
@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-11), ("float32", 1e-5)])
@pytest.mark.parametrize("tau", [1, 4, 64])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_one_client_follows_the_powers_of_its_matrix(tau, alpha, dtype, rtol):
    """(w, c)_k = M^k (w, c)_0 with M = [[q (1 - a), a], [q a, 1 - a]] and q = (1 - e)^tau.

    The exchange comes after tau steps. What float32 has lost of small numbers by then is below 1e-6.
    """
    e, a, exchanges = 0.1, alpha, 20
    q = (1 - e) ** tau
    start = np.array([2.0, -1.0])
    matrix = np.array([[q * (1 - a), a], [q * a, 1 - a]])
    center = Center(Elastic(alpha).spec(), np.array([-1.0], dtype))
    weight = np.array([2.0], dtype)
    for k in range(1, exchanges + 1):
        for _ in range(tau):
            weight -= np.dtype(dtype).type(e) * weight
        elastic_step(weight, center.exchange(0, weight.copy()), alpha)
        expected = np.linalg.matrix_power(matrix, k) @ start
        atol = 1e-6 if dtype == "float32" else 0.0
        np.testing.assert_allclose([weight[0], center.weight[0]], expected, rtol=rtol, atol=atol)


@pytest.mark.paper("EASGD section 3.1")
def test_the_rate_of_one_client_is_that_of_its_matrix():
    """e = 0.1, tau = 4, alpha = 0.3: a factor of 0.8508 for each exchange; and the paper's own order."""
    ours = on_a_basis(1, 0.3, 0.1)
    ours.weights[0] *= (1 - 0.1) ** 4
    ours.exchange(0)
    assert spectral_radius(ours.state()) == pytest.approx(0.8508, abs=5e-5)
    papers = on_a_basis(1, 0.3, 0.1)
    papers.asynchronous_step(0)
    assert papers.state().tolist() == [[0.7, 0.3], [0.3, pytest.approx(1 - 0.1 - 0.3)]]


@pytest.mark.paper("MXNET-MPI equations 2 and 3")
def test_both_sides_use_the_center_before_the_update():
    """alpha = 1 swaps parameters and center; with a pull after the push both would be the parameters."""
    run = Clients([3.0, -1.0], [[0.5, 8.0]], 1.0, 0.0)
    run.exchange(0)
    assert run.state().tolist() == [[0.5, 8.0], [3.0, -1.0]]


@pytest.mark.paper("MXNET-MPI figure 8")
def test_a_sum_over_ranks_is_not_what_the_server_expects():
    """Parameters added up over two ranks, as the figure's push would, move the center away from both."""
    center = Center(Elastic(0.9).spec(), np.array([1.0]))
    center.exchange(0, np.array([1.0]))
    assert center.weight[0] == 1.0
    center.exchange(0, np.array([1.0]) + np.array([1.0]))
    assert center.weight[0] == pytest.approx(1.9)
