"""Whom a signal to a client goes to."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from mpilaunch.events import Start
from mpilaunch.plan import Process
from mpilaunch.rank.record import RankName
from mpilaunch.running_ranks import RunningRanks, Watched
from mpilaunch.supervise import Supervisor

USR1, TERM, KILL = signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL
SAVES, WAITS, OTHER = RankName(0, 0), RankName(0, 1), RankName(1, 0)


def running(*, shielded):
    """Return two ranks of one client, the second of which has told its end, and one of another client."""
    ranks = RunningRanks(["client0", "client1"], 2, shielded=shielded)
    for pid, rank in enumerate((SAVES, WAITS, OTHER), 10):
        ranks.add(rank, Watched(pid, 100 + pid, None))
    ranks.is_over(WAITS)
    return ranks


@pytest.mark.parametrize(
    ("signum", "shielded", "expected"),
    [
        (USR1, False, [(SAVES, 110, USR1), (WAITS, 111, USR1)]),
        (KILL, True, [(SAVES, 110, KILL), (WAITS, 111, KILL)]),
        (TERM, False, []),
        (TERM, True, [(WAITS, 111, KILL)]),
    ],
)
def test_whom_a_signal_goes_to(signum, shielded, expected):
    """Their guards; SIGTERM comes of mpiexec, and ends nobody who waits where others send it, too."""
    assert list(running(shielded=shielded).signalled("client0", signum)) == expected


def test_mpiexec_passes_on_what_unknown_ranks_must_hear():
    """Those that have not said who they are; of a client that is started again, all."""
    ranks = running(shielded=False)
    assert not ranks.signals_mpiexec("client0", USR1)
    assert ranks.signals_mpiexec("client1", USR1)
    assert ranks.signals_mpiexec("client0", TERM)
    ranks.starts("client0")
    assert ranks.signals_mpiexec("client0", USR1)


def test_the_end_of_a_rank_that_has_gone_is_nothing_new():
    """Its record may be read after its process has been seen to end."""
    ranks = running(shielded=False)
    assert ranks.remove(SAVES).pid == 10
    ranks.is_over(SAVES)
    assert SAVES not in ranks
    assert ranks.of("client0") == [WAITS]


@pytest.mark.parametrize("event", [{"event": "end"}, {"event": "death", "code": 9, "pid": 10}])
def test_a_rank_that_says_its_end_is_ended_under_slurm(event):
    """When its client is told to end; the other one of its client is not."""
    calls = []
    host = SimpleNamespace(
        signal_rank=lambda pid, signum: calls.append((pid, signum)),
        signal=lambda name, signum: calls.append((name, signum)),
    )
    supervisor = object.__new__(Supervisor)
    supervisor._ranks = running(shielded=True)
    supervisor._plan = SimpleNamespace(shielded=True)
    supervisor._observer = SimpleNamespace(ended=lambda name, *, failed: None)
    supervisor._places = SimpleNamespace(
        record_of=lambda name, pid: "a record",
        is_service=lambda name: False,
        of_rank=lambda rank: host,
        of=lambda name: host,
    )
    supervisor._on_rank_event({"client": 1, "rank": 0, "incarnation": 0, **event})
    supervisor._signal("client1", TERM)
    assert calls == [(112, KILL), ("client1", TERM)]


def test_a_client_that_is_started_again_has_ranks_that_are_unknown(monkeypatch):
    """Its mpiexec passes on what they must hear."""
    client = Process("client1", ("mpiexec",), (), "")
    supervisor = object.__new__(Supervisor)
    supervisor._ranks = running(shielded=False)
    supervisor._ranks.add(RankName(1, 1), Watched(13, 113, None))
    supervisor._plan = SimpleNamespace(clients=[client], scheduler=None)
    host = SimpleNamespace(spawn=lambda *_: [])
    supervisor._places = SimpleNamespace(process=lambda name: client, of=lambda name: host)
    supervisor._incarnations, supervisor._environment = {}, {}
    monkeypatch.setattr(supervisor, "_watch_ranks", lambda *_: None)
    assert not supervisor._ranks.signals_mpiexec("client1", USR1)
    supervisor._spawn(Start("client1", 1))
    assert supervisor._ranks.signals_mpiexec("client1", USR1)
