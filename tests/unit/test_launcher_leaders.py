"""``--leaders auto``: how many ranks of each client speak to the servers."""

from __future__ import annotations

import pytest

from kvstore_mpi.config import NodeConfig
from mpilaunch.hosts.hostlist import Placement
from mpilaunch.jobspec import JobSpec, Target
from mpilaunch.leaders import busiest, with_leaders

PLENTY = dict.fromkeys("abcdefgh", 64)


def placed(ranks, servers):
    """Place one rank, or server, for each letter: ``ab cd`` is two clients on two hosts each."""
    hosts = dict.fromkeys(ranks.replace(" ", "") + servers)
    return Placement(tuple(hosts), tuple(map(tuple, ranks.split())), tuple(servers))


def chosen(ranks, servers, cores=PLENTY, max_restarts=0, **node):
    """Return which leaders a job has."""
    clients, workers = len(ranks.split()), len(ranks.replace(" ", ""))
    shape = {"num_clients": clients, "num_workers": workers, "num_servers": len(servers)}
    spec = JobSpec(Target.SCRIPT, ("w.py",), NodeConfig(**{**shape, **node}), max_restarts=max_restarts)
    return with_leaders(spec, placed(ranks, servers), cores).node.leaders


@pytest.mark.parametrize(
    ("ranks", "servers", "one", "all_push"),
    [
        # Servers on hosts of their own, clients of a rank on each host: the ends of docs/collectives.md.
        ("ab", "cd", 2, 3 / 2),
        ("abcd", "efgh", 2, 7 / 4),
        # The leader's host holds half of the servers and need not send to those.
        ("ab", "ab", 3 / 2, 3 / 2),
        # Two clients that share a single server.
        ("ab cd", "e", 2, 2),
        ("ab cd", "abcd", 2, 7 / 4),
        # Ranks that share a host share its link: three of them push three quarters.
        ("aaab", "cc", 2, 7 / 4),
        ("aa", "b", 1, 1),
    ],
)
def test_what_the_busiest_link_carries(ranks, servers, one, all_push):
    """In sizes of the model, in either direction."""
    placement = placed(ranks, servers)
    assert busiest(placement, all_push=False) == pytest.approx(one)
    assert busiest(placement, all_push=True) == pytest.approx(all_push)


@pytest.mark.parametrize(
    ("ranks", "servers", "leaders"),
    [
        ("ab", "cd", "all"),
        ("abcd", "efgh", "all"),
        ("ab cd", "abcd", "all"),
        ("ab", "ab", "auto"),
        ("aa", "b", "auto"),
        ("a b", "cd", "auto"),
        ("ab cd", "e", "auto"),
        ("ab", "", "auto"),
    ],
)
def test_all_where_the_busiest_link_has_less_to_do(ranks, servers, leaders):
    """Elsewhere ``auto`` stays, which means one; so it does without servers."""
    assert chosen(ranks, servers) == leaders


def test_one_where_ranks_would_take_cores_from_others():
    """Each rank that waits keeps a core: a host needs one for each rank and each server on it."""
    assert chosen("ab cd", "abcd", dict.fromkeys("abcd", 2)) == "all"
    assert chosen("ab cd", "abcd", {**dict.fromkeys("abcd", 2), "c": 1}) == "auto"
    assert chosen("ab", "cd", {}) == "auto"


@pytest.mark.parametrize(
    "more", [{"leaders": "one"}, {"max_restarts": 1}, {"model_parallel": 2, "num_workers": 2}]
)
def test_what_the_user_wants_counts(more):
    """One leader, or what all as leaders do not go with."""
    assert chosen("ab", "cd", **more) != "all"
