"""The kinds of operations, and what the ranks of a client do together for them. Constants only."""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """What a user's operation does."""

    INIT = "init"
    PUSH = "push"
    PULL = "pull"
    PUSHPULL = "pushpull"
    LOOKUP = "lookup"
    """A pull of rows by their ids that the ranks of a client make together."""


class Collective(enum.IntEnum):
    """What the ranks of a client do together."""

    # The numbers stand in announcements: a kind keeps its own.
    BROADCAST = 0
    """The leader's initial value to all."""
    REDUCE = 1
    """Sum each slice to the rank that pushes it, for a push."""
    REDUCE_SHARE = 2
    """The same for a pushpull: a SHARE of each slice follows."""
    ALLREDUCE = 3
    """Sum to all (pure MPI)."""
    SHARE = 4
    """The new value to all, from the rank that pushed."""
    FETCH = 5
    """A value that the leader has pulled to all."""
    SKIP = 6
    """What was pushed, instead of a value: the server is down."""
    REDUCE_GIVE = 7
    """REDUCE for a push of which the leader wants the value: a SHARE of each slice follows."""
    UNITE = 8
    """What the ranks of each host look up, to the ranks that ask servers for all of it."""
    GIVE = 9
    """The rows that have come to each rank of the host that looks them up."""


# What the program of a rank must have called for each collective of its leader: if it has called something
# else, the programs differ, and sums would be of different steps.
WANTED = {
    Collective.BROADCAST: (Kind.INIT,),
    Collective.FETCH: (Kind.PULL,),
    Collective.REDUCE: (Kind.PUSH,),
    Collective.REDUCE_SHARE: (Kind.PUSHPULL,),
    Collective.ALLREDUCE: (Kind.PUSH, Kind.PUSHPULL),
    Collective.SHARE: (Kind.PUSHPULL, Kind.PUSH),
    Collective.SKIP: (Kind.PUSHPULL,),
    Collective.REDUCE_GIVE: (Kind.PUSH,),
    Collective.UNITE: (Kind.LOOKUP,),
    Collective.GIVE: (Kind.LOOKUP,),
}

# Not UNITE, though rows come later, too: nothing of a lookup is pushed, and GIVE ends all of it at once.
SHARED_LATER = (Collective.REDUCE_SHARE, Collective.REDUCE_GIVE)
"""After these the slices' values are still to come, by a SHARE."""

REDUCED = (Collective.REDUCE, *SHARED_LATER)
"""After these the slices are pushed."""


# Without servers there are no lookups either: each rank has the whole table.
BEGINS_ON_SERVERS = {
    Kind.INIT: Collective.BROADCAST,
    Kind.PULL: Collective.FETCH,
    Kind.PUSH: Collective.REDUCE,
    Kind.PUSHPULL: Collective.REDUCE_SHARE,
    Kind.LOOKUP: Collective.UNITE,
}
"""With which collective an operation begins, or, if the leader pulls the value, goes on."""

BEGINS_WITHOUT_SERVERS = {
    **BEGINS_ON_SERVERS,
    Kind.PUSH: Collective.ALLREDUCE,
    Kind.PUSHPULL: Collective.ALLREDUCE,
}
"""The same for keys that live on the workers alone."""
