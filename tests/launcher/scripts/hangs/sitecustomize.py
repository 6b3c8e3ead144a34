"""Lets a server be stuck: at SIGUSR2 its only thread waits, as in a lock that nobody gives back."""

import os
import signal
import time


def be_stuck(_number, _frame):
    time.sleep(8)


if os.environ.get("KVMPI_ROLE") == "server":
    signal.signal(signal.SIGUSR2, be_stuck)
