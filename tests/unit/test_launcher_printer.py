"""Whole lines, prefixes, colours and log files."""

import errno
import io
import os
import pty
import signal
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.printer import (
    LINE_BYTES,
    LineBuffer,
    LogFiles,
    Printer,
    make_log_folder,
    readable,
    wants_colours,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def make_printer(folder, out=None, err=None):
    return Printer(out or io.StringIO(), err or io.StringIO(), LogFiles(folder))


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b""))), st.data())
def test_lines_are_whole_however_they_are_cut(lines, data):
    """Pipes deliver pieces; lines come out as they were written."""
    text = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    buffer = LineBuffer()
    seen = []
    for low, high in zip([0, *cuts], [*cuts, len(text)]):
        seen += buffer.feed(text[low:high])
    assert seen == lines
    assert buffer.flush() == []


def test_the_last_line_needs_no_end():
    """What a dying process said last is not lost."""
    buffer = LineBuffer()
    assert buffer.feed(b"one\ntwo") == [b"one"]
    assert buffer.flush() == [b"two"]


def test_endless_lines_are_cut():
    """Output without line ends does not fill the memory."""
    lines = LineBuffer().feed(b"x" * (2 * LINE_BYTES + 1))
    assert [len(line) for line in lines] == [LINE_BYTES, LINE_BYTES]


def test_undecodable_bytes_are_shown():
    """Bytes that are no text do not stop the launcher."""
    assert readable(b"caf\xe9") == "caf\N{REPLACEMENT CHARACTER}"


def test_progress_bars_show_their_last_state():
    """What a carriage return has overwritten is gone, as on a terminal."""
    assert readable(b"10%\r20%\rdone\r") == "done"


def test_prefixes_and_streams(tmp_path):
    """Output goes to output, errors to errors, each line with its name."""
    out, err = io.StringIO(), io.StringIO()
    printer = make_printer(tmp_path, out, err)
    printer.line("client0.1", b"hello")
    printer.line("server1", b"oh", is_error=True)
    printer.line("client0", b"noise", quiet=True)
    printer.say("one\ntwo")
    assert out.getvalue() == "client0.1| hello\n"
    assert err.getvalue() == "server1| oh\nmpilaunch| one\nmpilaunch| two\n"


def test_colours_only_on_a_terminal(tmp_path):
    """A name keeps its colour, another has another one, and a file gets none."""
    out = Terminal()
    printer = make_printer(tmp_path, out)
    for name in ("client0.0", "client0.1", "client0.0"):
        printer.line(name, b"x")
    first, second, third = out.getvalue().splitlines()
    assert first == third
    assert first.startswith("\x1b[")
    assert first.split("m")[0] != second.split("m")[0]


def test_no_colours_for_who_minds(tmp_path):
    """A terminal gets the bare names."""
    out = Terminal()
    Printer(out, out, LogFiles(tmp_path), colours=False).line("client0.0", b"x")
    assert out.getvalue() == "client0.0| x\n"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": ""}, False),
        ({}, False),
    ],
)
def test_whether_colours_are_wanted(environment, wanted):
    """As the user and his terminal say in the environment."""
    assert wants_colours(environment) == wanted


def test_log_files_have_the_bytes_that_were_said(tmp_path):
    """One file per process, both streams in order, nothing decoded or prefixed."""
    printer = make_printer(tmp_path)
    printer.line("client0.1", b"caf\xe9")
    printer.line("client0.1", b"10%\rdone", is_error=True)
    printer.line("server0", b"x")
    assert (tmp_path / "client0.1.log").read_bytes() == b"caf\xe9\n10%\rdone\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["client0.1.log", "server0.log"]


def test_last_lines_are_remembered(tmp_path):
    """As many as the last block shows."""
    printer = make_printer(tmp_path)
    for number in range(100):
        printer.line("server0", str(number).encode())
    assert list(printer.tails["server0"]) == [str(number) for number in range(80, 100)]


def test_log_folders_are_one_per_run_and_unknown_to_git(tmp_path):
    """Two runs never write to one file, and a repository does not see them."""
    now = time.gmtime(0)
    first = make_log_folder(tmp_path / "logs", "a" * 16, now)
    second = make_log_folder(tmp_path / "logs", "b" * 16, now)
    assert first.name == "19700101-000000-aaaaaaaa"
    assert second.parent == first.parent
    assert (first.parent / ".gitignore").read_text() == "*\n"


