"""What the user of a worker calls about optimizers: give one to the servers, save and load its states.

The other side is ``optimizer_requests.py``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import MismatchError, UnsupportedError
from kvstore_mpi.esgd.terms import check_terms
from kvstore_mpi.records import Mode, NodeId
from kvstore_mpi.server_optimizers import OptimizerSpec, terms_of
from kvstore_mpi.values.coding import name_of
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.message import Message
from kvstore_mpi.worker.state_parts import assemble, parts_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.records import Key, Slice
    from kvstore_mpi.worker.records import KeyState
    from kvstore_mpi.worker.requests import Requests
    from kvstore_mpi.worker.state_parts import KeyStates

log = logging.getLogger("kvstore_mpi.worker")


class OptimizerCalls:
    """The calls of one worker; each waits for the answers of all servers."""

    def __init__(self, rank: int, num_clients: int, servers: Sequence[NodeId], requests: Requests) -> None:
        """Start without an optimizer.

        Args:
            rank: Of this worker; rank 0's optimizers count.
            num_clients: How many clients the job has.
            servers: Who is asked.
            requests: Asks them.
        """
        self._rank = rank
        self._num_clients = num_clients
        self._servers = servers
        self._requests = requests
        self._given: dict[int, int] = {}  # how often this worker has given a store an optimizer

    def give(self, store: int, mode: Mode, spec: dict[str, Any]) -> dict[str, Any]:
        """Give a store an optimizer, or wait for rank 0's.

        Returns:
            The description of the optimizer that counts.

        Raises:
            UnsupportedError: There are no servers.
            MismatchError: Rank 0 gave the store one of another kind, or with another ``compress``.
        """
        if not self._servers:
            raise UnsupportedError(
                f"there are no servers to give the optimizer {spec.get('name')!r} to; start the job with "
                "mpilaunch --servers 1 or more"
            )
        # Read before anybody is asked: a description with a mistake fails in the user's call, and not on a
        # server, whose end would be the job's.
        own = OptimizerSpec.from_dict(spec)
        warnings = check_terms(own, mode, self._num_clients)
        given = self._given[store] = self._given.get(store, 0) + 1
        first = given == 1
        if self._rank == 0:
            for warning in warnings:
                log.warning(warning)
            # A rank 0 that was started again gives its script's optimizer, but the store goes on with the
            # one that it has: its states and its learning rate belong to where training is, not to where it
            # began.
            self._ask("set_optimizer", lambda number: m.SetOptimizer(number, store, spec, first, given))
        # Before it pushes: a push could be updated without a rule, be cut into slices that the rule does
        # not take, be gradients for a rule of parameters, or travel in a form that nobody else uses. In a
        # synchronous store with a rule for slices nobody waits for another one later: who asks may be told
        # of the one before it, and no round is complete without rank 0's client, which gives it first.
        elif first or mode is Mode.ASYNC or terms_of(own).whole or terms_of(own).params:
            # Any server's answer will do: all have it from rank 0, and none answers before it has it.
            told = self._ask(
                "rank 0's set_optimizer", lambda number: m.AwaitOptimizer(number, store, given)
            )
            spec = told[0] or spec
        self._compare(own, OptimizerSpec.from_dict(spec), first=first)
        return spec

    def _compare(self, own: OptimizerSpec, given: OptimizerSpec, *, first: bool) -> None:
        # Numbers may differ, rank 0's count. But what is pushed is made here: gradients added to a center,
        # or parameters subtracted from weights, look like training that does not converge.
        if terms_of(given).params != terms_of(own).params:
            raise MismatchError(
                f"worker {self._rank} gave the store the optimizer {own.name!r}, and rank 0 "
                f"{given.name!r}: one takes gradients, the other parameters; all workers must give the "
                "same one"
            )
        if first and given.compress != own.compress and not terms_of(own).params:
            raise MismatchError(
                f"worker {self._rank} gave the store the optimizer {own.name!r} with compress="
                f"{name_of(own.compress)}, and it has one with compress={name_of(given.compress)}, of rank "
                "0 or of the job that is resumed; all must give the same"
            )
        if given != own and terms_of(own).params:
            text = "worker %d: %s of this worker is not rank 0's %s, which counts"
            log.warning(text, self._rank, _told(own), _told(given))

    def states(
        self, store: int, keys: list[int] | None = None, *, arrays: bool = True
    ) -> dict[Key, KeyStates]:
        """Return the states of a store, or of keys by their numbers; without arrays their counts alone."""
        answers = self._ask("optimizer states", lambda number: m.GetStates(number, store, keys, arrays))
        # A server that has nothing of the store answers as well, with no part.
        return assemble(part for answer in answers for part in answer or ())

    def load_states(
        self, store: int, homes: list[tuple[KeyState, NodeId, Slice]], states: dict[Key, Any]
    ) -> None:
        """Give servers the states of a store; keys that it does not have are left out.

        Args:
            store: Number of the store.
            homes: What the servers update together, where.
            states: By key.
        """
        # For all servers before the first is asked: states that do not fit must not leave one server with
        # new ones and the next with old ones.
        messages = {server: parts_for(server, homes, states) for server in self._servers}
        self._requests.ask(
            "load of optimizer states",
            self._servers,
            lambda number, server: [
                (m.PutStates(number, store, parts, last), payloads)
                for parts, payloads, last in messages[server]
            ],
        )

    def _ask(self, what: str, message: Callable[[int], Message]) -> list[Any]:
        """Ask every server the same and wait for all answers."""
        return self._requests.ask(what, self._servers, lambda number, _server: [(message(number), ())])


def _told(spec: OptimizerSpec) -> str:
    return (
        f"{spec.name} {spec.params} quorum={spec.quorum} quorum_wait={spec.quorum_wait:g} "
        f"compress={spec.compress}"
    )
