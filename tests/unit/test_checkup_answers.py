"""What the doctor hears from the processes that it starts on hosts."""

from __future__ import annotations

import fcntl
import os
import threading
import time

from mpilaunch.hosts.checkup import _line


def test_an_answer_that_takes_a_while_is_waited_for():
    """Also by a process that has over a thousand descriptors, as of many hosts."""
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD, 1024)
    later = threading.Timer(0.3, os.write, (writing, b"first\nlast\n"))
    later.start()
    assert _line(high, time.monotonic() + 30) == "first"
    later.join()
    begun = time.monotonic()
    assert _line(high, begun + 0.2) == ""
    assert 0.15 < time.monotonic() - begun < 10
    for each in (high, reading, writing):
        os.close(each)
