"""Who holds up a job: found from what each process waits for, how long it is silent, and its stacks. Pure.

A process waits for others, which may wait in turn. Who is waited for and waits for nobody, or does not
answer, is who holds up the rest; where all wait in a circle, their programs differ.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from mpilaunch.seeing.job_view import JOINS, SILENT_SECONDS, STARTS
from mpilaunch.seeing.stacks import place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvstore_mpi.metrics.status import Wait
    from mpilaunch.seeing.job_view import Row
    from mpilaunch.seeing.stacks import Thread

NOTHING = "nobody waits for anybody for longer than a moment"
YOUNG_SECONDS = 0.5
"""What has been waited for no longer is how jobs are: messages are under way."""


class Edge(NamedTuple):
    """Somebody waits for somebody."""

    waiter: str
    awaited: str
    wait: Wait


def diagnose(
    rows: Sequence[Row],
    stacks: Mapping[str, Sequence[Thread]],
    unheard: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return a sentence for each process that holds up others, with what for, since when and where it is.

    Args:
        rows: The processes.
        stacks: Of those that have written them, by name.
        unheard: Processes on hosts from which nothing comes, and these: they may do what they should.
    """
    live = {row.name: row for row in rows}
    edges = [edge for row in rows for edge in _edges(row, live)]
    waiting = {edge.waiter for edge in edges if edge.awaited != edge.waiter}
    silent = {row.name for row in rows if row.age > SILENT_SECONDS and row.state.startswith("silent")}
    awaited = list(dict.fromkeys(edge.awaited for edge in edges))
    # A silent process may be what others wait for without knowing it: what it told last was of before.
    culprits = [name for name in awaited if name in silent or name not in waiting]
    culprits += sorted(silent.difference(culprits))
    starting = {_client(name) for name in culprits if name in live and live[name].state == STARTS}
    # Ranks of a client meet in MPI before they join the others: who is there waits for those that start.
    joining = {row.name for row in rows if row.state == JOINS and _client(row.name) in starting}
    culprits = [name for name in culprits if name not in joining and name not in unheard]
    hosts = [_silent_host(host, unheard) for host in dict.fromkeys(unheard.values())]
    if not culprits and not hosts and edges:
        return _circle(edges, stacks)
    return [*hosts, *(_sentence(live.get(name), name, edges, stacks) for name in culprits)] or [NOTHING]


def _silent_host(host: str, unheard: Mapping[str, str]) -> str:
    names = ", ".join(name for name, each in unheard.items() if each == host)
    return (
        f"nothing comes from mpilaunch's agent on {host}, so that nothing is known of {names}: it is "
        "stopped (SIGSTOP, a debugger), or the host hangs or is cut off; on that host "
        "pkill -CONT -f mpilaunch.hosts.agent lets a stopped one go on"
    )


def _client(name: str) -> str:
    return name.partition("~")[0].partition(".")[0]


def _edges(row: Row, live: Mapping[str, Row]) -> list[Edge]:
    if row.state.startswith("silent"):
        return []  # what it waited for when it last told may be over
    latest = {name.partition("~")[0]: name for name in live}
    return [
        Edge(row.name, latest.get(name, name), wait)
        for wait in row.waits
        if wait.seconds >= YOUNG_SECONDS
        for name in wait.awaited
    ]


def _sentence(
    row: Row | None, name: str, edges: Sequence[Edge], stacks: Mapping[str, Sequence[Thread]]
) -> str:
    threads = list(stacks.get(name, ()))
    who = name if row is None or not row.pid else f"{name} on {row.host} (pid {row.pid})"
    mine = [edge for edge in edges if edge.awaited == name and edge.waiter != name]
    told = f"{who} holds up the job"
    if mine:
        # What a server or the scheduler says tells more than that a worker waits.
        telling = max(mine, key=lambda edge: (_TELLING.get(edge.wait.what, 0), edge.wait.seconds))
        waiters = ", ".join(sorted({edge.waiter for edge in mine}))
        told += f": {telling.wait.text}; {waiters} waits for it since {telling.wait.seconds:.0f} s"
    return f"{told}. {_condition(row, threads)}"


_TELLING = {"round": 2, "barrier": 2, "join": 2, "collective": 1}


def _condition(row: Row | None, threads: list[Thread]) -> str:
    """Say how a process is, and where its program is."""
    where = place(threads)
    if row is None or not row.pid:
        return f"It has not joined{': it is at ' + where if where else ' and has written no stacks'}"
    if not threads:
        return (
            f"It has told nothing for {row.age:.0f} s and writes no stacks: it is stopped (SIGSTOP, "
            f"SIGTSTP, a debugger), or its host hangs; kill -CONT {row.pid} lets a stopped one go on"
        )
    if not row.state.startswith("silent"):
        return f"It is alive; its program is at {where}"
    if row.name.startswith("server"):
        return f"Its thread has been stuck for {row.age:.0f} s at {where}"
    return (
        f"It has been silent for {row.age:.0f} s though it runs: native code holds the interpreter; it was "
        f"called at {where}"
    )


def _circle(edges: Sequence[Edge], stacks: Mapping[str, Sequence[Thread]]) -> list[str]:
    """All wait for each other: the workers' programs differ; say what each wants."""
    told = ["all processes wait for each other: the workers' programs differ"]
    for edge in {(edge.waiter, edge.wait.text): edge for edge in edges}.values():
        is_worker = edge.waiter.startswith("client")  # the others are where they always are
        where = place(list(stacks.get(edge.waiter, ()))) if is_worker else ""
        at = f"; its program is at {where}" if where else ""
        told.append(f"{edge.waiter} waits {edge.wait.seconds:.0f} s in {edge.wait.text}{at}")
    return told
