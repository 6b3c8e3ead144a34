"""Training in one of the modes, in virtual time: who computes, sums, sends and waits, and for how long.

The unit of time is the mean computation of one step of one worker. All updates, on servers and in clients,
are those of the package. This file must not know the network that is trained, nor how modes are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from support.center import Center

from kvstore_mpi.esgd.client import adopt, elastic_step
from kvstore_mpi.esgd.stagger import exchange_offset
from kvstore_mpi.server_optimizers import Live, OptimizerSpec, build, hyper_for

from .convergence_events import Gate, Link, VirtualTime

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from .convergence_events import Process

    Array = np.ndarray[Any, Any]
    Answer = Generator[float | Gate, None, Array]


@dataclass(frozen=True)
class Costs:
    """The cost model, in steps of computation.

    Attributes:
        transfer: The whole model through the servers' links, one way: they carry one client at a time in
            each direction, and all clients share them.
        allreduce: The whole model once through the links inside a client. Summing over m ranks and
            returning the result takes 2 (m - 1) / m of it, to the leader only or back from it half of that.
        jitter: Standard deviation of the logarithm of a worker's time; a client waits for its slowest.
        slow_worker: Factor on the computation of worker 0.
    """

    transfer: float
    allreduce: float
    jitter: float = 0.1
    slow_worker: float = 1.0


@dataclass(frozen=True)
class Mode:
    """How workers form clients, and what the clients do with the servers.

    Attributes:
        name: For tables.
        clients: Number of clients.
        server: The servers' optimizer: of gradients, which are then pushed at every step, or of parameters;
            ``None`` without servers.
        synchronous: An update of the servers waits for all clients.
        local: The clients' own optimizer; ``None`` where gradients are pushed.
        interval: Steps from one exchange of parameters to the next.
        alpha: Moving rate of the clients' elastic step; ``None`` where they adopt the new center.
    """

    name: str
    clients: int
    server: OptimizerSpec | None
    synchronous: bool = False
    local: OptimizerSpec | None = None
    interval: int = 1
    alpha: float | None = None


class Learner(Protocol):
    """What is trained."""

    def gradient(self, workers: Sequence[int], params: Array) -> Array:
        """Return the mean over the next batches of some workers."""
        ...


def sgd(lr: float, momentum: float, *, sum_of: int = 1) -> OptimizerSpec:
    """Describe SGD on the mean of so many gradients, given their sum."""
    live = Live(lr=lr, rescale_grad=1.0 / sum_of)
    return OptimizerSpec(name="sgd", live=live, params={"momentum": momentum})


class Training:
    """One run."""

    def __init__(
        self, mode: Mode, costs: Costs, learner: Learner, initial: Array, *, num_workers: int, seed: int
    ) -> None:
        """Start all clients at time 0 from the same parameters."""
        self._mode, self._costs, self._learner = mode, costs, learner
        self._time = VirtualTime()
        self._inbound, self._outbound, self._round = Link(), Link(), Gate()
        self._pushed: dict[int, Array] = {}
        self._reply: Array = initial
        self._center = None if mode.server is None else Center(mode.server, initial)
        self._ranks = num_workers // mode.clients
        self._jitter = [np.random.default_rng([seed, 3, worker]) for worker in range(num_workers)]
        self.params = [initial.copy() for _ in range(mode.clients)]
        self.steps = [0] * mode.clients
        for client in range(mode.clients):
            train = self._push_gradients if mode.local is None else self._train_locally
            self._time.start(train(client))

    def run(self, until: float) -> Array:
        """Train up to a time; return the center then, or the client's parameters without servers."""
        self._time.run(until)
        return self.params[0] if self._center is None else self._center.weight

    @property
    def now(self) -> float:
        """The time."""
        return self._time.now

    def _compute(self, client: int) -> float:
        """Return how long the slowest worker of a client takes for a step."""
        sigma = self._costs.jitter
        times = np.exp(
            [sigma * self._jitter[w].standard_normal() - sigma**2 / 2 for w in self._workers(client)]
        )
        if client == 0:
            times[0] *= self._costs.slow_worker
        return float(times.max())

    def _workers(self, client: int) -> range:
        return range(client * self._ranks, (client + 1) * self._ranks)

    def _half_allreduce(self) -> float:
        return (self._ranks - 1) / self._ranks * self._costs.allreduce

    def _push_gradients(self, client: int) -> Process:
        """Compute, sum to the leader, push, update on the servers, pull, broadcast."""
        assert self._center is not None
        weight = self._center.give(client)
        while True:
            yield self._compute(client)
            gradient = self._learner.gradient(self._workers(client), weight)
            yield self._half_allreduce()
            weight = yield from self._exchange(client, gradient)
            yield self._half_allreduce()
            self.params[client] = weight
            self.steps[client] += 1

    def _train_locally(self, client: int) -> Process:
        """Compute, sum over the ranks, update locally; every so often exchange parameters."""
        mode = self._mode
        assert mode.local is not None
        weight, rule = self.params[client], build(mode.local)
        state = rule.init(weight)
        offset = 0 if mode.synchronous else exchange_offset(client, mode.clients, 0, 1, mode.interval)
        while True:
            yield self._compute(client)
            gradient = self._learner.gradient(self._workers(client), weight)
            yield 2 * self._half_allreduce()
            self.steps[client] = step = self.steps[client] + 1
            rule.update(weight, gradient, state, hyper_for(mode.local.live, 0, step), step)
            if self._center is not None and step % mode.interval == offset:
                center = yield from self._exchange(client, weight.copy())
                yield self._half_allreduce()
                if mode.alpha is None:
                    adopt(weight, center)
                else:
                    elastic_step(weight, center, mode.alpha)

    def _exchange(self, client: int, pushed: Array) -> Answer:
        """Push through the servers' inbound link, be updated, be answered through their outbound link."""
        assert self._center is not None
        yield self._inbound.delay(self._time.now, self._costs.transfer)
        if self._mode.synchronous:
            reply = yield from self._join_round(client, pushed)
        else:
            reply = self._center.exchange(client, pushed)
        yield self._outbound.delay(self._time.now, self._costs.transfer)
        return reply

    def _join_round(self, client: int, pushed: Array) -> Answer:
        """Wait until all clients have pushed; the last one updates."""
        assert self._center is not None
        self._pushed[client] = pushed
        if len(self._pushed) == self._mode.clients:
            self._reply = self._center.round(self._pushed)
            self._pushed = {}
            self._time.open(self._round)
            yield 0.0  # behind those that came before
        else:
            yield self._round
        return self._reply.copy()
