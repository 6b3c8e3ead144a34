"""Snapshots whose headers are changed, and whose checksums are right."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

JUNK: Any = st.sampled_from([-1, 0, 1, 2**40, 2**63, 3.5, "x", "object", None, [], {}, [0], True])


def craft(path: Path, change: Callable[[Any], object]) -> None:
    """Change the header of a snapshot."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data, 8)
    header = msgspec.msgpack.decode(data[16 : 16 + length])
    change(header)
    encoded = msgspec.msgpack.encode(header)
    seal(path, len(encoded), encoded + data[16 + length : -4])


def seal(path: Path, length: int, rest: bytes) -> None:
    """Write a snapshot that says how long its header is, with a checksum that is right."""
    data = path.read_bytes()[:8] + struct.pack("<Q", length) + rest
    path.write_bytes(data + struct.pack("<I", zlib.crc32(data)))


def change_at_random(data: Any) -> Callable[[Any], None]:
    """Return what puts junk somewhere into a header, as Hypothesis draws it."""

    def change(header: Any) -> None:
        place = header
        while True:
            names = [*(place if isinstance(place, dict) else range(len(place)))]
            name = data.draw(st.sampled_from(names))
            if not (isinstance(place[name], (dict, list)) and place[name] and data.draw(st.booleans())):
                place[name] = data.draw(JUNK)
                return
            place = place[name]

    return change
