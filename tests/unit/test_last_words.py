"""What a rank says at its end, with streams and exceptions of the script's own making."""

import gc
import io
import sys
import threading

import pytest

from mpilaunch.rank.last_words import flush, say, show, text_of, user_traceback, write_open_files


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


def test_open_files_are_written_wherever_they_are(tmp_path):
    """Also those that a script has frozen for its forks, and beside objects without a class."""

    class Proxy:
        @property
        def __class__(self):
            raise ReferenceError

    proxy = Proxy()
    with (tmp_path / "file").open("w") as file:
        file.write("a")
        gc.freeze()
        write_open_files()
        assert (tmp_path / "file").read_text() == "a"
    assert proxy is not None


def test_open_files_are_written_where_no_thread_can_be_had(tmp_path, monkeypatch):
    """By the thread that asks, then."""

    def refused(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with (tmp_path / "file").open("w") as file:
        file.write("a")
        write_open_files()
        assert (tmp_path / "file").read_text() == "a"


def test_an_exception_is_shown_by_the_hook_of_the_script(monkeypatch):
    """Which is told what Python tells it; what was printed before has left by then."""
    shown = []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed := io.BytesIO()))
    monkeypatch.setattr(sys, "excepthook", lambda *told: shown.append((*told, printed.getvalue())))
    sys.stdout.write("no line end")
    with pytest.raises(ZeroDivisionError) as found:
        _ = 1 / 0
    show(found.value)
    assert shown == [(ZeroDivisionError, found.value, found.value.__traceback__, b"no line end")]


def test_a_hook_that_fails(monkeypatch):
    """Both are shown, also when it wants to exit."""

    def hook(*_):
        sys.exit("from the hook")

    monkeypatch.setattr(sys, "excepthook", hook)
    monkeypatch.setattr(sys, "stderr", found := io.StringIO())
    show(ValueError("from the script"))
    assert found.getvalue().startswith("Error in sys.excepthook:\nTraceback")
    assert found.getvalue().endswith(
        "from the hook\nOriginal exception was:\nValueError: from the script\n"
    )
