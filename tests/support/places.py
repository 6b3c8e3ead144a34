"""Where a test lets its jobs run: on this machine, or on two hosts that ssh reaches from a third."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.virtual_hosts import LOGIN, VirtualHosts, missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

HERE, HOSTS = "here", "hosts"

PLACES = [
    HERE,
    pytest.param(HOSTS, marks=[pytest.mark.root, pytest.mark.thorough, pytest.mark.sampled(group=HOSTS)]),
]
"""For a fixture; what is run here anyway is run on hosts in thorough runs, or a sample of it all."""

Layout = tuple[int, int, int]
"""Clients, ranks of each, servers."""


class Here:
    """This machine."""

    hosts = None

    def options(self, layout: Layout) -> Sequence[str]:
        """Return what mpilaunch has to be told for a job of a layout."""
        del layout
        return ()

    def command(self, argv: Sequence[str]) -> Sequence[str]:
        """Return the command that runs another one where jobs are launched."""
        return argv


class OnHosts:
    """Two hosts of their own for a job's processes; the launcher's is a third one."""

    def __init__(self, hosts: VirtualHosts) -> None:
        """Jobs may be run on ``hosts``."""
        self.hosts = hosts

    def options(self, layout: Layout) -> Sequence[str]:
        """Return what mpilaunch has to be told: half of the ranks on each, servers on the second."""
        clients, per_client, servers = layout
        slots = -(-clients * per_client // 2)
        place = ("--server-hosts", "node1") if servers else ()
        return ("--ssh", self.hosts.ssh, "--hosts", f"node0:{slots},node1:{slots}", *place)

    def command(self, argv: Sequence[str]) -> Sequence[str]:
        """Return the command that runs another one where jobs are launched."""
        return self.hosts.command(LOGIN, argv)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Here | OnHosts]:
    """Where a test's jobs run; what is left of them on hosts ends with those."""
    if request.param == HERE:
        yield Here()
        return
    why = missing()
    if why:
        pytest.skip(why)
    with VirtualHosts(2, tmp_path) as hosts:
        yield OnHosts(hosts)
