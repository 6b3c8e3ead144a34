"""Hosts, devices and links, as a TOML file says. Pure.

Hosts are equal. Where the devices of a host are equal too, and joined pairwise by links of one kind::

    hosts = 8
    devices = 2              # of each host
    slice_s = 4e-5           # what the store's processes of a host take for a slice, besides its bytes
    byte_s = 1e-9            # and for a byte of dense arrays, most of it while links are busy; else 0

    [network]                # between two hosts
    bytes_per_s = 1.17e9     # in each direction
    latency_s = 3e-5

    [host]                   # between two devices of one host
    bytes_per_s = 6e9
    latency_s = 4e-6

    [rows_allreduce]         # what a host's processors take for tables that workers sum
    byte_s = 4e-9
    message_s = 5e-5
    step_s = 4e-3
    table_s = 1e-3

    [rows_servers]           # and for tables that servers have
    byte_s = 4e-9
    message_s = 5e-5
    step_s = 4e-3
    table_s = 3e-4

    [device]                 # only needed where times of a net are computed instead of measured
    flops_per_s = 1.5e13
    bytes_per_s = 9e11

Where they are not, each device, router and link of a host by itself, instead of a number and ``[host]``::

    routers = ["switch"]

    [[devices]]
    name = "card0"
    speed = 1.0              # of one for which times were measured or computed
    memory_bytes = 16_000_000_000

    [[links]]                # one way; the way back is a link of its own
    source = "card0"
    target = "switch"
    bytes_per_s = 6e9

``mpilaunch measure-links`` writes all that stands before ``[device]``.
"""

from __future__ import annotations

import heapq
from functools import cached_property
from itertools import count, permutations, product
from typing import Any

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cluster_checks import check_cluster
from kvstore_mpi.planner.digests import digest
from kvstore_mpi.planner.store_costs import SLICE_S, Rows, ServedRows


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One link, or one kind of link.

    Attributes:
        bytes_per_s: Payload that it carries in each direction.
        latency_s: Seconds of a message without content, one way.
        message_s: Seconds that each message between devices of one worker takes of the link's time besides
            its bytes. What slices cost is another thing: ``Cluster.slice_s``.
        source: Name of the device or router at its beginning; nothing of a kind of links.
        target: Name of the one at its end.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    message_s: float = 0.0
    source: str = ""
    target: str = ""

    def seconds(self, num_bytes: float) -> float:
        """Return what a message takes: D / B + L of equation (11)."""
        return num_bytes / self.bytes_per_s + self.latency_s + self.message_s


NO_LINK = Link(float("inf"))
"""What takes no time."""


