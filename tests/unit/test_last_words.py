"""What a rank says at its end, with streams and exceptions of the script's own making."""

import io
import sys

import pytest

from mpilaunch.rank.last_words import flush, say, text_of, user_traceback


class NoText(Exception):  # noqa: N818  an exception of a script
    """One whose text cannot be had."""

    def __str__(self):
        """Fail."""
        raise KeyError


def closed():
    """Return a stream that takes nothing more."""
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), object()])
def test_streams_that_are_none(monkeypatch, stream):
    """Nothing is said or raised, and the stream that is one has what was printed."""
    printed, flushed = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(printed)))
    say("a")
    flush()
    assert printed.getvalue() == b"a\n"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(flushed)))
    monkeypatch.setattr(sys, "stderr", stream)
    sys.stdout.write("b\n")
    say("c")
    flush()
    assert flushed.getvalue() == b"b\n"


def test_what_is_said_can_be_written(monkeypatch):
    """As UTF-8, whatever it is."""
    monkeypatch.setattr(sys, "stderr", found := io.StringIO())
    say("caf\udc80", 3)
    assert found.getvalue() == "caf\\udc80\n3\n"
    say(NoText())
    assert found.getvalue() == "caf\\udc80\n3\n"


def test_texts_and_tracebacks_of_exceptions():
    """As UTF-8, and without a text."""
    assert text_of(ValueError("caf\udc80")) == "caf\\udc80"
    assert text_of(NoText()) == "(its text cannot be had: KeyError)"
    with pytest.raises(ZeroDivisionError) as found:
        _ = 1 / 0
    assert user_traceback(found.value)[-1] == "ZeroDivisionError: division by zero"
    assert user_traceback(ValueError("caf\udc80")) == ["ValueError: caf\\udc80"]
