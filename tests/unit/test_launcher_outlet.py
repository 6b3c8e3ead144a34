"""Output that waits for its reader, while whoever writes it does not."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import threading

import pytest

from mpilaunch.outlet import HELD_BYTES, Outlet, Outlets

LINE = "x" * 999 + "\n"


@pytest.fixture
def pipe():
    """A pipe of which nobody reads; its two ends."""
    reading, writing = os.pipe()
    yield reading, writing
    for end in (reading, writing):
        os.close(end)


def read_until(descriptor, end):
    """Read until what was read ends with a text."""
    text = b""
    while not text.endswith(end):
        text += os.read(descriptor, 1 << 20)
    return text.decode()


@pytest.mark.parametrize("blocking", [True, False])
def test_what_is_written_comes_in_order_when_somebody_reads(pipe, blocking):
    """More than a pipe holds."""
    reading, writing = pipe
    os.set_blocking(writing, blocking)
    outlet = Outlet(writing, "the logs", lambda: None)
    lines = [f"{number} {LINE}" for number in range(1000)]
    for line in lines:
        outlet.write(line)
    assert read_until(reading, lines[-1].encode()) == "".join(lines)
    outlet.drain()


@pytest.mark.timeout(60)
def test_a_process_may_have_over_a_thousand_descriptors(pipe):
    """As one that starts jobs from Python may; ``select()`` takes none of these."""
    reading, writing = pipe
    high = fcntl.fcntl(writing, fcntl.F_DUPFD, 1024)
    Outlet(high, "the logs", lambda: None).write(LINE)
    assert read_until(reading, b"\n") == LINE
    os.close(high)


def test_what_does_not_fit_is_left_out_and_counted(pipe):
    """The writer never waits; the reader is told how many lines he has missed, and where they are."""
    reading, writing = pipe
    outlet = Outlet(writing, "/the/logs", lambda: None)
    number = 2 * HELD_BYTES // len(LINE)
    for _ in range(number):
        outlet.write(LINE)
    texts = []
    reader = threading.Thread(target=lambda: texts.append(read_until(reading, b"end\n")))
    reader.start()
    outlet.drain()
    outlet.write("end\n")
    reader.join()
    shown = texts[0].count(LINE)
    assert HELD_BYTES - len(LINE) <= shown * len(LINE) <= HELD_BYTES + (1 << 20)  # and what the pipe holds
    note = "mpilaunch| {} lines were left out, for nobody read them; they are in /the/logs\n"
    counts = [int(line.split()[1]) for line in texts[0].splitlines() if line.startswith("mpilaunch|")]
    assert shown + sum(counts) == number
    notes = sum(len(note.format(count)) for count in counts)
    assert len(texts[0]) == shown * len(LINE) + notes + len("end\n")


@pytest.mark.parametrize("colour", ["", "\x1b[31m"])
def test_what_the_launcher_says_is_never_left_out(pipe, colour):
    """It says why the job has ended; a process that names itself so does not pass for it."""
    reading, writing = pipe
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:  # to the last byte: what is held stays so until somebody reads
            os.write(writing, b"-")
    os.set_blocking(writing, True)
    outlet = Outlet(writing, "/the/logs", lambda: None)
    for _ in range(2 * HELD_BYTES // len(LINE)):
        outlet.write(LINE)
    for _ in range(len(LINE)):
        outlet.write("x")
    outlet.write("client0.0| mpilaunch| not so\n")
    outlet.write(f"{colour}mpilaunch| why\n")
    texts = []
    reader = threading.Thread(target=lambda: texts.append(read_until(reading, b"end\n")))
    reader.start()
    outlet.drain()
    outlet.write("end\n")
    reader.join()
    assert f"{colour}mpilaunch| why\n" in texts[0]
    assert "not so" not in texts[0]


def test_an_error_is_raised_once_and_told_at_once(pipe):
    """Whoever waits for other things hears of it by a descriptor."""
    _, writing = pipe
    full = os.open("/dev/full", os.O_WRONLY)
    with Outlets(full, writing, "the logs") as outlets:
        outlets.out.write("lost\n")
        assert select.select([outlets.failed], [], [], 60)[0]
        with pytest.raises(OSError, match="No space left") as raised:
            outlets.out.flush()
        assert raised.value.errno == errno.ENOSPC
        outlets.out.flush()
    os.close(full)


@pytest.mark.timeout(60)
def test_what_cannot_be_written_is_not_waited_for_after_the_job(pipe):
    """Nobody listens for errors then; the reader may have gone before the last line."""
    _, writing = pipe
    full = os.open("/dev/full", os.O_WRONLY)
    with Outlets(full, writing, "the logs") as outlets:
        os.close(outlets.failed)
        outlets.out.write("lost\n")
    os.close(full)


def test_streams_that_are_one_file_keep_their_order(pipe):
    """``mpilaunch … 2>&1``: what was said first is read first."""
    reading, writing = pipe
    other = os.dup(writing)
    with Outlets(writing, other, "the logs") as outlets:
        for number in range(100):
            (outlets.err if number % 2 else outlets.out).write(f"{number}\n")
    assert os.read(reading, 4096).decode().split() == [str(number) for number in range(100)]
    os.close(other)
