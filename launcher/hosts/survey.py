"""``python -m mpilaunch.hosts.survey``: what a host says of itself when ``mpilaunch doctor --hosts`` asks.

Two commands. ``listen ADDRESS NAME...`` prints what is known of this host and of what these names are
here, and then answers on a port of the address until it is ended. ``reach ADDRESS:PORT...`` connects to
such ports and prints what has come of it.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import struct
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import msgspec

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.host_name import host_name
from mpilaunch.hosts.judgement import Facts, Reached
from mpilaunch.mpi import find_mpi

PACKAGES = ("kvstore_mpi", "mxnet", "numpy", "mpi4py", "msgspec")
CONNECT_S = 4.0
NONCE_BYTES = 16
_TIME = struct.Struct("<d")


def facts(names: list[str], port: int) -> Facts:
    """Return what is known of this host."""
    try:
        mpi, problem = find_mpi().version, ""
    except ConfigurationError as error:
        mpi, problem = "", str(error)
    status = os.statvfs("/dev/shm") if Path("/dev/shm").exists() else None  # noqa: S108  looked at only
    return Facts(
        versions={
            "Python": ".".join(map(str, sys.version_info[:3])),
            **{name: version_of(name) for name in PACKAGES},
            "MPI": mpi,
        },
        mpi_problem=problem,
        host=host_name(),
        addresses={name: _addresses(name) for name in dict.fromkeys([*names, host_name()])},
        shared_memory=status.f_bavail * status.f_frsize if status else 0,
        folder=tempfile.gettempdir(),
        folder_mode=stat.S_IMODE(Path(tempfile.gettempdir()).stat().st_mode),
        port=port,
    )


def version_of(package: str) -> str:
    """Return which version of a package is installed here; nothing if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _addresses(name: str) -> list[str]:
    try:
        return sorted({str(each[4][0]) for each in socket.getaddrinfo(name, None, socket.AF_INET)})
    except (OSError, UnicodeError):  # the latter where it cannot be a name of the DNS
        return []


def listen(address: str, names: list[str]) -> None:
    """Print the facts; then answer who connects, with what it has sent and the time."""
    with socket.create_server((address, 0)) as listener:
        _say(facts(names, listener.getsockname()[1]))
        while True:
            connected, _ = listener.accept()
            threading.Thread(target=_answer, args=(connected,), daemon=True).start()


def _answer(connected: socket.socket) -> None:
    with connected:
        connected.settimeout(CONNECT_S)
        nonce = connected.recv(NONCE_BYTES, socket.MSG_WAITALL)
        connected.sendall(nonce + _TIME.pack(time.time()))


def reach(target: str) -> Reached:
    """Connect to a port on which ``listen`` answers."""
    host, _, port = target.rpartition(":")
    nonce = secrets.token_bytes(NONCE_BYTES)
    try:
        with socket.create_connection((host, int(port)), CONNECT_S) as connected:
            before = time.time()
            connected.sendall(nonce)
            said = connected.recv(NONCE_BYTES + _TIME.size, socket.MSG_WAITALL)
            after = time.time()
    except OSError as error:
        return Reached(target, problem=error.strerror or str(error))
    if said[:NONCE_BYTES] != nonce or len(said) < NONCE_BYTES + _TIME.size:
        return Reached(target, problem="somebody else answers there")
    (there,) = _TIME.unpack(said[NONCE_BYTES:])
    return Reached(target, ahead=there - (before + after) / 2, uncertain=(after - before) / 2)


def _say(told: Facts | list[Reached]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen(sys.argv[2], sys.argv[3:])
    with ThreadPoolExecutor(len(sys.argv)) as pool:
        _say(list(pool.map(reach, sys.argv[2:])))
