"""Values that clients are given: what is noted of it, and who need not wait for one any more.

Pure. This file must not know when a round is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.server.records import Answer, Remember

if TYPE_CHECKING:
    from kvstore_mpi.records import Topology
    from kvstore_mpi.server.records import Contribution, Entry, Unit


def note_pulled(unit: Unit, client: int, entry: Entry) -> list[Remember]:
    """Under a rule that looks at what clients have seen, note that a client gets the value now."""
    terms = unit.key.store.terms
    if terms.staleness:
        # Or its next push would count as older than it is, and the rule would weigh it less.
        unit.seen[client] = unit.updates
    # What it goes on from: the rule compares its next push with this, and not with what others have
    # made since.
    return [Remember(client, [entry])] if terms.pulls else []


def ready_pulls(unit: Unit, topology: Topology) -> list[Answer | Remember]:
    """Answer the pulls that have waited for pushes which are in the value now."""
    waiting, unit.pulls = unit.pulls, []
    out: list[Answer | Remember] = []
    for pull in waiting:
        # Its own pushes only: a pull that waited for those of others would hold up a store that is
        # asynchronous.
        if unit.applied[unit.key.pusher(pull.peer.index)] >= pull.after:
            entry = (*pull.slice, pull.after)
            out += note_pulled(unit, topology.client_of(pull.peer.index), entry)
            # Not stable: who pulls holds no round back, and the value may change before this has left.
            wanted = pull.request
            out.append(Answer(pull.peer, entry, stable=False, priority=pull.priority, request=wanted))
        else:
            unit.pulls.append(pull)
    return out


def note_answered(unit: Unit, client: int, contribution: Contribution) -> list[Remember]:
    """Note what a client is answered with.

    Under a rule that takes parameters the update itself sets the base: it has compared the client's
    parameters with it, and by now the value may be another.
    """
    entries = [
        (*unit.slices[position], contribution.sequence)
        for position, asker in contribution.askers.items()
        if asker.wants_value
    ]
    # Who wanted no value goes on with an older one, and its next push is late by that.
    if not entries:
        return []
    unit.seen[client] = unit.updates
    terms = unit.key.store.terms
    return [Remember(client, entries)] if terms.bases and not terms.params else []
