"""How a service ends."""

import errno
import sys

import pytest

from kvstore_mpi import __main__ as service
from kvstore_mpi.errors import ConfigurationError, ToldToEndError


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigurationError("no such option"), 78, "ConfigurationError: no such option"),
        (MemoryError(), 71, "MemoryError: no memory"),
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
    monkeypatch.setattr(service, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(sys, "argv", ["kvstore_mpi"])
    assert service.main() == code
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == bool(words)