def test_a_folder_of_the_users_is_left_as_it_is(tmp_path):
    """Only a folder that we have made gets a .gitignore."""
    make_log_folder(tmp_path, "a" * 16, time.gmtime(0))
    assert not (tmp_path / ".gitignore").exists()


def test_logs_are_their_users_alone(tmp_path):
    """What ranks say may be of their data."""
    folder = make_log_folder(tmp_path / "logs", "a" * 16, time.gmtime(0))
    make_printer(folder).line("server0", b"x")
    paths = (folder.parent, folder, folder / "server0.log")
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o700, 0o600]


# --- what cannot be written ---


@pytest.fixture
def full():
    """A stream to a disk that is full."""
    with Path("/dev/full").open("w") as stream:
        yield stream


def test_logs_that_cannot_be_written_cost_one_warning(tmp_path):
    """The disk is full, or somebody has removed the folder: the job goes on, and says so once."""
    out, err = io.StringIO(), io.StringIO()
    printer = make_printer(tmp_path / "removed", out, err)
    for _ in range(2):
        printer.line("server0", b"x")
    printer.say("y")
    assert out.getvalue() == "server0| x\nserver0| x\n"
    first, second = err.getvalue().splitlines()
    assert first.startswith(f"mpilaunch| the logs in {tmp_path}/removed cannot be written: No such file")
    assert second == "mpilaunch| y"


def test_a_log_that_is_full_is_written_again_when_there_is_room(tmp_path, full, monkeypatch):
    """A process's own file is opened once."""
    (tmp_path / "room").touch()
    opened = iter([os.open("/dev/full", os.O_WRONLY)])
    monkeypatch.setattr("mpilaunch.printer.private_files.create", lambda _: next(opened))
    printer = make_printer(tmp_path)
    printer.line("server0", b"lost")
    log = printer._logs._files["server0"]
    with (tmp_path / "room").open("wb") as room:
        os.dup2(room.fileno(), log.fileno())
    printer.line("server0", b"kept")
    assert (tmp_path / "room").read_bytes() == b"kept\n"


@pytest.mark.parametrize(("is_error", "name"), [(False, "standard output"), (True, "standard error")])
def test_output_that_cannot_be_written_costs_one_warning(tmp_path, full, is_error, name):
    """Python itself would not fail at exit either; the logs have every line, and the warning."""
    other = io.StringIO()
    printer = make_printer(tmp_path, *((other, full) if is_error else (full, other)))
    for text in (b"one", b"two"):
        printer.line("server0", text, is_error=is_error)
    full.flush()
    assert printer.lost_reader() == 0
    warning = f"{name} cannot be written: No space left on device; the job goes on"
    assert (tmp_path / "mpilaunch.log").read_text().startswith(warning)
    assert other.getvalue().count(warning) == (not is_error)
    assert (tmp_path / "server0.log").read_bytes() == b"one\ntwo\n"


def test_a_write_that_fails_after_the_stream_was_given_up_costs_no_second_warning(tmp_path):
    """A thread writes, and may have begun the next write before the first one's error was seen."""

    class Failing(io.StringIO):
        def fileno(self):
            return os.dup(nowhere.fileno())

        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    with Path(os.devnull).open("w") as nowhere:
        printer = make_printer(tmp_path, Failing(), io.StringIO())
        for _ in range(3):
            assert printer.lost_reader() == 0
    assert (tmp_path / "mpilaunch.log").read_text().count("cannot be written") == 1


def test_a_terminal_that_is_closed_is_told_once_and_not_written_again(tmp_path):
    """It stands for SIGHUP, which does not come to everybody."""
    controller, terminal = pty.openpty()
    with os.fdopen(os.dup(terminal), "w") as out, os.fdopen(terminal, "w") as err:
        printer = make_printer(tmp_path, out, err)
        printer.line("server0", b"seen")
        assert printer.lost_reader() == 0
        os.close(controller)
        printer.line("server0", b"unseen")
        assert printer.lost_reader() == signal.SIGHUP
        printer.line("server0", b"unseen")
        assert printer.lost_reader() == 0
        printer.say("unseen, too")
        assert printer.lost_reader() == signal.SIGHUP
    assert (tmp_path / "server0.log").read_bytes().count(b"seen") == 3


def test_a_reader_that_is_gone_is_told_once(tmp_path):
    """It stands for SIGPIPE, as of a program that does not ignore it."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:
        printer = make_printer(tmp_path, out)
        os.close(reading)
        printer.line("server0", b"unseen")
        assert printer.lost_reader() == signal.SIGPIPE
        printer.line("server0", b"unseen")
        assert printer.lost_reader() == 0
