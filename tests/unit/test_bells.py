"""Bells between the ranks of one host: who is told of which message, and who may tell."""

from __future__ import annotations

import gc
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from unit.test_links import Mpi, Ranks

from kvstore_mpi.comm import bells
from kvstore_mpi.comm.links import Links
from kvstore_mpi.errors import MismatchError, PeerLostError

WAIT_S = 30.0


class Together:
    """What the ranks of a communicator tell each other, each in a thread of its own."""

    def __init__(self, size, told=lambda values: values):
        """Let ``told`` change, or use, what all will hear."""
        self.size = size
        self._values = [None] * size
        self._barrier = threading.Barrier(size, action=lambda: self._tell(told), timeout=WAIT_S)

    def _tell(self, told):
        self._values[:] = told(list(self._values))

    def as_rank(self, rank):
        """Return the communicator of one of them."""
        return _Communicator(self, rank)

    def gather(self, rank, value):
        """Return what all have given."""
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class _Communicator:
    def __init__(self, together, rank):
        self._together, self._rank = together, rank

    def Get_rank(self):  # noqa: N802  mpi4py's name
        return self._rank

    def Get_size(self):  # noqa: N802  mpi4py's name
        return self._together.size

    def allgather(self, value):
        return self._together.gather(self._rank, value)


def hang(size, told=lambda values: values):
    """Return the bells of some ranks."""
    together = Together(size, told)
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(lambda rank: bells.hang(together.as_rank(rank)), range(size)))


def end(rank):
    """Let a rank go, as a process that ends."""
    for connected in rank._ringing.values():
        connected.close()


def test_who_is_told_of_which_message():
    """By the rank from which it comes and its tag; as often as it has left."""
    first, second, third = hang(3)
    second.ring(0, 5)
    second.ring(0, 5)
    third.ring(0, 7)
    while not first.has_rung(1, 5) or not first.has_rung(2, 7):
        first.wait()
    assert not first.has_rung(1, 7)
    assert not first.has_rung(2, 5)
    first.take(1, 5)
    while not first.has_rung(1, 5):
        first.wait()
    first.take(1, 5)
    assert not first.has_rung(1, 5)


def test_a_nudge_ends_a_wait():
    """Whether it comes before or later."""
    first, _ = hang(2)
    first.nudge()
    first.nudge()
    first.wait()
    nudged = []

    def nudge():
        nudged.append(True)
        first.nudge()

    threading.Timer(0.1, nudge).start()
    first.wait()
    assert nudged  # and those before it were one


def test_who_has_gone_keeps_nobody():
    """MPI knows of a rank that has gone; to ring for it is no error."""
    first, second = hang(2)
    second.ring(0, 5)
    end(second)
    while not first.has_rung(1, 6):
        first.wait()
    assert first.has_rung(1, 5)
    assert len(first._selector.get_map()) == 1  # or it would be heard for ever
    next(iter(second._selector.get_map().values())).fileobj.close()
    first.ring(1, 5)


def test_who_has_parted_has_not_gone():
    """What has rung before is still taken; for anything else MPI would wait for ever."""
    first, second = hang(2)
    second.ring(0, 5)
    second.part()
    end(second)
    while len(first._selector.get_map()) > 1:
        first.wait()
    assert first.has_parted(1)
    assert first.has_rung(1, 5)
    assert not first.has_rung(1, 6)


def num_descriptors():
    """Return how many descriptors this process has."""
    return len([*Path("/proc/self/fd").iterdir()])


def test_ranks_that_do_not_reach_each_other_have_none():
    """Neither they nor the others, and nothing stays open: one of three is on another host."""
    gc.collect()  # closes those of tests before
    before = num_descriptors()

    def elsewhere(values):
        return values if isinstance(values[0], bool) else [*values[:2], ("not-here", b"")]

    assert hang(3, elsewhere) == [None] * 3
    assert num_descriptors() == before


def test_a_system_without_them_has_none(monkeypatch):
    """One without event descriptors."""
    monkeypatch.delattr(os, "eventfd")
    assert hang(2) == [None, None]


def stranger(name, said):
    """Connect, and say what a stranger says."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected.connect(b"\0" + name.encode())
    if said is not None:
        connected.send(said)
    return connected


def test_strangers_are_turned_away():
    """Whoever does not know the secret that MPI tells is no rank, whatever it says."""
    strangers = []

    def intrude(values):
        if not isinstance(values[0], bool):
            strangers.extend(stranger(values[0][0], said) for said in (b"hello", bytes(16) + b"\0\0\0\1"))
            strangers.append(stranger(values[1][0], None))
        return values

    first, second = hang(2, intrude)
    second.ring(0, 5)
    while not first.has_rung(1, 5):
        first.wait()
    assert strangers[0].recv(1) == b""


def test_a_rank_that_is_missing_is_an_error(monkeypatch):
    """As when strangers have taken all places; nobody waits for ever."""
    monkeypatch.setattr(bells, "_WAIT_S", 0.2)
    listener, (_, secret) = bells._listen(2)
    with listener, pytest.raises(PeerLostError, match="says nothing"):
        bells._heard(listener, secret, 1)


def test_mpi_is_asked_for_what_has_left():
    """And for nothing else; in the order in which it is expected, however it has left."""
    asked = []

    class Expected(Ranks):
        """MPI, which is asked for messages."""

        def Irecv(self, _data, _peer, tag):  # noqa: N802  mpi4py's name
            """Note when it is waited for."""
            return Asked(tag)

    class Asked:
        def __init__(self, tag):
            self.tag = tag

        def Wait(self, *_):  # noqa: N802  mpi4py's name
            asked.append(self.tag)

    own, other = hang(2)
    links = Links(Mpi, Expected(), WAIT_S, own, warn_after=30.0)
    first, second = links.receive(np.zeros(1), 1, 10), links.receive(np.zeros(1), 1, 11)
    own_tags = [links._checked(tag) for tag in (10, 11)]
    other.ring(0, own_tags[1])
    threading.Event().wait(0.1)
    assert asked == []
    other.ring(0, own_tags[0])
    for each in (first, second):
        links.wait(each, str)
    assert asked == own_tags
    third = links.receive(np.zeros(1), 1, 10)
    threading.Event().wait(0.1)
    assert not third.done()
    other.ring(0, own_tags[0])
    links.wait(third, str)


def test_who_sends_rings():
    """Once MPI has the message."""
    own, other = hang(2)
    links = Links(Mpi, Ranks(), WAIT_S, own, warn_after=30.0)
    links.wait(links.send(np.zeros(1), 1, 3), str)
    while not other.has_rung(0, links._checked(3)):
        other.wait()


def test_who_waits_for_a_rank_that_has_finished_is_told():
    """When all that it has sent has come, and whether the wait has begun before or after."""
    own, other = hang(2)
    links = Links(Mpi, Ranks(), WAIT_S, own, warn_after=30.0)
    sent, early = (links.receive(np.zeros(1), 1, tag) for tag in (4, 5))
    other.ring(0, links._checked(4))
    Links(Mpi, Ranks(), WAIT_S, other, warn_after=30.0).part()
    links.wait(sent, str)
    late = links.receive(np.zeros(1), 1, 4)
    for future in (early, late):
        with pytest.raises(MismatchError, match="waits for an output: rank 1 has finished; let all ranks"):
            links.wait(future, lambda: "an output")
