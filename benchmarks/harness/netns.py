"""Hosts as network namespaces: each has a link to a bridge, with a rate limit in both directions.

Where one network is for servers and another for MPI, hosts have two links, to a bridge each.

Needs root, and ``ip`` and ``tc`` of iproute2. It must not know what runs in the hosts.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX = "kvmpi-bench"
NAME = re.compile(rf"{PREFIX}-(\d+)-(\d+)-[0-9a-f]+-(?:hub|host\d+)")
"""A namespace's name says which process made it (id, and when that was started), and for which network."""

LINK = "eth0"
BRIDGE = "bridge"
CONGESTION_CONTROL = "cubic"
"""Linux's own default. A machine may have another one, and hosts inherit it: with bbr, whose connections do
not share these links well, every store is about an eighth slower."""

HUB = 253
NETWORK = -1
"""What stands for the bridge's address and for the network's, instead of the number of a host."""

BURST = "128kb"
LATENCY = "200ms"
STARTED_FIELD = 19  # of /proc/<pid>/stat, counted after the command's name


class NetworkError(RuntimeError):
    """The hosts cannot be made; the message says what is missing and what to do."""


@final
class Network:
    """Hosts 0, 1, ... around one bridge; a context manager that leaves nothing behind."""

    def __init__(self, hosts: int) -> None:
        """Choose the names; nothing is made yet."""
        self.hosts = hosts
        self._prefix = f"{PREFIX}-{os.getpid()}-{_started(os.getpid())}-{secrets.token_hex(4)}"
        self._hub = f"{self._prefix}-hub"

    def __enter__(self) -> Network:
        """Make hub, hosts and links, after removing what crashed runs have left.

        Raises:
            NetworkError: See there.
        """
        check_tools()
        remove_leftovers()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what still runs in the hosts, and remove them."""
        self._remove()

    @property
    def hub_address(self) -> str:
        """Address of the bridge, where the rate is not limited."""
        return _address(HUB)

    def name(self, host: int) -> str:
        """Return the name of a host's namespace."""
        return f"{self._prefix}-host{host}"

    def address(self, host: int) -> str:
        """Return the IP address of a host's link."""
        return _address(host)

    def in_hub(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that runs another one at the bridge."""
        return ("ip", "netns", "exec", self._hub, *argv)

    def in_host(self, host: int, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that runs another one in a host; both are the same process."""
        return ("ip", "netns", "exec", self.name(host), *argv)

    def limit(self, bits_per_s: float) -> None:
        """Limit every host's link to a rate, in each direction by itself.

        Raises:
            NetworkError: The kernel has no token bucket filter.
        """
        shape = ("root", "tbf", "rate", f"{bits_per_s:.0f}bit", "burst", BURST, "latency", LATENCY)
        for host in range(self.hosts):
            for namespace, end in ((self.name(host), LINK), (self._hub, _port(host))):
                _do("tc", "-n", namespace, "qdisc", "replace", "dev", end, *shape)

    def _make(self) -> None:
        _add_namespace(self._hub)
        _do("ip", "-n", self._hub, "link", "add", BRIDGE, "type", "bridge")
        _do("ip", "-n", self._hub, "addr", "add", f"{_address(HUB)}/24", "dev", BRIDGE)
        _do("ip", "-n", self._hub, "link", "set", BRIDGE, "up")
        for host in range(self.hosts):
            _add_namespace(self.name(host))
            self._attach(host)

    def _attach(self, host: int) -> None:
        """Make a link from a host to the bridge."""
        name, port = self.name(host), _port(host)
        ends = ("add", port, "type", "veth", "peer", "name", LINK, "netns", name)
        _do("ip", "-n", self._hub, "link", *ends)
        _do("ip", "-n", self._hub, "link", "set", port, "master", BRIDGE, "up")
        _do("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", LINK)
        _do("ip", "-n", name, "link", "set", LINK, "up")
        subnet = f"{_address(NETWORK)}/24"
        _do("ip", "-n", name, "route", "change", subnet, "dev", LINK, "congctl", CONGESTION_CONTROL)

    def _remove(self) -> None:
        for name in _namespaces():
            if name.startswith(f"{self._prefix}-"):
                _remove_namespace(name)


def _address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def _port(host: int) -> str:
    """Name the end at the bridge of a host's link."""
    return f"host{host}-{LINK}"


def check_tools() -> None:
    """Make sure that namespaces can be made here.

    Raises:
        NetworkError: See there.
    """
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise NetworkError(f"{' and '.join(missing)} not found: install the Debian package iproute2")
    if os.geteuid() != 0:
        raise NetworkError("network namespaces need root: run this as root")


def remove_leftovers() -> None:
    """Remove the namespaces of runs that have ended without doing so, and kill what is in them."""
    for name in _namespaces():
        match = NAME.fullmatch(name)
        if match and _started(int(match[1])) != int(match[2]):
            _remove_namespace(name)


def _started(pid: int) -> int | None:
    """Return when a process was started, in ticks since boot; ``None`` if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None
    return int(text.rpartition(")")[2].split()[STARTED_FIELD])


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _do("ip", "netns", "list").splitlines()]


def _add_namespace(name: str) -> None:
    """Make a namespace whose loopback interface is up."""
    try:
        _do("ip", "netns", "add", name)
    except NetworkError as error:
        raise NetworkError(
            f"network namespaces are not permitted here: {error}. In a container, give it the capabilities "
            "NET_ADMIN and SYS_ADMIN (docker run --privileged)"
        ) from error
    _do("ip", "-n", name, "link", "set", "lo", "up")


def _remove_namespace(name: str) -> None:
    """Kill what runs in a namespace, and remove it."""
    try:
        for pid in _do("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _do("ip", "netns", "del", name)
    except NetworkError:
        # Several runs that begin at once remove the same leftovers: one of them comes too late.
        if name in _namespaces():
            raise


def _do(*command: str) -> str:
    """Run a command of iproute2 and return what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
