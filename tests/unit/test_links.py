"""Messages between the ranks of a worker: who waits for them leaves the cores to who computes."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from kvstore_mpi.comm import waits
from kvstore_mpi.comm.links import Links
from kvstore_mpi.errors import MismatchError, PeerLostError

TAKES_S = 0.02
PARTING_TAG, OWN_TAGS = 0, 2


class Request:
    """A message that takes its time."""

    def Wait(self, *_):  # noqa: N802  mpi4py's name
        """Come in the end."""
        time.sleep(TAKES_S)


class Ranks:
    """Two ranks, of which this is one; messages go nowhere. Of them MPI knows no largest tag."""

    def __getattr__(self, name):
        """Return what MPI has."""
        answers = {"Get_rank": 0, "Get_size": 2, "Get_attr": None, "Isend": Request(), "Irecv": Request()}
        return lambda *_: answers[name]


class MpiError(Exception):
    """What mpi4py raises."""

    def Get_error_class(self):  # noqa: N802  mpi4py's name
        """Return what MPI says has gone wrong."""
        return self.args[0]


class Mpi:
    """What of MPI's module is needed."""

    TAG_UB = 0
    COMM_WORLD = SimpleNamespace(Get_attr=lambda _: 1000)
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
    links = Links(Mpi, Ranks(), 30.0, warn_after=30.0)
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
    links = Links(Mpi, ranks, 30.0, warn_after=30.0)
    with pytest.raises(error, match=f"rank 0 of this worker waits for the output: {text}"):
        links.wait(links.receive(np.zeros(size), 1, 0), lambda: "the output")


class Parting:
    """The word that the other rank has finished."""

    def __init__(self, space, number, looks, enough):
        """Have it say how many messages that rank has sent; tell when it was looked for ``looks`` times."""
        self._space, self._number = space, number
        self._left, self._enough = looks, enough

    def Test(self):  # noqa: N802  mpi4py's name
        """Come."""
        self._space[0] = self._number
        self._left -= 1
        if not self._left:
            self._enough.set()
        return True


class Held:
    """A message that comes late, or never."""

    def __init__(self, comes):
        """Wait for an event."""
        self._comes = comes

    def Wait(self, *_):  # noqa: N802  mpi4py's name
        """Come then."""
        assert self._comes.wait(30.0)


class Apart(Ranks):
    """The other is on another host; it has sent a message, and finished."""

    def __init__(self, number, looks=0):
        """Have it say that it has sent ``number``; what more there is comes after ``looks`` looks."""
        self.comes = threading.Event()
        self.awaited = []
        self._number, self._looks = number, looks
        self.sent = []

    def Irecv(self, space, peer, tag):  # noqa: N802  mpi4py's name
        """Begin to receive."""
        if tag == PARTING_TAG:
            self.awaited.append(peer)
            return Parting(space, self._number, self._looks, self.comes)
        return Request() if tag == OWN_TAGS + 4 else Held(self.comes)

    def Isend(self, array, peer, tag):  # noqa: N802  mpi4py's name
        """Begin to send."""
        self.sent.append((array.view(np.int64).tolist(), peer, tag))
        return Request()


def test_who_waits_for_a_rank_on_another_host_that_has_finished_is_told(monkeypatch):
    """When all that it has sent has come; it may have finished long before that."""
    monkeypatch.setattr("kvstore_mpi.comm.links._LOOK_S", 0.05)
    ranks = Apart(number=1)
    links = Links(Mpi, ranks, 30.0, warn_after=30.0)
    sent, missing = (links.receive(np.zeros(1), 1, tag) for tag in (4, 5))
    links.wait(sent, str)
    with pytest.raises(MismatchError, match="waits for an output: rank 1 has finished; let all ranks"):
        links.wait(missing, lambda: "an output")
    ranks.comes.set()  # nobody keeps the thread


def test_what_a_rank_has_sent_before_it_has_finished_is_waited_for(monkeypatch):
    """The word that it has finished may be faster than what it has sent."""
    monkeypatch.setattr("kvstore_mpi.comm.links._LOOK_S", 0.05)
    links = Links(Mpi, Apart(number=2, looks=3), 30.0, warn_after=30.0)
    for tag in (4, 5):
        links.wait(links.receive(np.zeros(1), 1, tag), str)


def test_what_is_waited_for_can_be_seen_and_is_said(monkeypatch):
    """For whom, since when and until when it is an error; nothing any more when it has come."""
    ranks, names, said, seen = Apart(number=5), ["client0.0", "client0.1"], [], []
    links = Links(Mpi, ranks, 30.0, warn_after=0.05)

    def warning(text, *terms):
        said.append(text % terms)
        seen.extend(links.waits(names, time.monotonic()))
        ranks.comes.set()

    monkeypatch.setattr("kvstore_mpi.comm.links.log", SimpleNamespace(warning=warning))
    links.wait(links.receive(np.zeros(1), 1, 5), lambda: "an output")
    assert said == ["rank 0 of this worker has waited 0 s for an output; rank 1 is awaited"]
    [wait] = seen
    assert (wait.text, wait.awaited, wait.limit) == ("an output", ["client0.1"], 30.0)
    assert 0.05 <= wait.seconds < 30.0
    assert links.waits(names, time.monotonic()) == []


def test_who_finishes_tells_how_many_messages_it_has_sent():
    """That counts what has left for the same rank; whose word is awaited then, as MPI has it."""
    ranks = Apart(number=0)
    links = Links(Mpi, ranks, 30.0, warn_after=30.0)
    for future in (links.send(np.zeros(1), 1, 4), *links.share(np.zeros(1), 0)):
        links.wait(future, str)
    assert ranks.awaited == []
    links.part()
    assert ranks.awaited == [1]
    assert ranks.sent[2:] == [([2], 1, PARTING_TAG)]
