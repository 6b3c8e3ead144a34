"""How often servers had updated keys in the job that this one goes on with.

A worker's own count of updates begins there, and what servers update no worker may update. Only in
synchronous stores: of an asynchronous one the servers count what all push, and a worker its own pushes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.records import Key


class CountsBefore:
    """The counts of one store's keys; all 0 in a job that begins.

    Attributes:
        may_be: There may be some.
    """

    def __init__(self, exchange: Exchange, mode: str) -> None:
        """Begin without counts, in a store of this mode."""
        self.may_be = exchange.on_servers and mode == "sync" and mode in exchange.worker.takes_up
        self._exchange = exchange
        self._counts: dict[Key, int] = {}

    def of(self, key: Key) -> int:
        """Return that of a key, which this worker has not pushed yet; waits for servers."""
        if self.may_be and key not in self._counts:
            exchange = self._exchange
            for staging in exchange.stagings.values():
                staging.array.wait_to_read()  # then the servers have taken the key up
            exchange.check()
            states = exchange.worker.optimizer_states(exchange.store, arrays=False)
            found = dict.fromkeys(exchange.stagings, 0)
            found |= {each: state.updates for each, state in states.items()}
            self._counts = found | self._counts  # those of keys that were pushed since have grown
        return self._counts.get(key, 0)

    def check_own(self, key: Key) -> None:
        """Raise where servers go on with updates of a key that this worker is about to update itself.

        Integers go on, too, but as sums, which no rule updates.

        Raises:
            UsageError: They do: they would take what is pushed for gradients of their own rule.
        """
        if (count := self.of(key)) and "float" in self._exchange.stagings[key].dtype:
            raise UsageError(
                f"worker {self._exchange.worker.rank}: key {key!r}: this job is resumed, and its servers "
                f"go on with the optimizer that has made {count} updates of the key, but here workers "
                "update it: by a Trainer with update_on_kvstore=False, or an optimizer that servers do not "
                "have; give the store the optimizer that it had"
            )
