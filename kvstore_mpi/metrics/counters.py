"""The numbers that processes keep: the name, unit and meaning of each, in one table. Pure.

A number is a plain integer or float that one thread changes; others read it without a lock, and may see it
a moment old. Most of them are what a process needs anyway to do its work, such as the bytes under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvstore_mpi.wire.events import Statistics

Counters = dict[str, float]
"""The numbers of one process, by the names of ``COUNTERS``; those that a role does not have are absent."""


class Counter(NamedTuple):
    """One number.

    Attributes:
        text: What it counts, for people.
        unit: Of its value; nothing for a plain count.
        total: It only grows, from the start of the process on; otherwise it is how things are now.
    """

    text: str
    unit: str = ""
    total: bool = True


_NOW = False

COUNTERS: Mapping[str, Counter] = {
    # Every process: what its sockets have carried. Values that servers read in shared memory are no part.
    "bytes_sent": Counter("bytes that left over sockets, headers included", "bytes"),
    "bytes_received": Counter("bytes that came over sockets, headers included", "bytes"),
    "messages_sent": Counter("wire messages that left, acknowledgements included"),
    "messages_received": Counter("wire messages that came, others' included"),
    "repeats": Counter("messages that were sent again because they were lost"),
    "duplicates": Counter("messages that came again"),
    "refused_frames": Counter("wire messages that were not of this job, or not acceptable"),
    "in_flight_bytes": Counter("bytes of payloads that are sent and not acknowledged", "bytes", _NOW),
    "memory_bytes": Counter("memory that is resident", "bytes", _NOW),
    "cpu_seconds": Counter("processor time of all threads", "seconds"),
    # Workers.
    "steps": Counter("pushes of the key that was pushed most often: iterations of the script"),
    "operations": Counter("pushes, pulls and pushpulls that have ended"),
    "operation_seconds": Counter("time from the call of each operation to its end, added up", "seconds"),
    "pending_seconds": Counter("time in which at least one operation was under way", "seconds"),
    "hidden_seconds": Counter(
        "pending_seconds in which the script computed, by its marks; with a trace or report only", "seconds"
    ),
    "values_sent_bytes": Counter(
        "bytes of gradients or parameters to servers, those in shared memory too", "bytes"
    ),
    "values_received_bytes": Counter("bytes of values from servers, those in shared memory too", "bytes"),
    "collectives": Counter("buckets of collectives that the ranks of a client have carried out"),
    "collective_seconds": Counter("time in which the MPI thread was in collectives", "seconds"),
    # Workers and servers.
    "queue_bytes": Counter("bytes that wait for room on their way to other processes", "bytes", _NOW),
    "waiting_messages": Counter("pushes that have come and wait for their turn", "", _NOW),
    # Servers.
    "keys": Counter("keys of which this server has a part", "", _NOW),
    "rounds": Counter("updates of a unit: all clients' pushes of it, or one in an asynchronous store"),
    "open_rounds": Counter("rounds to which some have pushed and others have not", "", _NOW),
    "stale_updates": Counter("updates between a client's pushes of a unit, added up; asynchronous stores"),
    "snapshot_age_seconds": Counter(
        "time since the last snapshot was begun that could be written", "seconds", _NOW
    ),
    # The scheduler.
    "joined": Counter("processes that have joined and have not left", "", _NOW),
}
"""What each number is; the unit of a name without one is a count."""


def wire_counters(counted: Statistics, in_flight_bytes: int) -> Counters:
    """Return what a process's endpoint has counted."""
    return {
        "bytes_sent": counted.bytes_sent,
        "bytes_received": counted.bytes_received,
        "messages_sent": counted.frames_sent,
        "messages_received": counted.frames_received,
        "repeats": counted.retransmitted,
        "duplicates": counted.duplicates,
        "refused_frames": sum(counted.dropped.values()),
        "in_flight_bytes": in_flight_bytes,
    }
