"""Which network a job on several hosts uses: one that all are on.

Pure but for ``networks_here`` and ``knock``, which look at the host that they run on.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_GET_ADDRESS, _GET_MASK, _GET_FLAGS = 0x8915, 0x891B, 0x8913
_UP, _LOOPBACK = 0x1, 0x8
KNOCK_S, KNOCK_PORT, MOST_AT_ONCE = 3.0, 40_009, 64
"""The port is one of those from which systems choose, as our processes let them; any would do."""

_NAME_BYTES = 15
"""From Linux's ``sockios.h`` and ``if.h``."""


class Attached(NamedTuple):
    """An address of a host on a network.

    Attributes:
        device: Name of the interface on that host; it may be another one on each.
        address: IPv4.
        prefix: Length of the network's prefix.
    """

    device: str
    address: str
    prefix: int

    @property
    def network(self) -> str:
        """The network, as in ``10.0.0.0/24``."""
        return str(ipaddress.IPv4Network((self.address, self.prefix), strict=False))


def choose(
    networks: Mapping[str, Sequence[Attached]], wanted: str = "", option: str = "--interface"
) -> dict[str, Attached]:
    """Return the address that each host has on the network of the job.

    Args:
        networks: What each host is attached to, without its loopback interface.
        wanted: Name of an interface, or a network such as ``10.0.0.0/24``; or nothing.
        option: What the user calls it.

    Raises:
        ConfigurationError: There is none, or there are several and the user has to choose.
    """
    if wanted:
        return {host: _wanted(host, attached, wanted, option) for host, attached in networks.items()}
    common = _common(networks)
    if len(common) == 1:
        return common[0]
    if not common and all(len(attached) == 1 for attached in networks.values()):
        return {host: attached[0] for host, attached in networks.items()}  # with routers between them
    ways = sorted({each.network for attached in common for each in attached.values()})
    if ways:
        raise ConfigurationError(f"the hosts have {', '.join(ways)} in common: choose one with {option}")
    told = "; ".join(
        f"{host} has {', '.join(f'{each.network} ({each.device})' for each in attached) or _NONE}"
        for host, attached in networks.items()
    )
    raise ConfigurationError(f"the hosts have no network in common: {told}. Choose with {option} NAME")


_NONE = "no network of IPv4, and jobs use no other"


def _wanted(host: str, attached: Sequence[Attached], wanted: str, option: str) -> Attached:
    if "/" in wanted:
        try:
            network = ipaddress.IPv4Network(wanted, strict=False)
        except ValueError as error:
            raise ConfigurationError(f"{option} {wanted} is no network of IPv4: {error}") from None
        found = [each for each in attached if ipaddress.IPv4Address(each.address) in network]
    else:
        found = [each for each in attached if wanted in (each.device, each.address)]
    if found:
        return found[0]
    there = ", ".join(f"{each.device} ({each.address}/{each.prefix})" for each in attached)
    raise ConfigurationError(f"{option} {wanted}: host {host} has {there or _NONE}, and not that")


def _common(networks: Mapping[str, Sequence[Attached]]) -> list[dict[str, Attached]]:
    """Return each network that all hosts are on."""
    first, *_ = networks.values()
    found = []
    for network in dict.fromkeys(each.network for each in first):
        on_it = {
            host: next((each for each in attached if each.network == network), None)
            for host, attached in networks.items()
        }
        known = {host: each for host, each in on_it.items() if each is not None}
        # The bridges of containers have the same address on every host: they lead nowhere.
        if len(known) == len(on_it) == len({each.address for each in known.values()}):
            found.append(known)
    return found


def told_to_mpi(way: Attached, given: Collection[str], *, chosen: bool) -> dict[str, str]:
    """Return the variables by which the MPI of a host's ranks keeps to a network.

    Open MPI would take any address of another host for a way there, even that of a container's bridge. UCX
    is told of a network that the user has chosen only: by itself it finds a faster one.

    Args:
        way: The host's address on the network.
        given: Names of variables that the user has set, which stay as they are.
        chosen: The user has chosen the network.
    """
    told = {_UCX: way.device} if chosen else {}
    if _OPEN_MPI_EXCLUDES not in given:  # it refuses both at once
        told[_OPEN_MPI] = way.device
    return {name: value for name, value in told.items() if name not in given}


_UCX = "UCX_NET_DEVICES"
_OPEN_MPI, _OPEN_MPI_EXCLUDES = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"


def told_unreached(attached: Mapping[str, Attached], problems: Mapping[str, Mapping[str, str]]) -> str:
    """Return what is wrong with the chosen network, or nothing.

    Args:
        attached: The address of each host on it.
        problems: For each host, which addresses it does not reach, and why.
    """
    names = {way.address: name for name, way in attached.items()}
    for here, unreached in problems.items():
        for address, why in unreached.items():
            device = attached[here].device
            return (
                f"host {here} does not reach host {names[address]} at {address} by {device}: {why}; choose "
                "another network with --interface, or open all ports between the hosts"
            )
    return ""


def knock(addresses: Iterable[str]) -> dict[str, str]:
    """Return which addresses cannot be reached from here, and why; takes seconds if there are any.

    A host that has nothing to offer at a port refuses at once, and so it can be reached.
    """
    listed = list(addresses)
    with ThreadPoolExecutor(max(1, min(len(listed), MOST_AT_ONCE))) as pool:
        told = zip(listed, pool.map(_knock, listed))
        return {address: problem for address, problem in told if problem}


def _knock(address: str) -> str:
    with socket.socket() as asked:
        asked.settimeout(KNOCK_S)
        try:
            asked.connect((address, KNOCK_PORT))
        except ConnectionRefusedError:
            return ""
        except OSError as error:
            return str(error.strerror or error)
    return ""


def networks_here() -> list[Attached]:
    """Return what this host is attached to by an interface that is up, without the loopback."""
    return list(_attached())


def _attached() -> Iterator[Attached]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, device in socket.if_nameindex():
            request = struct.pack("256s", device.encode()[:_NAME_BYTES])
            try:
                (flags,) = struct.unpack_from("H", fcntl.ioctl(asked, _GET_FLAGS, request), 16)
                if flags & _LOOPBACK or not flags & _UP:
                    continue
                address = socket.inet_ntoa(fcntl.ioctl(asked, _GET_ADDRESS, request)[20:24])
                mask = socket.inet_ntoa(fcntl.ioctl(asked, _GET_MASK, request)[20:24])
            except OSError:  # it has no IPv4 address
                continue
            yield Attached(device, address, ipaddress.IPv4Network((0, mask)).prefixlen)
