"""The report of an inspection, as text: who holds up the job, then each process with its stacks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpilaunch.seeing.diagnosis import diagnose
from mpilaunch.seeing.stacks import parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpilaunch.seeing.job_view import Row

_TAIL = 8


def report(
    why: str,
    rows: Sequence[Row],
    dumps: Mapping[str, str],
    names: Mapping[str, Mapping[str, str]],
    tails: Mapping[str, Sequence[str]],
    *,
    unheard: Mapping[str, str],
) -> tuple[list[str], str]:
    """Return who holds up the job, and all there is to see of it.

    Args:
        why: What the inspection is for.
        rows: The processes.
        dumps: What they have written on the signal, by name.
        names: Of their threads, likewise.
        tails: The last lines of each process.
        unheard: Processes on hosts from which nothing comes, and these.
    """
    stacks = {name: parse(text, names.get(name, {})) for name, text in dumps.items() if text}
    verdict = diagnose(rows, stacks, unheard)
    parts = [f"why: {why}", "", *verdict]
    for row in rows:
        told = f"told {row.age:.1f} s ago" if row.age >= 0 else "has told nothing"
        parts += ["", f"--- {row.name} on {row.host or '?'} (pid {row.pid or '?'}): {row.state}, {told}"]
        parts += [f"waits {wait.seconds:.1f} s: {wait.text}" for wait in row.waits]
        parts += [f"error: {row.error}"] if row.error else []
        parts += [f"last said: {line}" for line in list(tails.get(row.name, ()))[-_TAIL:]]
        if row.name in unheard:
            parts.append("no stacks: nothing comes from its host")
        elif row.name not in stacks:
            parts.append("no stacks: it is stopped, has ended, or is no Python program")
        for thread in stacks.get(row.name, []):
            parts += [f"{thread.name}:", *(f"    {frame}" for frame in thread.frames)]
    return verdict, "\n".join(parts) + "\n"
