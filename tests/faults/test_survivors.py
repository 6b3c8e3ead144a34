"""Who survives a death or a freeze saves at once, whatever it waits in; a table of cells.

Each cell is a role that is killed or frozen in a phase of a job with a kind of store.
"""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import time
from typing import NamedTuple

import pytest
from support.often import ONE_OF_MANY
from support.patience import load_factor

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(300)]

SAVES_S = 1.0
"""From the death to the ``finally`` of the last survivor, on a machine that has nothing else to do."""

ENDS_S = 3.0
"""From the last exit handler to the end of the job."""

log = logging.getLogger(__name__)

LEASE_S = 3.0
FROZEN_END_S = 3.5
"""SIGTERM does not end a frozen process; SIGKILL comes 3 s later."""

LONG = 100
"""A grace in which everything has gone wrong."""

STARTS_S = 3.0
"""How long a job takes to come to its phase, on a machine that has nothing else to do."""

TRIES = 3
"""A machine may stand still for a moment; who waits for what it should not wait for is late every time."""


class Cell(NamedTuple):
    """What is done to whom, and when."""

    victim: str
    phase: str
    store: str
    signum: int = signal.SIGKILL
    layout: tuple[int, int, int] = (2, 2, 1)

    def __str__(self) -> str:
        """Name the test."""
        what = "killed" if self.signum == signal.SIGKILL else "frozen"
        layout = "x".join(map(str, self.layout))
        return f"{self.victim}-{what}-{self.phase}-{self.store}-{layout}"


_VICTIMS = ("client", "server", "scheduler")
_PHASES = ("joining", "set_optimizer", "init", "barrier", "training")
_STORES = ("sync", "async", "elastic")
_SERVICE_LAYOUTS = dict(zip(_PHASES, [(1, 2, 1), (2, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1)]))
"""Two workers, of one client or of two, lose a server or the scheduler like more of them. Four train."""

_KILLS = [
    Cell(victim, phase, store, layout=(2, 2, 1) if victim == "client" else _SERVICE_LAYOUTS[phase])
    for victim in _VICTIMS
    for phase in _PHASES
    for store in _STORES
]
_FREEZES = [
    Cell("server", "training", "sync", signal.SIGSTOP),
    Cell("server", "training", "async", signal.SIGSTOP),
    Cell("scheduler", "training", "sync", signal.SIGSTOP),
    Cell("client", "training", "sync", signal.SIGSTOP),
]
_SMALL = [
    Cell("client", "training", "sync", layout=(2, 1, 1)),
    Cell("client", "training", "sync", layout=(1, 3, 0)),
    Cell("client", "init", "sync", layout=(1, 3, 0)),
    Cell("server", "barrier", "sync", layout=(1, 2, 1)),
]
CELLS = [*_KILLS, *_FREEZES, *_SMALL]


def is_often(cell):
    """Return whether every change runs a cell: of the deaths a third, each role in each phase once.

    The stores take turns, so that each role dies in every store, too, and each phase is met in every one.
    """
    if cell.signum == signal.SIGSTOP:
        return (cell.victim, cell.store) == ("server", "async")
    if cell in _SMALL:
        return (cell.victim, cell.phase) == ("client", "training")
    turn = _VICTIMS.index(cell.victim) + _PHASES.index(cell.phase)
    return cell.store == _STORES[turn % len(_STORES)]


def test_every_change_runs_a_third_of_the_table():
    """At least, and with each role, phase, store and kind of failure."""
    often = [cell for cell in CELLS if is_often(cell)]
    assert 3 * len(often) >= len(CELLS)
    assert {(cell.victim, cell.phase) for cell in _KILLS} <= {(cell.victim, cell.phase) for cell in often}
    assert {(cell.victim, cell.store) for cell in _KILLS} <= {(cell.victim, cell.store) for cell in often}
    assert {(cell.phase, cell.store) for cell in _KILLS} <= {(cell.phase, cell.store) for cell in often}


def patience(started):
    """Return by how much a machine that does other things may be slower than one that does not.

    The load does not tell it where only some of the processors may be used; ``started``, the seconds that
    the job took to come to its phase, does.
    """
    return max(load_factor(), started / STARTS_S)


def times(folder, what, survivors):
    """Return when each survivor has come to what it notes."""
    return [float((folder / f"{what}{rank}").read_text()) for rank in survivors]


@pytest.mark.parametrize(
    "cell",
    [cell if is_often(cell) else pytest.param(cell, marks=ONE_OF_MANY) for cell in CELLS],
    ids=str,
)
def test_survivors_save(start, tmp_path, cell):
    """They reach ``finally`` and their exit handlers soon, and the job ends when they have.

    The job names who was killed, and leaves no process behind.
    """
    late = []
    for number in range(TRIES):
        late.append(_what_is_late(start, tmp_path / f"saves{number}", cell))
        if not late[-1]:
            return
    pytest.fail(f"late each time: {late}")


def _what_is_late(start, saves, cell):
    """Run a job; return what of it has taken too long."""
    saves.mkdir()
    clients, per_client, _ = cell.layout
    frozen_rank = cell.signum == signal.SIGSTOP and cell.victim == "client"
    launched = time.monotonic()
    job = start(
        f"{cell.phase}:{cell.store}",
        cell.layout,
        script="surviving.py",
        grace=5 if frozen_rank else LONG,
        options=("--lease", f"{LEASE_S:g}") if cell.signum == signal.SIGSTOP else (),
        environment={"SAVES": str(saves)},
    )
    workers = job.workers(clients * per_client)
    family = job.family()
    begin = time.monotonic()
    os.kill(_victim(job, workers, cell.victim), cell.signum)
    code, said = job.end()
    end = time.monotonic()
    survivors = [rank for rank in workers if cell.victim != "client" or rank != max(workers)]
    assert {path.name for path in saves.iterdir()} >= {f"atexit{rank}" for rank in survivors}, said[-3000:]
    lost = re.findall(r"may have lost work: (.*)", said)
    assert lost == ([f"client1.{per_client - 1}"] if frozen_rank else []), said[-3000:]
    assert code == (128 + signal.SIGKILL if cell.signum == signal.SIGKILL else 69), said[-3000:]
    victims = {"client": f"client{clients - 1}.{per_client - 1}", "server": "server0"}
    killed = rf"{victims.get(cell.victim, cell.victim)}\b.* failed first: SIGKILL"
    assert cell.signum != signal.SIGKILL or re.search(killed, said), said[-3000:]
    job.check_gone(family)
    saving, done = (max(times(saves, what, survivors)) for what in ("finally", "atexit"))
    log.info("%s: finally after %.2f s, ended %.2f s later", cell, saving - begin, end - done)
    saves_s, ends_s = limits(cell, patience(begin - launched))
    late = {"saving": (saving - begin, saves_s), "the end": (end - done, ends_s)}
    return {what: seconds for what, seconds in late.items() if seconds[0] > seconds[1]}


def limits(cell, slack):
    """Return how soon survivors have to save, and how soon after that the job has to end."""
    if cell.signum == signal.SIGKILL:
        return SAVES_S * slack, ENDS_S * slack
    # That a frozen rank has not saved is seen at the end of its grace, for which the job waits.
    return 2 * LEASE_S + SAVES_S * slack, math.inf if cell.victim == "client" else FROZEN_END_S * slack


def _victim(job, workers, role):
    if role == "client":
        return workers[max(workers)]
    return next(pid for name, pid in job.services().items() if name.startswith(role))
