"""A parameter server in its smallest form: one key, one rule, what each client was given, and no messages.

The oracle for servers that exchange parameters, and the servers of simulated training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.server_optimizers import Origin, build, hyper_for, pseudo_gradient, terms_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvstore_mpi.server_optimizers import OptimizerSpec

    Array = np.ndarray[Any, Any]


class Center:
    """A weight, or center variable, that clients push to."""

    def __init__(self, spec: OptimizerSpec, initial: Array) -> None:
        """Start from a copy of a flat array."""
        self.weight = initial.copy()
        self.version = 0
        self._hyper = spec.hyper
        self._terms = terms_of(spec)
        self._rule = build(spec).bind(0, initial.shape)
        self._state = self._rule.init(self.weight)
        self._given: dict[int, Array] = {}
        self._versions: dict[int, int] = {}

    def give(self, client: int) -> Array:
        """Return the weight as it is, for the client's own use."""
        self._given[client] = self.weight.copy()
        self._versions[client] = self.version
        return self._given[client].copy()

    def exchange(self, client: int, pushed: Array) -> Array:
        """Update with what one client pushed; return what it is sent."""
        base = self._given.get(client)
        origin = Origin(1, self.version - self._versions.get(client, self.version), base)
        return self._exchange({client: pushed}, origin)

    def round(self, pushed: Mapping[int, Array]) -> Array:
        """Update with what several clients pushed; return what all of them are sent."""
        return self._exchange(pushed, Origin(len(pushed)))

    def _exchange(self, pushed: Mapping[int, Array], origin: Origin) -> Array:
        arrays = [pushed[client] for client in sorted(pushed)]
        before = self.weight.copy()
        working = np.float32 if before.dtype == np.float16 else before.dtype
        gradient = np.zeros(before.size, working)
        if self._terms.params:
            pseudo_gradient(gradient, before, arrays)
        else:
            for array in arrays:
                gradient += array
        self.version += 1
        hyper = hyper_for(self._hyper, 0, self.version)
        self._rule.update(self.weight, gradient, self._state, hyper, self.version, origin=origin)
        reply = before if self._terms.before else self.weight.copy()
        for client in pushed:
            self._given[client] = reply
            self._versions[client] = self.version
        return reply.copy()
