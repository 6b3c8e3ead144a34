"""Whether a value is copied to its key's staged array before it is sent, or sent from where it lies. Pure.

The copy lets the user write to the array at once and costs time on the way of the gradient. Without it what
writes to the array next waits until the new value has come, and the array's memory must be what its shape
says. Whether the memory can be read is the framework's to know, and whether it would be sent without a copy
the worker's (``interfaces.KVWorker.sends_source``); both cost more to ask than what is asked here.
"""

from __future__ import annotations

SENT_IN_PLACE_BYTES = 256 << 10
"""Gradients from this size on are not copied before they are sent to other hosts. A copy by MXNet, measured
at 3 GB/s, would take 85 us, twenty times as long as it takes to find out where they lie."""


def worth_sending_in_place(num_bytes: int, num_arrays: int, *, gradients: bool) -> bool:
    """Tell whether the value of one key had better be sent from where it lies.

    Args:
        num_bytes: Of one of its arrays.
        num_arrays: One per device; several are summed, and the sum needs a place of its own.
        gradients: They are, and not parameters, which a framework may keep in layouts of its own.
    """
    return gradients and num_arrays == 1 and num_bytes >= SENT_IN_PLACE_BYTES
