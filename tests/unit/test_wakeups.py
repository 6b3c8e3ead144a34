"""The thread that hears signals goes on whatever is done at them."""

import signal
import subprocess
import sys

HEARS_TWICE = """
import logging, os, signal, threading
from kvstore_mpi.wakeups import WakeUps
logging.basicConfig()
times, heard = [], [threading.Event(), threading.Event()]
def hear():
    times.append(len(times))
    heard[times[-1]].set()
    raise AttributeError("not imported yet")
signal.signal(signal.SIGUSR1, lambda *_: None)
WakeUps().on(signal.SIGUSR1, hear)
for each in heard:
    os.kill(os.getpid(), signal.SIGUSR1)
    assert each.wait(60), times
"""


def test_what_a_signal_does_may_fail():
    """It is logged, and the next signal is heard."""
    done = subprocess.run(
        [sys.executable, "-c", HEARS_TWICE], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    said = f"ERROR:kvstore_mpi.signals:handling signal {int(signal.SIGUSR1)} has failed"
    assert said in done.stderr
    assert "AttributeError: not imported yet" in done.stderr
