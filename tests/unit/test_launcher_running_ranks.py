"""Whom a signal to a client goes to."""

from __future__ import annotations

import signal

import pytest

from mpilaunch.rank.record import RankName
from mpilaunch.running_ranks import RunningRanks, Watched

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
