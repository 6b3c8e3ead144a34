"""Mistakes in what the shells of processes leave to others: copies, buffers, failures and signals."""

from __future__ import annotations

from mutants.table import Mutant

_IN = "kvstore_mpi/server/"
_BUFFERS = ("unit/test_peer_buffers.py",)
_COPIES = ("unit/test_kept_copies.py",)
_FAILED = ("unit/test_failed_updates.py",)
_DEPARTED = ("unit/test_server_departures.py", "unit/test_server_pushers.py", "unit/test_server_state.py")
_SIGNALS = ("unit/test_wakeups.py",)

MUTANTS = [
    Mutant(
        "nobody is asked to keep copies",
        _IN + "kept_copies.py",
        "            self._loop.send(worker, m.KeepValues())",
        "            pass",
        _COPIES,
    ),
    Mutant(
        "a worker that connects later keeps no copies",
        _IN + "kept_copies.py",
        "        if self.wanted:",
        "        if False:",
        _COPIES,
    ),
    Mutant(
        "a rank that is not connected is asked for copies",
        _IN + "kept_copies.py",
        "        if self._loop.endpoint.is_connected(worker):",
        "        if True:",
        _COPIES,
    ),
    Mutant(
        "buffers of processes that are gone stay mapped",
        _IN + "peer_buffers.py",
        "        self.views = {place: view for place, view in self.views.items() if place[0] not in peers}",
        "        pass",
        _BUFFERS,
    ),
    Mutant(
        "with a process the buffers of the others are forgotten",
        _IN + "peer_buffers.py",
        "        self.views = {place: view for place, view in self.views.items() if place[0] not in peers}",
        "        self.views = {}",
        _BUFFERS,
    ),
    Mutant(
        "each slice of an update that fails has a line",
        _IN + "failures.py",
        "        if self._told.get(key.key_id) == failed:",
        "        if False:",
        _FAILED,
    ),
    Mutant(
        "only the first update of a key that fails has a line",
        _IN + "failures.py",
        "        if self._told.get(key.key_id) == failed:",
        "        if key.key_id in self._told:",
        _FAILED,
    ),
    Mutant(
        "who waits for a round with a pull is not told that it has failed",
        _IN + "failures.py",
        "    peers.update(dict.fromkeys(pull.peer for pull in unit.pulls))",
        "    pass",
        _DEPARTED,
    ),
    Mutant(
        "a failure is not that of its key",
        _IN + "failures.py",
        "    return Send(peer, m.Failure(type(error).__name__, str(error), key.store.number, key.key))",
        "    return Send(peer, m.Failure(type(error).__name__, str(error)))",
        _DEPARTED,
    ),
    Mutant(
        "after a signal that could not be handled no more are heard",
        "kvstore_mpi/wakeups.py",
        "        except Exception:  # the signals",
        "        except ImportError:  # the signals",
        _SIGNALS,
    ),
    Mutant(
        "that a signal could not be handled is not told",
        "kvstore_mpi/wakeups.py",
        '            log.exception("handling signal %d has failed", number)',
        "            pass",
        _SIGNALS,
    ),
]
