"""Where processes are, and of which it is known that their hosts are lost."""

from __future__ import annotations

from types import SimpleNamespace

from mpilaunch.places import Places
from mpilaunch.rank.record import RankName


def host(why=""):
    """Return a host without records, which is lost if there is a reason."""
    return SimpleNamespace(lost=lambda: why, read=lambda _name: None)


def test_processes_and_ranks_are_lost_with_their_hosts():
    """A client is if one of its ranks is, wherever its mpiexec runs."""
    processes = [SimpleNamespace(name=name, host=at) for name, at in (("server0", "b"), ("client0", ""))]
    plan = SimpleNamespace(
        processes=processes,
        clients=processes[1:],
        client_size=2,
        host_of_rank=lambda _client, rank: "ab"[rank],
    )
    well = Places(plan, {name: host() for name in ("", "a", "b")})
    assert (well.why_lost("server0"), well.why_lost("client0")) == ("", "")
    places = Places(plan, {"": host(), "a": host(), "b": host("gone")})
    assert (places.why_lost("server0"), places.why_lost("client0")) == 2 * ("host b is lost: gone",)
    assert places.record_of(RankName(0, 0), 7) is None
    record = places.record_of(RankName(0, 1), 7)
    assert (record.error, record.text, record.code) == ("HostLostError", "host b is lost: gone", 69)
