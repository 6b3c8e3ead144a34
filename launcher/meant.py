"""Which name was meant by one that is not known. Pure."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def meant(name: str, known: Iterable[str]) -> str:
    """Ask whether the nearest name, or one that goes on as this begins, was meant; else say nothing."""
    near = difflib.get_close_matches(name.lower(), sorted(known))
    return f"did you mean {min(near, key=lambda each: not each.startswith(name))}?" if near else ""
