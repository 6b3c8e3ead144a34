"""Processes that have the environment of a rank and are none."""

from __future__ import annotations

import multiprocessing
import os
import socket

import pytest

from kvstore_mpi.comm.started import started_by_a_rank


def test_a_rank_has_its_way_to_the_launcher(monkeypatch):
    """By MPICH's protocol a socket, whose number the environment tells; other launchers have none."""
    monkeypatch.delenv("PMI_FD", raising=False)
    assert not started_by_a_rank()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setenv("PMI_FD", str(ours.fileno()))
        assert not started_by_a_rank()
    assert f"process {os.getpid()} is no rank of the job" in started_by_a_rank()


@pytest.mark.parametrize(("method", "is_rank"), [("spawn", False), ("fork", True)])
def test_what_a_rank_starts(monkeypatch, method, is_rank):
    """A process that is spawned has the number and not the socket; one that is forked has both."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setenv("PMI_FD", str(ours.fileno()))
        with multiprocessing.get_context(method).Pool(1) as pool:
            said = pool.apply_async(started_by_a_rank).get(60)
    assert (not said) == is_rank