class Roofline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a device of speed 1 can do.

    Attributes:
        flops_per_s: Floating-point operations in a second, as nets reach them.
        bytes_per_s: Of its memory.
        launch_s: Seconds until an operation starts.
        item_bytes: Of one element.
    """

    flops_per_s: float
    bytes_per_s: float
    launch_s: float = 0.0
    item_bytes: int = 4

    def seconds(self, flops: float, elements: float) -> float:
        """Return what an operation takes that computes and moves this much: the longer of the two."""
        by_memory = elements * self.item_bytes / self.bytes_per_s
        return self.launch_s + max(flops / self.flops_per_s, by_memory)


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One that computes.

    Attributes:
        name: Unique among the devices and routers of a host.
        speed: What it computes takes the seconds of a net over this; what belongs to no layer is not its.
        memory_bytes: That it has; 0: not limited.
    """

    name: str
    speed: float = 1.0
    memory_bytes: int = 0


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """Equal hosts; ``checked`` says whether it can be planned for.

    Attributes:
        hosts: Number of hosts.
        network: Between two hosts.
        devices: Of each host: how many equal ones, or each by itself.
        host: Between any two devices of a host, where ``links`` has none; that of the network if it is not
            given either.
        rows_allreduce: What the processors of a host take for tables that workers sum.
        rows_servers: The same for tables that servers have.
        slice_s: Seconds that the store's processes of a host take for one more slice, besides its bytes.
        byte_s: Seconds that they take for a byte of dense arrays, most of it while links are busy.
        device: What a device of speed 1 computes, where times are not measured.
        links: Between devices and routers of a host, each one way.
        routers: Of each host: names of what only forwards.
    """

    hosts: int = 1
    network: Link | None = None
    devices: int | tuple[Device, ...] = 1
    host: Link | None = None
    rows_allreduce: Rows = Rows()
    rows_servers: ServedRows = ServedRows()
    device: Roofline | None = None
    links: tuple[Link, ...] = ()
    routers: tuple[str, ...] = ()
    slice_s: float = SLICE_S
    byte_s: float = 0.0

    @property
    def each_host(self) -> tuple[Device, ...]:
        """The devices of one host."""
        if isinstance(self.devices, int):
            return tuple(Device(f"device{number}") for number in range(self.devices))
        return self.devices

    @property
    def num_each_host(self) -> int:
        """Devices of one host."""
        return self.devices if isinstance(self.devices, int) else len(self.devices)

    @property
    def num_devices(self) -> int:
        """Devices of all hosts."""
        return self.hosts * self.num_each_host

    @property
    def within_host(self) -> Link:
        """The link between two devices of a host, where one stands for all: the slowest."""
        if self.links:
            return min(self.links, key=lambda each: (each.bytes_per_s, -each.latency_s))
        return self.host or self.network or NO_LINK

    @property
    def between_hosts(self) -> Link:
        """The link between two hosts; where there is but one, that within it."""
        return self.network or self.within_host

    @cached_property
    def all_devices(self) -> tuple[Device, ...]:
        """The devices of all hosts; with several, the number of the host stands before a name."""
        return tuple(
            msgspec.structs.replace(each, name=self._name(host, each.name))
            for host in range(self.hosts)
            for each in self.each_host
        )

    @cached_property
    def all_routers(self) -> tuple[str, ...]:
        """The routers of all hosts."""
        return tuple(self._name(host, each) for host in range(self.hosts) for each in self.routers)

    @cached_property
    def all_links(self) -> tuple[Link, ...]:
        """Every link: those of each host, and one between any two devices of different hosts."""
        names = [each.name for each in self.each_host]
        inside = self.links or tuple(
            _between(self.within_host, one, other) for one, other in permutations(names, 2)
        )
        found = [
            _between(each, self._name(host, each.source), self._name(host, each.target))
            for host in range(self.hosts)
            for each in inside
        ]
        for (here, there), (one, other) in product(
            permutations(range(self.hosts), 2), product(names, names)
        ):
            found.append(_between(self.between_hosts, self._name(here, one), self._name(there, other)))
        return tuple(found)

    def _name(self, host: int, name: str) -> str:
        return f"host{host}.{name}" if self.hosts > 1 else name

    @property
    def digest(self) -> str:
        """What tells this cluster from others, in whatever order its devices, routers and links are."""
        return digest(
            msgspec.structs.replace(
                self,
                devices=tuple(sorted(self.each_host, key=lambda each: each.name)),
                links=tuple(sorted(self.links, key=lambda each: (each.source, each.target))),
                routers=tuple(sorted(self.routers)),
            )
        )

    def of_one_worker(self, ways: int) -> Cluster | None:
        """Return the devices that a worker of ``ways`` of them has; ``None`` if there is no such part.

        Within a host the first ones, else all of several hosts.
        """
        if ways > self.num_each_host:
            if ways % self.num_each_host or ways > self.num_devices:
                return None
            return msgspec.structs.replace(self, hosts=ways // self.num_each_host)
        if isinstance(self.devices, int):
            return msgspec.structs.replace(self, hosts=1, devices=ways)
        ends = {*(each.name for each in self.devices[:ways]), *self.routers}
        links = tuple(each for each in self.links if {each.source, each.target} <= ends)
        return msgspec.structs.replace(self, hosts=1, devices=self.devices[:ways], links=links)

    def by_name(self) -> dict[str, Device]:
        """Return all devices by their names."""
        return {each.name: each for each in self.all_devices}

    def route(self, source: str, target: str, num_bytes: int) -> tuple[Link, ...]:
        """Return the fastest way for a tensor, by the sum of its links' times; equations (8), (9), (11).

        Devices other than its ends forward nothing. Nothing is needed within a device, or for 0 bytes.

        Raises:
            UsageError: No way leads there.
        """
        if source == target or not num_bytes:
            return ()
        leaving: dict[str, list[Link]] = {}
        for link in self.all_links:
            leaving.setdefault(link.source, []).append(link)
        routers = set(self.all_routers)
        best: set[str] = set()
        numbers = count(1)  # of ways that take equally long, the first that is found
        waiting: list[tuple[float, int, str, tuple[Link, ...]]] = [(0.0, 0, source, ())]
        while waiting:
            seconds, _, node, way = heapq.heappop(waiting)
            if node == target:
                return way
            if node in best or (node != source and node not in routers):
                continue
            best.add(node)
            for link in leaving.get(node, ()):
                entry = (seconds + link.seconds(num_bytes), next(numbers), link.target, (*way, link))
                heapq.heappush(waiting, entry)
        raise UsageError(
            f"no way leads from {source} to {target}: give the cluster links, or routers between them"
        )

    def checked(self) -> Cluster:
        """Return the cluster.

        Raises:
            UsageError: No host or device, a name twice, a link to nowhere or given twice, a number that
                cannot be, two devices that no way joins.
        """
        check_cluster(self)
        return self


def uniform(
    count: int, bytes_per_s: float, latency_s: float = 0.0, *, speed: float = 1.0, memory_bytes: int = 0
) -> Cluster:
    """Return a host of ``count`` equal devices, each with a link to every other."""
    devices = tuple(Device(f"device{number}", speed, memory_bytes) for number in range(count))
    return Cluster(devices=devices, host=Link(bytes_per_s, latency_s)).checked()


def read_cluster(text: str, where: str = "this text") -> Cluster:
    """Read the TOML of a cluster.

    Raises:
        UsageError: It is none; ``where`` says where the text is from.
    """
    how = "mpilaunch measure-links writes one"
    try:
        said = msgspec.toml.decode(text)
        cluster = msgspec.convert(said, Cluster).checked()
    except (msgspec.DecodeError, ValueError, UsageError) as error:
        raise UsageError(f"{where} describes no cluster: {error}; {how}") from error
    if not said:
        raise UsageError(f"{where} describes no cluster: it is empty; {how}")
    return cluster


def write_cluster(cluster: Cluster, remark: str = "") -> str:
    """Return the TOML of a cluster, after a comment."""
    values = msgspec.to_builtins(cluster)
    plain = {"hosts": cluster.hosts, "devices": 1, **values}
    lines = [*(f"# {line}" for line in remark.splitlines())]
    lines += [f"{key} = {_toml(value)}" for key, value in plain.items() if not _is_table(value)]
    for name, value in values.items():
        if isinstance(value, dict):
            lines += ["", f"[{name}]", *_pairs(value)]
        elif _is_table(value):
            for each in value:
                lines += ["", f"[[{name}]]", *_pairs(each)]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, tuple | list) and isinstance(value[0], dict))


def _pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in values.items()]


def _toml(value: Any) -> str:
    """Return a number, a text or a list of texts as in TOML, which writes them as JSON does."""
    return msgspec.json.encode(value).decode()


def _between(kind: Link, source: str, target: str) -> Link:
    return msgspec.structs.replace(kind, source=source, target=target)
