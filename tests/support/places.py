"""Where a test lets its jobs run: here, here under two addresses, or on two hosts that ssh reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.virtual_hosts import LOGIN, VirtualHosts, missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

HERE, ADDRESSES, HOSTS = "here", "addresses", "hosts"

_ELSEWHERE = [pytest.mark.thorough, pytest.mark.sampled(group="elsewhere")]

PLACES = [
    HERE,
    pytest.param(ADDRESSES, marks=_ELSEWHERE),
    pytest.param(HOSTS, marks=[pytest.mark.root, *_ELSEWHERE]),
]
"""For a fixture; what is run here anyway is run elsewhere in thorough runs, or a sample of it all."""

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


class UnderAddresses(Here):
    """This machine as two hosts, by two addresses of its own, of which the second needs no setting up."""

    def options(self, layout: Layout) -> Sequence[str]:
        """Return what mpilaunch has to be told."""
        return _spread(layout, "127.0.0.1", "127.0.0.2")


class OnHosts:
    """Two hosts of their own for a job's processes; the launcher's is a third one."""

    def __init__(self, hosts: VirtualHosts) -> None:
        """Jobs may be run on ``hosts``."""
        self.hosts = hosts

    def options(self, layout: Layout) -> Sequence[str]:
        """Return what mpilaunch has to be told."""
        return ("--ssh", self.hosts.ssh, *_spread(layout, *self.hosts.names))

    def command(self, argv: Sequence[str]) -> Sequence[str]:
        """Return the command that runs another one where jobs are launched."""
        return self.hosts.command(LOGIN, argv)


def _spread(layout: Layout, first: str, second: str) -> Sequence[str]:
    """Return the options for half of the ranks on each of two hosts, and servers on the second."""
    clients, per_client, servers = layout
    slots = -(-clients * per_client // 2)
    place = ("--server-hosts", second) if servers else ()
    return ("--hosts", f"{first}:{slots},{second}:{slots}", *place)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Here | OnHosts]:
    """Where a test's jobs run; what is left of them on hosts ends with those."""
    if request.param != HOSTS:
        yield Here() if request.param == HERE else UnderAddresses()
        return
    why = missing()
    if why:
        pytest.skip(why)
    with VirtualHosts(2, tmp_path) as hosts:
        yield OnHosts(hosts)
