"""Events of traces, as viewers read them."""

from __future__ import annotations

from typing import Any


def process(pid: int, name: str) -> dict[str, Any]:
    """Return what gives a process its name."""
    args = {"name": f"{name} (host, pid 9)"}
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": args}
