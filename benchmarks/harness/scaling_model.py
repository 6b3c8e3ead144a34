"""Processor and link time of a host by hosts, slices and bytes: fitted and predicted. Pure."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


class Job(NamedTuple):
    """A job of one worker and one server on each host.

    Attributes:
        hosts: Their number.
        slices: Of the model; each goes from each worker to one server and comes back.
        num_bytes: Of the model.
        seconds: Of an iteration.
    """

    hosts: int
    slices: int
    num_bytes: int
    seconds: float

    @property
    def amounts(self) -> tuple[float, float, float]:
        """What a host does in an iteration: slices and bytes with other hosts, and seconds.

        A worker's slices go to the other hosts' servers, but for its own server's share; a server gets as
        much from the other workers.
        """
        others = (self.hosts - 1) / self.hosts
        return self.slices * others, self.num_bytes * others, self.seconds


class Cost(NamedTuple):
    """Processor seconds of a host.

    Attributes:
        slice_s: For each slice that crosses, pushed and answered, worker and server together.
        byte_s: For each byte of these.
        second_s: For each second, whatever is sent.
    """

    slice_s: float
    byte_s: float
    second_s: float

    def seconds(self, job: Job) -> float:
        """Return the processor time of a host in an iteration."""
        return sum(cost * amount for cost, amount in zip(self, job.amounts))


def fit(jobs: Sequence[Job], measured_s: Sequence[float]) -> Cost:
    """Return the costs, none of them negative, that have the least squares of relative errors."""
    rows = np.array([job.amounts for job in jobs]) / np.array(measured_s)[:, None]
    best, least = Cost(0.0, 0.0, 0.0), float("inf")
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            found = np.linalg.lstsq(rows[:, chosen], np.ones(len(jobs)), rcond=None)[0]
            error = float(((rows[:, chosen] @ found - 1) ** 2).sum())
            if (found >= 0).all() and error < least:
                costs = [0.0, 0.0, 0.0]
                for place, cost in zip(chosen, found):
                    costs[place] = float(cost)
                best, least = Cost(*costs), error
    return best


def link_seconds(job: Job, bytes_per_s: float) -> float:
    """Return how long a host's link is busy in either direction, with pushes and answers."""
    return 2 * job.amounts[1] / bytes_per_s
