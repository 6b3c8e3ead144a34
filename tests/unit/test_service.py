"""How a service ends."""

import errno
import os
import signal
import sys
import threading
from types import SimpleNamespace

import pytest

from kvstore_mpi import __main__ as service
from kvstore_mpi import node
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import ConfigurationError, NotSavedError, PeerLostError, ToldToEndError


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigurationError("no such option"), 78, "ConfigurationError: no such option"),
        (MemoryError(), 71, "MemoryError: no memory"),
        (RuntimeError("can't start new thread"), 71, "RuntimeError: can't start new thread"),
        (OSError(errno.EMFILE, "Too many open files"), 71, "Too many open files"),
        (OSError(errno.ENOSPC, "No space left"), 74, "No space left"),
        (ToldToEndError("client0.0 has been told to end"), 69, ""),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_end_that_has_a_reason_is_one_line(error, code, words, monkeypatch, capsys):
    """And a code of its own, from which the launcher tells what to do; a defect is a traceback.

    Nothing is said of what a user has asked for.
    """

    def fail(_config):
        raise error

    monkeypatch.setenv("KVMPI_ROLE", "scheduler")
    monkeypatch.setattr(service, "run_service", fail)
    monkeypatch.setattr(service, "keep_freed_memory", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["kvstore_mpi"])
    assert service.main() == code
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == bool(words)


def test_a_defect_is_a_traceback(monkeypatch):
    """The launcher says of its exit code 1 what to do with that."""

    def fail(_config):
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setenv("KVMPI_ROLE", "scheduler")
    monkeypatch.setattr(service, "run_service", fail)
    monkeypatch.setattr(service, "keep_freed_memory", lambda _: None)
    with pytest.raises(RuntimeError, match="changed size"):
        service.main()


def test_a_service_of_several_parts_of_a_model_ends_with_the_first_error():
    """And otherwise when all have ended; one that goes on cannot keep it."""
    forever = threading.Event()

    def fail():
        raise PeerLostError("client1 is lost")

    with pytest.raises(PeerLostError, match="client1 is lost"):
        node._serve_all([lambda: forever.wait(5), fail])
    ended = []
    node._serve_all([lambda: ended.append(0), lambda: ended.append(1)])
    assert sorted(ended) == [0, 1]
    forever.set()


def test_a_part_of_a_model_that_cannot_be_saved_lets_the_others_save():
    """They are told to end with the process only by an error of which all know."""
    told, saved = threading.Event(), []

    def fail():
        told.set()
        raise NotSavedError("no space left")

    def save():
        assert told.wait(5)
        saved.append(1)

    with pytest.raises(NotSavedError, match="no space left"):
        node._serve_all([fail, save, save])
    assert saved == [1, 1]


def test_each_part_of_a_model_has_its_snapshots(tmp_path):
    """In folders of their own; a job of whole models has the folder itself."""
    config = NodeConfig(model_parallel=2, snapshot_dir=str(tmp_path))
    folders = [node._for_model_rank(config, rank).snapshot_dir for rank in range(2)]
    assert folders == [str(tmp_path / "model-rank-0"), str(tmp_path / "model-rank-1")]
    assert node._for_model_rank(NodeConfig(snapshot_dir=str(tmp_path)), 0).snapshot_dir == str(tmp_path)


def test_a_server_that_starts_ends_when_it_is_told(monkeypatch):
    """It has nothing to save, and would not hear it later: the launcher would wait for the whole grace."""
    heard, sent = {}, []
    handler = signal.getsignal(signal.SIGUSR1)
    monkeypatch.setattr(node.os, "kill", lambda *how: sent.append(how))
    loops = []
    try:
        node._end_on_signal(SimpleNamespace(on=heard.__setitem__), loops)
    finally:
        signal.signal(signal.SIGUSR1, handler)
    heard[signal.SIGUSR1]()
    assert sent == [(os.getpid(), signal.SIGTERM)]
    posted = []
    loops.append(SimpleNamespace(post=posted.append, stop=lambda: posted.append("stopped")))
    heard[signal.SIGUSR1]()
    posted[0](0.0)
    assert posted[1:] == ["stopped"]
    assert len(sent) == 1
