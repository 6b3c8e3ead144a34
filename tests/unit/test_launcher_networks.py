"""Which network a job on several hosts uses."""

from __future__ import annotations

import ipaddress
import json
import shutil
import subprocess

import pytest

from kvstore_mpi.errors import ConfigurationError
from mpilaunch.hosts.networks import Attached, choose, knock, networks_here, told_to_mpi, told_unreached


def on(*networks):
    """Return what a host is attached to, of texts like ``eth0 10.0.0.1/24``."""
    parts = [each.split() for each in networks]
    return [Attached(device, *_split(address)) for device, address in parts]


def _split(address):
    host, _, bits = address.partition("/")
    return host, int(bits)


def test_the_network_in_common():
    """Whatever its interface is called on each; bridges of containers, the same everywhere, are none."""
    docker = "docker0 172.17.0.1/16"
    hosts = {
        "a": on("eth0 10.0.0.1/24", "eth1 192.168.1.1/24", docker),
        "b": on(docker, "ens3 10.0.0.2/24", "ib0 192.168.2.1/24"),
    }
    assert choose(hosts) == {"a": ("eth0", "10.0.0.1", 24), "b": ("ens3", "10.0.0.2", 24)}


def test_several_networks_in_common():
    """The user chooses, by a name or a network; a host that lacks it is named."""
    hosts = {
        "a": on("eth0 10.0.0.1/24", "ib0 10.1.0.1/16"),
        "b": on("eth0 10.0.0.2/24", "ib0 10.1.7.2/16"),
    }
    with pytest.raises(ConfigurationError, match=r"10.0.0.0/24, 10.1.0.0/16 in common: .* --interface"):
        choose(hosts)
    assert {each.address for each in choose(hosts, "ib0").values()} == {"10.1.0.1", "10.1.7.2"}
    assert {each.address for each in choose(hosts, "10.0.0.0/24").values()} == {"10.0.0.1", "10.0.0.2"}
    hosts["b"] = on("eth0 10.0.0.2/24", "mlx0 10.1.7.2/16")
    with pytest.raises(ConfigurationError, match=r"ib0: host b has eth0 .*mlx0 .*, and not that"):
        choose(hosts, "ib0")
    with pytest.raises(ConfigurationError, match="is no network"):
        choose(hosts, "10.0.0.0/99")


def test_no_network_in_common():
    """Routers may lie between; where hosts have several ways, nobody knows which to take."""
    assert choose({"a": on("eth0 10.0.0.1/24"), "b": on("eth0 10.9.0.1/24")})["b"].address == "10.9.0.1"
    with pytest.raises(
        ConfigurationError, match=r"in common: a has 10.0.0.0/24 .*; b has no network of IPv4"
    ):
        choose({"a": on("eth0 10.0.0.1/24"), "b": []})


def test_a_host_alone():
    """With several networks it is asked for one as well."""
    assert choose({"a": on("eth0 10.0.0.1/24")})["a"].device == "eth0"


@pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2, to compare with, is not installed")
def test_the_networks_of_this_host():
    """As iproute2 tells them."""
    said = json.loads(subprocess.run(["ip", "-j", "-4", "addr"], capture_output=True, check=True).stdout)
    known = {
        (each["ifname"], address["local"], address["prefixlen"])
        for each in said
        for address in each.get("addr_info", [])
        if not ipaddress.ip_address(address["local"]).is_loopback and not address.get("secondary")
    }
    assert set(networks_here()) <= known


def test_who_knocks_is_told_what_cannot_be_reached():
    """A port that refuses belongs to a host that can be; other addresses are named, with their host."""
    problems = knock(["127.0.0.1", "255.255.255.255"])
    assert list(problems) == ["255.255.255.255"]
    ways = {"a": Attached("eth0", "10.0.0.1", 24), "b": Attached("ib0", "255.255.255.255", 24)}
    said = told_unreached(ways, {"b": {}, "a": problems})
    assert said.startswith("host a does not reach host b at 255.255.255.255 by eth0: ")
    assert "--interface" in said
    assert told_unreached(ways, {"a": {}, "b": {}}) == ""


def test_what_mpi_is_told_of_the_network():
    """Open MPI always, UCX where the user has chosen; and nothing that the user has said already."""
    (way,) = on("eth0 10.0.0.1/24")
    ours, ucx = {"OMPI_MCA_btl_tcp_if_include": "eth0"}, {"UCX_NET_DEVICES": "eth0"}
    assert told_to_mpi(way, (), chosen=False) == ours
    assert told_to_mpi(way, (), chosen=True) == {**ucx, **ours}
    assert told_to_mpi(way, (*ours, *ucx), chosen=True) == {}
    assert told_to_mpi(way, ["OMPI_MCA_btl_tcp_if_exclude"], chosen=True) == ucx
