"""Stacks that a process writes when it is asked: whole, however busy it is, and without harm to it."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

from kvstore_mpi.metrics.stacks import STACK_SIGNAL, stack_pipe

ANSWER_S = 30.0

BEGIN = """
import ctypes, os, sys, threading
from kvstore_mpi.metrics.stacks import write_on_signal
from kvstore_mpi.wakeups import WakeUps
write_on_signal(sys.argv[1], "server0", WakeUps())
def say(what):
    sys.stdout.write(f"{what}\\n")
    sys.stdout.flush()
"""

BUSY = """
def deep(n):
    return n and deep(n - 1)
def be_busy():
    while True:
        deep(5)
        deep(300)
def start_threads():
    while True:
        thread = threading.Thread(target=deep, args=(3,))
        thread.start()
        thread.join()
for each in (be_busy, be_busy, start_threads):
    threading.Thread(target=each, daemon=True).start()
say("begun")
sys.stdin.read()
"""

# system() blocks all signals until its command has begun, and some time longer, as was seen in 6 of 300
# calls: another thread would get the signal. SIGURG is bit 22.
HELD = r"""
def in_native_code():  # it keeps the interpreter
    signal_is_heard = "grep -q '^SigBlk:.*[012389ab].....$' /proc/$PPID/status"
    command = f"until {signal_is_heard}; do :; done; echo begun; head -c 1 >/dev/null"
    ctypes.PyDLL(None).system(command.encode())
in_native_code()
say("read")
"""

NATIVE = """
say("begun")
got = ctypes.CDLL(None).read(0, ctypes.create_string_buffer(1), 1)
say(f"read {got}")
got = ctypes.CDLL(None).read(0, ctypes.create_string_buffer(1), 1)
say(f"read {got}")
"""

FORKED = """
if not os.fork():
    say(os.getpid())
sys.stdin.read()
"""

# SIGURG is bit 22 of the signals that somebody handles.
ENDING = """
import atexit
def is_handled():
    [line] = [line for line in open("/proc/self/status") if line.startswith("SigCgt:")]
    return bool(int(line.split()[1], 16) >> 22 & 1)
before = is_handled()
atexit._run_exitfuncs()
say(f"{before} {is_handled()}")
"""


class Asked:
    """A process that runs a script, and the reading end of its pipe."""

    def __init__(self, folder, script):
        path = folder / stack_pipe("server0")
        os.mkfifo(path)
        self.pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN + script, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.first = self.process.stdout.readline()

    def ask(self, last):
        """Ask for stacks; return them when what comes last is there."""
        self.process.send_signal(STACK_SIGNAL)
        return self.written(last)

    def written(self, last):
        text = b""
        end = time.monotonic() + ANSWER_S
        while not re.search(last, text):
            assert select.select([self.pipe], [], [], end - time.monotonic())[0], text.decode()
            data = os.read(self.pipe, 1 << 16)
            assert data, f"ended with {self.process.wait()}: {text.decode()[-2000:]}"
            text += data
        return text.decode()


@contextmanager
def asked(folder, script):
    each = Asked(folder, script)
    try:
        yield each
    finally:
        with suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)  # with the helper that it has forked
        each.process.communicate()
        os.close(each.pipe)


def test_a_process_whose_threads_run_lives_on(tmp_path):
    """Threads call, return, begin and end while their stacks are written, and those of the two others."""
    with asked(tmp_path, BUSY) as process:
        for _ in range(40):
            text = process.ask(rb"Thread 0x[^T]* in <module>\n$")
            assert text.count("hread 0x") >= 5
        assert process.process.poll() is None


def test_who_holds_the_interpreter_is_shown(tmp_path):
    """Its main thread by itself; the others come when the native code is over."""
    with asked(tmp_path, HELD) as process:
        text = process.ask(rb"in <module>\n$")
        assert "in in_native_code" in text
        assert "Thread" not in text
        process.process.stdin.write(b"!")
        process.process.stdin.flush()
        assert process.process.stdout.readline() == b"read\n"


def test_native_calls_go_on(tmp_path):
    """Also after an earlier inspection that has come to its end."""
    with asked(tmp_path, NATIVE) as process:
        for _ in range(2):
            process.ask(rb"Thread 0x[^T]* in <module>\n$")
            process.process.stdin.write(b"!")
            process.process.stdin.flush()
            assert process.process.stdout.readline() == b"read 1\n"


def test_helpers_that_are_forked_write_nothing(tmp_path):
    """The signal goes to a rank's process group."""
    with asked(tmp_path, FORKED) as process:
        os.kill(int(process.first), STACK_SIGNAL)
        text = process.ask(rb"Thread 0x[^T]* in <module>\n$")
        assert text.count("Stack (most recent") == 1
        assert process.process.poll() is None


def test_after_the_exit_handlers_nobody_looks_at_the_interpreter(tmp_path):
    """It takes itself apart then: with signals in quick succession 40 of 40 processes died of SIGSEGV."""
    with asked(tmp_path, ENDING) as process:
        assert process.first == b"True False\n"
        assert process.process.wait(ANSWER_S) == 0
