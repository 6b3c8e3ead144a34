"""Stores that are closed: when they are over, what is freed then, and what does not come back."""

from __future__ import annotations

from mutants.table import Mutant

_SCENARIOS = ("scenarios/test_closed_stores.py",)
_SCHEDULER = ("unit/test_closings.py",)
_SERVERS = ("unit/test_closed_on_servers.py",)
_WORKERS = ("unit/test_closed_on_workers.py",)
_ADAPTER = ("contract/test_mxnet_closing.py",)
_GONE = ("scenarios/test_closed_stores.py::test_what_a_closed_store_had_is_gone_on_all_sides",)

MUTANTS = [
    Mutant(
        "a store is over when somebody has closed it",
        "kvstore_mpi/scheduler/roster.py",
        "return len(self._workers_gone | workers) == self._topology.num_workers",
        "return bool(workers)",
        _SCHEDULER,
    ),
    Mutant(
        "who begins anew meets its former run at a barrier",
        "kvstore_mpi/scheduler/closings.py",
        "        self._first.clear()",
        "        pass",
        _SCHEDULER,
    ),
    Mutant(
        "who begins anew hears of an error of its former run",
        "kvstore_mpi/scheduler/closings.py",
        "        self._broken.clear()",
        "        pass",
        _SCHEDULER,
    ),
    Mutant(
        "a store is closed where clients come later",
        "kvstore_mpi/worker/store_calls.py",
        "        if self._config.clients_come_later:",
        "        if False:",
        _SCENARIOS,
    ),
    Mutant(
        "who comes last to another end waits for ever",
        "kvstore_mpi/scheduler/closings.py",
        "return self._broken.get(message.number)",
        "return None",
        _SCHEDULER,
    ),
    Mutant(
        "nobody who comes later hears of what is over",
        "kvstore_mpi/scheduler/state.py",
        "return [Send(newcomer, m.StoresClosed(stores, keys))] if tells else []",
        "return []",
        _SCHEDULER,
    ),
    Mutant(
        "barriers are open to an only client that begins anew",
        "kvstore_mpi/scheduler/state.py",
        "if are_all:",
        "if False:",
        _SCHEDULER,
    ),
    Mutant(
        "what was closed counts where keys are placed",
        "kvstore_mpi/scheduler/keys.py",
        "            self._free(agreed)",
        "            pass",
        _SCENARIOS,
    ),
    Mutant(
        "a server asks for values of a closed store",
        "kvstore_mpi/server/state.py",
        "if key.key_id not in self.keys.retired.closed:",
        "if True:",
        _SERVERS,
    ),
    Mutant(
        "a closed store may be given again",
        "kvstore_mpi/server/server.py",
        "case m.Create() | m.Share() if message.key_id in state.keys.retired.closed:",
        "case m.Create() | m.Share() if False:",
        _SCENARIOS,
    ),
    Mutant(
        "servers keep the rules of closed stores",
        "kvstore_mpi/server/shards.py",
        "            self._rules.pop(store, None)",
        "            pass",
        _GONE,
    ),
    Mutant(
        "servers keep the buffers of closed stores mapped",
        "kvstore_mpi/server/peer_buffers.py",
        "for place, view in self.views.items() if place[1] not in keys}",
        "for place, view in self.views.items()}",
        _GONE,
    ),
    Mutant(
        "rounds of closed stores fail",
        "kvstore_mpi/server/rounds.py",
        "for unit in [unit for unit in rounds if unit.key.key_id in keys]:",
        "for unit in ():",
        _SERVERS,
    ),
    Mutant(
        "a job goes on with a closed store that lies where it was",
        "kvstore_mpi/server/resumption.py",
        "chain.load(dense - self._retired - self._sums - self._keys.keys())",
        "chain.load(dense - self._sums - self._keys.keys())",
        _SERVERS,
    ),
    Mutant(
        "a job goes on with a closed store that is cut anew",
        "kvstore_mpi/server/resumption.py",
        "for number, key in self._keys.items() if number not in self._retired}",
        "for number, key in self._keys.items()}",
        _SERVERS,
    ),
    Mutant(
        "a store is closed before its operations have ended",
        "kvstore_mpi/worker/store_calls.py",
        "        self.flush(self._config.step_timeout)",
        "        pass",
        _SCENARIOS,
    ),
    Mutant(
        "a server that comes back is told of closed stores",
        "kvstore_mpi/worker/membership.py",
        "        self._outages.forget(store)",
        "        pass",
        _WORKERS,
    ),
    Mutant(
        "a closed store says who is needed",
        "kvstore_mpi/worker/keys.py",
        "        del self._modes[store]",
        "        pass",
        _WORKERS,
    ),
    Mutant(
        "who was lost in a store that is over is missed behind it, as the scheduler sees it",
        "kvstore_mpi/scheduler/keys.py",
        "        self._were_loose = self.are_loose",
        "        pass",
        _SCHEDULER,
    ),
    Mutant(
        "who was lost in a store that is over is missed behind it, as workers see it",
        "kvstore_mpi/worker/keys.py",
        "        self._needless_before = self._needless()",
        "        pass",
        _WORKERS,
    ),
    Mutant(
        "what is measured of a store is not closed with it",
        "kvstore_mpi/adapters/mxnet/exchange/exchange.py",
        "        for store in (self.store, *self._further):",
        "        for store in (self.store,):",
        _ADAPTER,
    ),
    Mutant(
        "the last buffers that are gone stay with MPI's thread",
        "kvstore_mpi/worker/mpi_thread.py",
        "            del job  # or they would stay until the next one comes",
        "            pass",
        _GONE,
    ),
    Mutant(
        "what is known of the ranks' buffers stays",
        "kvstore_mpi/tensor_collectives/group.py",
        "        self._peers = {each: peers for each, peers in self._peers.items() if each not in gone}",
        "        pass",
        _GONE,
    ),
    Mutant(
        "new buffers lie where others are",
        "kvstore_mpi/transport/shared_memory.py",
        "        if was_last and self._segments:",
        "        if False:",
        ("unit/test_exchange_buffers.py",),
    ),
    Mutant(
        "a table of a closed store ends the job",
        "kvstore_mpi/adapters/mxnet/exchange/exchange.py",
        "        if self.is_closed:",
        "        if False:",
        _ADAPTER,
    ),
    Mutant(
        "a Trainer keeps what its closed store had",
        "kvstore_mpi/adapters/mxnet/meetings.py",
        "        gc.collect()",
        "        pass",
        _ADAPTER,
    ),
]
