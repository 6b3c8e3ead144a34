"""Time and processor time of a step by workers, servers, slices and bytes: fitted and predicted. Pure."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ITEM_BYTES = 4


class Case(NamedTuple):
    """Keys that are pushed and pulled together.

    Attributes:
        keys: Their number.
        elements: Of each, float32.
        times: How many round trips are measured.
    """

    keys: int
    elements: int
    times: int

    @classmethod
    def of(cls, text: str) -> Case:
        """Read what ``str`` gives."""
        return cls(*map(int, text.split("x")))

    def __str__(self) -> str:
        """Return it as a word."""
        return "x".join(map(str, self))


class Step(NamedTuple):
    """One step of a job in which every worker is a client.

    Attributes:
        workers: Their number.
        servers: Their number.
        slices: Of the model; each worker pushes all of them, and gets as many answers.
        num_bytes: Of the model.
        messages: That a worker sends and gets.
    """

    workers: int
    servers: int
    slices: int
    num_bytes: int
    messages: float

    @property
    def of_worker(self) -> tuple[float, float, float, float]:
        """What a worker does: once a step, messages, slices, and bytes, each both ways."""
        return 1.0, self.messages, float(self.slices), float(self.num_bytes)

    @property
    def of_server(self) -> tuple[float, float, float, float]:
        """The same of a server, if all have as much to do."""
        share = self.workers / self.servers
        return 1.0, share * self.messages, share * self.slices, share * self.num_bytes

    @property
    def unevenness(self) -> float:
        """How many times as much the busiest server has to do as the mean: slices are not divided."""
        return -(-self.slices // self.servers) / (self.slices / self.servers)


class Cost(NamedTuple):
    """Processor seconds of one process.

    Attributes:
        step_s: Once in a step.
        message_s: For each message that it sends or gets.
        slice_s: For each slice, pushed and answered.
        byte_s: For each byte of these.
    """

    step_s: float
    message_s: float
    slice_s: float
    byte_s: float

    def seconds(self, amounts: Sequence[float]) -> float:
        """Return the processor time for what there is to do."""
        return sum(cost * amount for cost, amount in zip(self, amounts))


class Model(NamedTuple):
    """All that is fitted.

    Attributes:
        worker: Of the busiest thread of a worker.
        rest: Of its other threads together.
        server: Of a server, which has one thread that works.
        wait_s: What a step takes besides, whatever it sends: processes wake each other.
    """

    worker: Cost
    rest: Cost
    server: Cost
    wait_s: float

    def processors(self, step: Step) -> float:
        """Return the processor time of all processes in a step."""
        each = self.worker.seconds(step.of_worker) + self.rest.seconds(step.of_worker)
        return step.workers * each + step.servers * self.server.seconds(step.of_server)

    def threads(self, step: Step) -> dict[str, float]:
        """Return the processor time of each kind of thread that can be the limit."""
        return {
            "worker": self.worker.seconds(step.of_worker),
            "server": self.server.seconds(step.of_server),
        }

    def seconds(self, step: Step, cores: int) -> float:
        """Return how long a step takes where all processes share some cores, and links are no limit."""
        return self.wait_s + max(self.processors(step) / cores, *self.threads(step).values())


def fit(amounts: Sequence[Sequence[float]], measured_s: Sequence[float]) -> Cost:
    """Return the costs, none of them negative, that have the least squares of relative errors."""
    rows = np.array(amounts, float) / np.array(measured_s)[:, None]
    kinds = rows.shape[1]
    best, least = Cost(0.0, 0.0, 0.0, 0.0), float("inf")
    for count in range(1, kinds + 1):
        for chosen in combinations(range(kinds), count):
            found = np.linalg.lstsq(rows[:, chosen], np.ones(len(rows)), rcond=None)[0]
            error = float(((rows[:, chosen] @ found - 1) ** 2).sum())
            if (found >= 0).all() and error < least:
                costs = dict(zip(chosen, map(float, found)))
                best, least = Cost(*(costs.get(place, 0.0) for place in range(kinds))), error
    return best


def fitted(runs: Sequence[Mapping[str, float]], cores: int) -> Model:
    """Return the model of some runs, each with the fields of ``Step`` and what was measured of it."""
    steps = [step_of(run) for run in runs]
    of_workers, of_servers = [each.of_worker for each in steps], [each.of_server for each in steps]
    model = Model(
        fit(of_workers, [run["thread_s"] for run in runs]),
        fit(of_workers, [run["worker_s"] - run["thread_s"] for run in runs]),
        fit(of_servers, [run["server_s"] for run in runs]),
        0.0,
    )
    # Of relative errors again: what is left of each step, as a share of it.
    shares = [1 / run["seconds"] for run in runs]
    left = [1 - model.seconds(step, cores) / run["seconds"] for step, run in zip(steps, runs)]
    wait = sum(share * each for share, each in zip(shares, left)) / sum(share * share for share in shares)
    return model._replace(wait_s=max(0.0, wait))


def step_of(run: Mapping[str, float]) -> Step:
    """Return what a run did."""
    return Step(
        int(run["workers"]), int(run["servers"]), int(run["slices"]), int(run["num_bytes"]), run["messages"]
    )


def slices_of(elements: Sequence[int], slice_elements: int) -> int:
    """Return into how many slices tensors are cut."""
    return sum(-(-each // slice_elements) for each in elements)


def link_seconds(num_bytes: int, hosts: int, bytes_per_s: float) -> float:
    """Return how long a host's link is busy in either direction.

    With a worker and a server on each host, all that is pushed and answered crosses but a host's own share,
    and a server gets of the others what its worker gives to them.
    """
    return 2 * num_bytes * (hosts - 1) / hosts / bytes_per_s
