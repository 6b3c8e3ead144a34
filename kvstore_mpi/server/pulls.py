"""Values that are asked for: what is noted of it, and who need not wait any more.

Pure. This file must not know when a round is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.server.records import Answer, Remember

if TYPE_CHECKING:
    from kvstore_mpi.records import Topology
    from kvstore_mpi.server.records import Entry, Unit


def note_pulled(unit: Unit, client: int, entry: Entry) -> list[Remember]:
    """Under a rule that looks at what clients have seen, note that a client gets the value now."""
    terms = unit.key.store.terms
    if terms.staleness:
        unit.seen[client] = unit.updates
    return [Remember(client, [entry])] if terms.pulls else []


def ready_pulls(unit: Unit, topology: Topology) -> list[Answer | Remember]:
    """Answer the pulls that have waited for pushes which are in the value now."""
    waiting, unit.pulls = unit.pulls, []
    out: list[Answer | Remember] = []
    for pull in waiting:
        if unit.applied[unit.key.pusher(pull.peer.index)] >= pull.after:
            entry = (*pull.slice, pull.after)
            out += note_pulled(unit, topology.client_of(pull.peer.index), entry)
            # Not stable: who pulls holds no round back, and the value may change before this has left.
            wanted = pull.request
            out.append(Answer(pull.peer, entry, stable=False, priority=pull.priority, request=wanted))
        else:
            unit.pulls.append(pull)
    return out
