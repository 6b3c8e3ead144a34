"""The hosts that a user names, and which process goes where. Pure.

Names are as the user has written them. Ranks take the hosts' slots; servers take none.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPREAD, FIRST = "spread", "first"
"""Where servers go, unless hosts are named: to all hosts in turn, or all to the first."""


class Slots(NamedTuple):
    """One host of a list.

    Attributes:
        name: As the user has written it.
        slots: How many ranks it takes; 0 if the user has not said.
    """

    name: str
    slots: int


class Placement(NamedTuple):
    """Which host each process is on; empty in a job on this host alone.

    Attributes:
        hosts: All that have something, and the first, in the order in which the user names them.
        ranks: The host of each rank, for each client.
        servers: The host of each server. The scheduler is on the first host.
        idle: The hosts that the user names besides.
    """

    hosts: tuple[str, ...] = ()
    ranks: tuple[tuple[str, ...], ...] = ()
    servers: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a line for each host, and one for those that have nothing to do."""
        names = ", ".join(self.idle)
        idle = [f"{names}: nothing, as all ranks fit on hosts before; HOST:N says how many one takes"]
        return "\n".join([*map(self._line, self.hosts), *(idle if names else [])])

    def _line(self, host: str) -> str:
        parts = [
            f"client{client} {_ranks([rank for rank, at in enumerate(ranks) if at == host])}"
            for client, ranks in enumerate(self.ranks)
            if host in ranks
        ]
        parts += [f"server{index}" for index, at in enumerate(self.servers) if at == host]
        parts += ["scheduler"] if self.servers and host == self.hosts[0] else []
        return f"{host}: {', '.join(parts) if parts else 'nothing'}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def parse_hosts(text: str, what: str = "--hosts") -> list[Slots]:
    """Read ``a:4,b:4`` or ``a,b``.

    Raises:
        UsageError: A part is of another form, or a host comes twice.
    """
    return _checked([_part(part.strip(), what) for part in text.split(",")], what)


def parse_hostfile(text: str, name: str) -> list[Slots]:
    """Read a file with a host in each line: ``a slots=2``, ``a:2`` or ``a``; ``#`` begins a comment.

    Args:
        text: Its content.
        name: Of the file, for errors.

    Raises:
        UsageError: A line is of another form, a host comes twice, or there is none.
    """
    return _checked(list(_lines(text, name)), name)


def _lines(text: str, name: str) -> Iterator[Slots]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        where = f"{name}, line {number}"
        if not words:
            continue
        _refuse_ipv6(words[0], where)
        slots = [word[len("slots=") :] for word in words[1:] if word.startswith("slots=")]
        # Open MPI's files may also say how many slots there are at most, which is no business of ours.
        strange = [
            word for word in words[1:] if not word.startswith(("slots=", "max_slots=", "max-slots="))
        ]
        if strange or len(slots) > 1 or (slots and ":" in words[0]):
            raise UsageError(f"{where}: {line.strip()!r} is not of the form HOST, HOST:N or HOST slots=N")
        yield _part(f"{words[0]}:{slots[0]}" if slots else words[0], where)


def _refuse_ipv6(text: str, where: str) -> None:
    try:
        ipaddress.IPv6Address(text.rpartition("@")[2].removeprefix("[").partition("]")[0])
    except ValueError:
        return
    raise UsageError(
        f"{where}: {text!r} is an address of IPv6, and jobs run over IPv4 only: give the host's name or an "
        "address of IPv4"
    )


def _part(text: str, where: str) -> Slots:
    _refuse_ipv6(text, where)
    name, colon, slots = text.partition(":")
    # A name that began so would be an option for ssh.
    if not name or name.startswith("-") or not name.isprintable() or " " in name:
        raise UsageError(f"{where}: {text!r} is no host; give NAME or NAME:SLOTS")
    if colon and (not slots.isdecimal() or not int(slots)):
        raise UsageError(f"{where}: {slots!r} is no number of ranks for host {name!r}; give {name}:N")
    return Slots(name, int(slots) if colon else 0)


def _checked(hosts: list[Slots], where: str) -> list[Slots]:
    if not hosts:
        raise UsageError(f"{where} names no host")
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{where} names host {twice!r} more than once; say how many ranks with {twice}:N")
    return hosts


def place(
    hosts: Sequence[Slots], *, num_clients: int, client_size: int, num_servers: int, servers: str = SPREAD
) -> Placement:
    """Say where each process goes.

    Clients get whole hosts as far as they can, then share some. Where no host says how many ranks it takes,
    all take as many.

    Args:
        hosts: In the order in which they are filled.
        num_clients: Clients.
        client_size: Ranks of each.
        num_servers: Servers.
        servers: ``spread``, ``first``, or names of hosts with commas between, of which servers take turns.

    Raises:
        UsageError: There are too few slots, or servers are to be where no host is.
    """
    workers = num_clients * client_size
    unknown = sum(1 for host in hosts if not host.slots)
    rest = workers - sum(host.slots for host in hosts)
    share = max(1, -(-rest // unknown)) if unknown else 0
    free = {host.name: host.slots or share for host in hosts}
    if sum(free.values()) < workers:
        told = ", ".join(f"{name}:{slots}" for name, slots in free.items())
        raise UsageError(
            f"{workers} workers do not fit on {told}, which take {sum(free.values())}; "
            "give more hosts or more ranks for each (HOST:N)"
        )
    slots = dict(free)
    ranks = tuple(tuple(_take(free, slots, client_size)) for _ in range(num_clients))
    at = _hosts_of_servers([host.name for host in hosts], servers)
    placed = tuple(at[index % len(at)] for index in range(num_servers))
    used = {*placed, *(host for client in ranks for host in client)}
    # The first is the scheduler's.
    kept = tuple(host.name for index, host in enumerate(hosts) if host.name in used or not index)
    idle = tuple(host.name for host in hosts if host.name not in kept)
    return Placement(kept, ranks, placed, idle)


def _take(free: dict[str, int], slots: dict[str, int], count: int) -> Iterator[str]:
    """Take the slots of one client: of hosts that nobody has begun and that it fills, then of others."""
    whole = [name for name in free if free[name] == slots[name]]
    for name in whole:
        if 0 < free[name] <= count:
            count -= free[name]
            yield from [name] * free[name]
            free[name] = 0
    # What is left goes to hosts that are shared already, so that whole ones stay whole for the others.
    for name in sorted(free, key=lambda each: free[each] == slots[each]):
        taken = min(count, free[name])
        free[name] -= taken
        count -= taken
        yield from [name] * taken


def _hosts_of_servers(names: Sequence[str], servers: str) -> list[str]:
    if servers == SPREAD:
        return list(names)
    if servers == FIRST:
        return [names[0]]
    wanted = [name.strip() for name in servers.split(",")]
    strange = [name for name in wanted if name not in names]
    if strange:
        raise UsageError(
            f"--server-hosts {servers}: {strange[0]!r} is none of the hosts {', '.join(names)}; "
            f"give {SPREAD}, {FIRST} or some of them"
        )
    return wanted
