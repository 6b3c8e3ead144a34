"""Services that end while ranks save: whether that is a failure."""

from __future__ import annotations

import signal

import pytest
from support.launcher_history import History

from mpilaunch.events import Exited, Interrupted
from mpilaunch.outcome.root_cause import Reason


@pytest.mark.parametrize("name", ["scheduler", "server0"])
@pytest.mark.parametrize(
    ("code", "cause"), [(69, False), (70, True)], ids=["says that others are lost", "has failed by itself"]
)
def test_a_service_that_takes_ranks_that_save_for_lost_has_not_failed(name, code, cause):
    """They have left its job; a failure of its own still counts."""
    history = History()
    history(Interrupted(signal.SIGTERM))
    history(Exited(name, code))
    for client, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        history.rank(client, rank, 75)
    verdict = history.verdict
    assert verdict.reason is Reason.SIGNAL
    assert (verdict.cause is not None and verdict.cause.who == name) is cause
