"""What the store's processes of a host take besides the bytes that a link carries, as measured. Pure."""

from __future__ import annotations

import msgspec

SLICE_S = 4e-5
"""Where nobody has measured it: steps of ResNet-50 with slices of 2,500 elements instead of 12,500 take
0.085 s longer for 3,072 messages more, though 0.04 s less is lost to what is under way
(``benchmarks/results/p3-slices.json``, four hosts that share two cores)."""


class Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the processors of a host take for rows of tables that workers sum, while no link carries these.

    What is not given is half of what was fitted to steps on hosts that have a core each
    (``benchmarks/harness/planner_points.py``): that of a host whose worker and server have a core each.

    Attributes:
        byte_s: Seconds for each byte in the busier direction: to find, merge, send and apply rows.
        message_s: Seconds for each message of rows to another rank; of tables that servers have, for each
            piece that a host pushes, and for each that its servers send.
        step_s: Seconds for each step that has tables.
        table_s: Seconds for each table; ranks agree on each how much will come.
    """

    byte_s: float = 3.55e-9
    message_s: float = 5.3e-5
    step_s: float = 3.95e-3
    table_s: float = 9e-4


class ServedRows(Rows, frozen=True, forbid_unknown_fields=True):
    """The same for tables that servers have."""

    table_s: float = 2.6e-4
