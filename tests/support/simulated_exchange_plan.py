"""What a simulated job of exchanges is to do: everything that a seed decides, but for who runs when.

This file must not know how a job is simulated.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvstore_mpi.esgd import Elastic, Outer
from kvstore_mpi.records import Topology
from kvstore_mpi.transport.memory import Faults

Array = np.ndarray[Any, Any]

LAYOUTS = ((1, 1, 1), (2, 1, 1), (2, 2, 2), (3, 1, 2), (3, 2, 1), (4, 1, 3))
"""Clients, workers of each, servers."""

MODES = {
    "": ("sync", "quorum", "async", "async"),
    "client": ("quorum", "async"),
    "return": ("quorum", "quorum", "async"),
    "late": ("quorum", "async"),
    "server": ("async",),
}
"""Of the store, by what happens."""

SLICE_ELEMENTS = 4
SIZES = (1, 4, 9)


@dataclass(frozen=True)
class Plan:
    """A job and its misfortunes.

    Attributes:
        mode: ``sync`` or ``async``.
        elastic: The rule is Elastic; else the clients' mean is adopted in part.
        rate: alpha, or the outer learning rate.
        quorum: Clients that close a round, 0 for all.
        quorum_wait: Seconds.
        compress: Bits.
        leaders: ``one`` or ``all``.
        rounds: Exchanges of each client on each key.
        sizes: Elements of the keys.
        victim: The client that is killed, if any.
        returns: It is started again.
        late: A client that the others begin without, and by how much it is late in seconds.
        death: When, in seconds after all have their keys.
        server_deaths: Servers that are killed and started again, and when, likewise.
        snapshots: Servers save their shards; else who comes back first seeds them.
    """

    seed: int
    topology: Topology
    mode: str
    elastic: bool
    rate: float
    quorum: int
    quorum_wait: float
    compress: int
    leaders: str
    rounds: int
    sizes: tuple[int, ...]
    faults: Faults
    breaks: int
    victim: int | None
    returns: bool
    late: tuple[int, float] | None
    death: float
    server_deaths: tuple[tuple[int, float], ...]
    snapshots: bool

    @property
    def looks_back(self) -> bool:
        """In the end all meet at a barrier and pull.

        Not with a quorum: who waits at the barrier does not push, so that a late client may have none.
        """
        return self.victim is None and self.late is None and not self.quorum

    @property
    def spec(self) -> dict[str, Any]:
        """The server optimizer."""
        rule = Elastic(self.rate) if self.elastic else Outer("sgd", learning_rate=self.rate)
        terms = {"quorum": self.quorum, "quorum_wait": self.quorum_wait, "compress": self.compress}
        return {**rule.spec().to_dict(), **terms}


def plan_of(seed: int, *, crash: str = "") -> Plan:
    """Return the plan of a seed; ``crash`` tells who is killed: ``client``, ``server`` or nobody.

    ``return`` is a client that is started again, ``late`` one that joins when the others train.
    """
    choose = random.Random(f"exchange {seed}")
    layouts = [each for each in LAYOUTS if each[0] > 1 or crash not in ("client", "return", "late")]
    clients, per_client, servers = choose.choice(layouts)
    mode = choose.choice(MODES[crash])
    most = 1.0 if mode == "async" else 2.0 / (clients + 1)
    elastic = choose.choice([True, True, False])
    return Plan(
        seed=seed,
        topology=Topology(clients, clients * per_client, servers),
        mode="async" if mode == "async" else "sync",
        elastic=elastic,
        rate=choose.choice([0.0, most, choose.uniform(0.0, most)]) if elastic else choose.uniform(0.1, 1.0),
        quorum=choose.randint(1, clients) if mode == "quorum" else 0,
        quorum_wait=choose.choice([0.0, 0.1, 1.0]) if mode == "quorum" else 0.0,
        compress=choose.choice([0, 0, 8, 4]),
        leaders=choose.choice(["one", "all"] if crash != "server" else ["one"]),
        rounds=choose.randint(1, 6),
        sizes=tuple(choose.choice(SIZES) for _ in range(choose.randint(1, 3))),
        faults=Faults(
            loss=choose.choice([0.0, 0.02, 0.02 if crash else 0.15]),
            duplication=choose.choice([0.0, 0.3]),
            delay=choose.choice([0.0, 0.001, 0.05]),
            reordering=choose.choice([0.0, 0.3]),
        ),
        breaks=choose.choice([0, 0, 1, 4]),
        victim=choose.randrange(clients) if crash in ("client", "return") else None,
        returns=crash == "return",
        late=(choose.randrange(1, clients), choose.uniform(0.0, 3.0)) if crash == "late" else None,
        death=choose.uniform(0.0, 0.5),
        server_deaths=tuple(
            (choose.randrange(servers), choose.choice([0.05, 0.5, 2.0]) * choose.uniform(0.0, 1.0))
            for _ in range(choose.randint(1, 3) if crash == "server" else 0)
        ),
        snapshots=crash == "server" and choose.choice([True, False]),
    )


def initial(number: int, size: int) -> Array:
    """Return the value that rank 0 gives a key."""
    values: Array = np.random.RandomState([7, number]).normal(size=size).astype(np.float32)
    return values
