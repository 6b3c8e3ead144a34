"""Messages between the ranks of a worker: who waits for them leaves the cores to who computes."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kvstore_mpi.comm import waits
from kvstore_mpi.comm.links import Links
from kvstore_mpi.errors import MismatchError, PeerLostError

TAKES_S = 0.02


class Request:
    """A message that takes its time."""

    def Wait(self, *_):  # noqa: N802  mpi4py's name
        """Come in the end."""
        time.sleep(TAKES_S)


class Ranks:
    """Two ranks, of which this is one; messages go nowhere."""

    def __getattr__(self, name):
        """Return what MPI has."""
        answers = {"Get_rank": 0, "Get_size": 2, "Get_attr": 1000, "Isend": Request(), "Irecv": Request()}
        return lambda *_: answers[name]


class MpiError(Exception):
    """What mpi4py raises."""

    def Get_error_class(self):  # noqa: N802  mpi4py's name
        """Return what MPI says has gone wrong."""
        return self.args[0]


class Mpi:
    """What of MPI's module is needed."""

    TAG_UB = 0
    ERR_TRUNCATE = 1
    Exception = MpiError

    class Status:
        """Of a message of 8 bytes."""

        def Get_count(self):  # noqa: N802  mpi4py's name
            """Return its size."""
            return 8


@pytest.mark.parametrize("sleeps", ["1", "0"])
@pytest.mark.parametrize("call", ["send", "receive"])
def test_polls_are_rare_while_a_message_takes_long(monkeypatch, sleeps, call):
    """From the second on, where MPI sleeps between two polls; what follows is waited for as usual."""
    allowed = []
    monkeypatch.setattr(waits, "allow_late_timers", allowed.append)
    monkeypatch.setenv(waits.VARIABLE, sleeps)
    links = Links(Mpi, Ranks(), 30.0)
    for _ in range(6):
        links.wait(getattr(links, call)(np.zeros(1), 1, 0), str)
    if sleeps == "0":
        assert allowed == []
        return
    assert len(allowed) >= 8
    assert set(allowed[1::2]) == {waits.USUAL_NS}
    assert waits.USUAL_NS < allowed[0] < allowed[-2] <= waits.LONGEST_NS


class Failed:
    """A message that MPI cannot bring."""

    def __init__(self, error):
        """Say what MPI finds."""
        self._error = error

    def Wait(self, *_):  # noqa: N802  mpi4py's name
        """Fail."""
        raise MpiError(self._error)


@pytest.mark.parametrize(
    ("come", "size", "error", "text"),
    [
        (Failed(Mpi.ERR_TRUNCATE), 1, MismatchError, "more bytes have come instead of 8: let all"),
        (Request(), 2, MismatchError, "8 bytes have come instead of 16: let all"),
        (Failed(Mpi.ERR_TRUNCATE + 1), 1, PeerLostError, "2"),
    ],
)
def test_a_message_of_another_size_is_a_mistake_of_the_script_s(monkeypatch, come, size, error, text):
    """Larger or smaller: ranks with different batches have lost nobody."""
    ranks = Ranks()
    monkeypatch.setattr(ranks, "Irecv", lambda *_: come, raising=False)
    links = Links(Mpi, ranks, 30.0)
    with pytest.raises(error, match=f"rank 0 of this worker waits for the output: {text}"):
        links.wait(links.receive(np.zeros(size), 1, 0), lambda: "the output")
