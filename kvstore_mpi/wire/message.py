"""What all messages have in common; each of them is in ``messages.py``."""

from __future__ import annotations

import msgspec

WIRE_VERSION = 14
"""Raised whenever a message or the frame changes; both sides must have the same."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""

    # ``array_like``: names of fields do not travel; a push of one slice would be mostly names. The price is
    # that fields are told apart by their place: one that is inserted or removed needs another WIRE_VERSION.
