"""Which name was meant by one that is not known. Pure."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def meant(name: str, known: Iterable[str]) -> str:
    """Ask whether the name that is nearest was meant; nothing where none is near."""
    near = difflib.get_close_matches(name.lower(), sorted(known), 1)
    return f"did you mean {near[0]}?" if near else ""
