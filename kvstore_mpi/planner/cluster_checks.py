"""Whether a cluster can be planned for. Pure."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.quantities import check_rate, check_seconds, check_speed

if TYPE_CHECKING:
    from kvstore_mpi.planner.cluster import Cluster, Link, Roofline


def check_cluster(cluster: Cluster) -> None:
    """Make sure of what ``Cluster.checked`` says.

    Raises:
        UsageError: It is not so; the text names the first thing that is wrong.
    """
    if cluster.hosts < 1 or cluster.num_each_host < 1:
        raise UsageError("the cluster has no device: it needs a host and a device or more")
    if cluster.hosts > 1 and cluster.network is None:
        raise UsageError("the cluster has several hosts and no [network] between them")
    if cluster.num_each_host > 1 and not (cluster.links or cluster.host or cluster.network):
        raise UsageError("the cluster has several devices and no [host], no links, between them")
    for table in ("rows_allreduce", "rows_servers"):
        for name, seconds in msgspec.structs.asdict(getattr(cluster, table)).items():
            check_seconds(f"[{table}]: {name}", seconds)
    for name in ("slice_s", "byte_s"):
        check_seconds(name, getattr(cluster, name))
    for named, kind in (("[network]", cluster.network), ("[host]", cluster.host)):
        if kind is not None:
            _check_numbers(named, kind)
    if cluster.device is not None:
        _check_roofline(cluster.device)
    _check_devices(cluster)
    _check_links(cluster)


def _check_devices(cluster: Cluster) -> None:
    names = Counter([*(each.name for each in cluster.each_host), *cluster.routers])
    if twice := [name for name, count in names.items() if count > 1]:
        raise UsageError(f"two devices or routers have the name {twice[0]!r}: rename one")
    for device in cluster.each_host:
        check_speed(f"device {device.name!r}: speed", device.speed)
        if device.memory_bytes < 0:  # more than anybody has is no limit
            raise UsageError(f"device {device.name!r}: memory_bytes must not be negative")


def _check_links(cluster: Cluster) -> None:
    devices = [each.name for each in cluster.each_host]
    for link in cluster.links:
        where = f"the link {link.source} -> {link.target}"
        for end in (link.source, link.target):
            if end not in (*devices, *cluster.routers):
                raise UsageError(f"{where} names {end!r}, which is no device or router of the cluster")
        if link.source == link.target:
            raise UsageError(f"{where} leads nowhere")
        _check_numbers(where, link)
    pairs = Counter((link.source, link.target) for link in cluster.links)
    if again := [pair for pair, count in pairs.items() if count > 1]:
        raise UsageError(f"the link {again[0][0]} -> {again[0][1]} is given twice")
    if cluster.links:
        one_host = msgspec.structs.replace(cluster, hosts=1)
        for one, other in permutations(devices, 2):
            one_host.route(one, other, 1)


def _check_numbers(where: str, link: Link) -> None:
    check_rate(f"{where}: bytes_per_s", link.bytes_per_s)
    for name in ("latency_s", "message_s"):
        check_seconds(f"{where}: {name}", getattr(link, name))


def _check_roofline(device: Roofline) -> None:
    for name in ("flops_per_s", "bytes_per_s"):
        check_rate(f"[device]: {name}", getattr(device, name))
    check_seconds("[device]: launch_s", device.launch_s)
    if device.item_bytes < 1:
        raise UsageError(f"[device]: item_bytes is {device.item_bytes}; an element has 1 or more")
