"""The schedules that can be compared: P3's own, and the two that its paper measures it against."""

from __future__ import annotations

import enum


class Schedule(enum.Enum):
    """In which order slices leave, and what is updated at once (P3 sections 3 and 5).

    Attributes:
        P3: Slices by priority.
        SLICING: Slices in the order in which they became ready.
        FIFO: Whole layers in the order in which they became ready: a server updates a layer, and answers,
            when all of its part of the layer has come.
    """

    P3 = "p3"
    SLICING = "slicing"
    FIFO = "fifo"

    @property
    def by_priority(self) -> bool:
        """Whether what is urgent overtakes."""
        return self is Schedule.P3

    @property
    def in_slices(self) -> bool:
        """Whether slices are updated and answered one by one."""
        return self is not Schedule.FIFO
