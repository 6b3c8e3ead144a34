"""What a simulated job is to do: everything that a seed decides, but for who runs when.

This file must not know how a job is simulated.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvstore_mpi.records import Key, Role, Topology
from kvstore_mpi.transport.memory import Faults

Array = np.ndarray[Any, Any]

LAYOUTS = (
    (1, 1, 1),
    (2, 1, 1),
    (2, 1, 2),
    (1, 2, 1),
    (2, 2, 1),
    (1, 2, 0),
    (1, 3, 0),
    (3, 1, 2),
    (2, 2, 2),
)
"""Clients, workers of each, servers."""

SLICE_ELEMENTS = 4

SIZES = (0, 1, 4, 9)
"""Elements of a key."""

MOST_PUSHES = 22
"""Pushes of all workers on a key: a float32 has 24 bits, for these and the initial value."""

KINDS = ("push", "pushpull", "push pull")
"""What a client does with a key in one round."""


@dataclass(frozen=True)
class KeyPlan:
    """A key.

    Attributes:
        kinds: For each client and round one of ``KINDS``.
        partitions: Of a table, into how many pieces it is cut at most; 0 for a dense key.
        grows: The rows of the table come into being when they are pushed.
    """

    name: Key
    size: int
    dtype: str
    priority: int
    kinds: tuple[tuple[str, ...], ...]
    partitions: int
    grows: bool


@dataclass(frozen=True)
class Plan:
    """A job, its training and its misfortunes.

    Attributes:
        updates: The servers have an optimizer, so that pushes add up; else the value is a round's sum.
        looks_back: In the end all meet at a barrier and pull; else each leaves when it is done.
        breaks: How many connections break.
        victim: What is killed: a worker, and with it its client, a server or the scheduler.
        victim_index: Which client or server.
        death: When, in seconds after all have joined.
    """

    seed: int
    topology: Topology
    mode: str
    updates: bool
    rounds: int
    keys: tuple[KeyPlan, ...]
    looks_back: bool
    faults: Faults
    breaks: int
    victim: Role | None
    victim_index: int
    death: float


def plan_of(seed: int, *, crash: bool) -> Plan:
    """Return the plan of a seed; with ``crash`` something is killed, on a network that loses little."""
    choose = random.Random(f"plan {seed}")
    clients, per_client, servers = choose.choice([each for each in LAYOUTS if each[2] or not crash])
    mode = choose.choice(["sync", "sync", "async"]) if servers else "sync"
    updates = mode == "async" or (servers > 0 and choose.choice([True, False]))
    rounds = choose.randint(1, min(3, MOST_PUSHES // (clients * per_client)))
    victim = choose.choice([Role.WORKER, Role.WORKER, Role.SERVER, Role.SCHEDULER]) if crash else None
    return Plan(
        seed=seed,
        topology=Topology(clients, clients * per_client, servers),
        mode=mode,
        updates=updates,
        rounds=rounds,
        keys=tuple(_key(choose, i, clients, rounds, updates=updates) for i in range(choose.randint(1, 3))),
        looks_back=choose.choice([True, False]) and not crash,
        faults=_faults(choose, most_loss=0.02 if crash else 0.15),
        breaks=choose.choice([0, 0, 1, 4]),
        victim=victim,
        victim_index=choose.randrange(servers if victim is Role.SERVER else clients),
        death=choose.uniform(0.0, 0.5),
    )


def _key(choose: random.Random, number: int, clients: int, rounds: int, *, updates: bool) -> KeyPlan:
    partitions = choose.choice([0, 0, 1, 3])
    return KeyPlan(
        partitions=partitions,
        grows=partitions > 0 and updates and (number + rounds) % 2 == 0,
        name=number if choose.choice([True, False]) else f"key{number}",
        size=choose.choice(SIZES[1:] if partitions else SIZES),
        dtype=choose.choice(["float32", "float64", "float32" if updates else "int64"]),
        priority=choose.choice([0, -number, number]),
        kinds=tuple(tuple(choose.choice(KINDS) for _ in range(rounds)) for _ in range(clients)),
    )


def _faults(choose: random.Random, *, most_loss: float) -> Faults:
    """Return a mixture of faults of which each may be absent."""
    return Faults(
        loss=choose.choice([0.0, 0.0, 0.02, most_loss]),
        duplication=choose.choice([0.0, 0.0, 0.3]),
        delay=choose.choice([0.0, 0.001, 0.05]),
        reordering=choose.choice([0.0, 0.0, 0.3]),
    )


class Values:
    """The values that a key may have under a plan.

    Each worker pushes a power of two of its own in each round, so that the bits of a value tell exactly
    which pushes are in it, how often and in which order they came.
    """

    def __init__(self, plan: Plan, key: KeyPlan) -> None:
        """Compute what each client pushes."""
        self._plan = plan
        # Elements differ, so that one in the wrong place shows.
        self._signs: Array = np.array([1, -1, -1, 1, -1] * key.size, np.int64)[: key.size]
        self._initial = 0.5 if key.dtype.startswith("float") else 7
        pushes = [
            [
                sum(1 << (rank * plan.rounds + i) for rank in plan.topology.members_of(c))
                for i in range(plan.rounds)
            ]
            for c in range(plan.topology.num_clients)
        ]
        self._rounds = [sum(by_client) for by_client in zip(*pushes)]
        self._prefixes = [np.cumsum([0, *of_client]) for of_client in pushes]

    def initial(self) -> Array:
        """Return the value that rank 0 gives."""
        value: Array = self._initial * np.abs(self._signs)
        return value

    def pushed(self, rank: int, number: int) -> Array:
        """Return what a worker pushes in a round."""
        bit: Array = self._signs * (1 << (rank * self._plan.rounds + number))
        return bit

    def round_sum(self, number: int) -> Array:
        """Return the sum over all workers of a round."""
        value: Array = self._signs * self._rounds[number]
        return value

    def counts(self, value: Array) -> list[Array]:
        """Return for each client how many of its pushes are in each element, given that pushes add up.

        Raises:
            AssertionError: The value is none that pushes in order, each once, can make.
        """
        total = (self._initial - value) * self._signs
        left = total.astype(np.int64)
        counts = []
        for prefixes in self._prefixes:
            part = left & prefixes[-1]
            counts.append(np.searchsorted(prefixes, part))
            left -= prefixes[counts[-1]]
        if np.any(left) or np.any(total != total.astype(np.int64)):
            raise AssertionError(f"value {value} has pushes missing, repeated or out of order")
        return counts
