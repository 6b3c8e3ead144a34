"""Another user of the host, who does everything to some sockets that one can do without a secret.

Arguments are numbers of TCP ports of the loopback interface and names of abstract Unix sockets; the amounts
are in the environment. When all is done it says so, and keeps what is open until its input ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import sys
import threading
import time

NOBODY = 65_534
PATIENCE_S = 10.0
HALF_OPEN, ENDLESS_BYTES = int(os.environ["HALF_OPEN"]), int(os.environ["ENDLESS_BYTES"])
SLOW_BYTES, SLOW_S = 20, 0.05

kept = []


def visit(place):
    """Connect; keep the connection."""
    kind = socket.AF_INET if isinstance(place, int) else socket.AF_UNIX
    stranger = socket.socket(kind)
    kept.append(stranger)
    stranger.settimeout(PATIENCE_S)
    stranger.connect(("127.0.0.1", place) if isinstance(place, int) else b"\0" + place.encode())
    return stranger


def silent(place):
    visit(place)


def few_bytes(place):
    for count in (1, 2, 3, 4):
        visit(place).sendall(b"\x01" * count)


def garbage(place):
    visit(place).sendall(random.Random(1).randbytes(64 << 10))


def http(place):
    visit(place).sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def half_open(place):
    for _ in range(HALF_OPEN):
        visit(place)


def slow(place):
    stranger = visit(place)
    for _ in range(SLOW_BYTES):
        stranger.sendall(b"\x01")
        time.sleep(SLOW_S)


def endless(place):
    """Small messages in our framing, without end, and one whose frames do not end."""
    for text in (b"\x01\0\0\0\x3c\0\0\0" + bytes(60), b"\x02\0\0\0\x3c\0\0\0\0\0\0\x03" + bytes(1 << 16)):
        stranger = visit(place)
        block = text * (1 + (1 << 18) // len(text))
        for _ in range(ENDLESS_BYTES // len(block)):
            stranger.sendall(block)


WAYS = (silent, few_bytes, garbage, http, slow, endless, half_open)


def annoy(place):
    for way in WAYS:
        with contextlib.suppress(OSError):  # turned away, cut off or not read, as the job chooses
            way(place)


def main():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    places = [int(each) if each.isdigit() else each for each in sys.argv[1:]]
    threads = [threading.Thread(target=annoy, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(f"all is done, {len(kept)} connections\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
