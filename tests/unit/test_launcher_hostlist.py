"""The hosts that a user names, and where processes go."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.errors import UsageError
from mpilaunch.hosts.hostlist import Placement, Slots, parse_hostfile, parse_hosts, place


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [("a", 0)]),
        ("a:4, b:2", [("a", 4), ("b", 2)]),
        ("user@10.0.0.7:1,b", [("user@10.0.0.7", 1), ("b", 0)]),
    ],
)
def test_lists(text, hosts):
    """Names with slots or without."""
    assert parse_hosts(text) == hosts


def test_files():
    """Both ways to say slots, comments, empty lines, and what Open MPI says besides."""
    text = "# ours\na slots=2\n\n  b:3  # the large one\nc slots=4 max_slots=8\nd\n"
    assert parse_hostfile(text, "F") == [("a", 2), ("b", 3), ("c", 4), ("d", 0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "''"),
        ("a,,b", "''"),
        ("a:0", "'0' is no number of ranks for host 'a'"),
        ("a:x", "'x' is no number"),
        ("a:2:3", "'2:3' is no number"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is no host"),
        ("a b", "'a b' is no host"),
        ("a\tb", "'a\\tb' is no host"),
        ("a\u00a0b", "'a\\xa0b' is no host"),
        ("a\0b:2", "'a\\x00b:2' is no host"),
        ("[fd00::1]:2", "'[fd00::1]:2' is an address of IPv6, and jobs run over IPv4 only"),
        ("a,me@fd00::1", "'me@fd00::1' is an address of IPv6"),
        ("a,b,a:2", "host 'a' more than once"),
    ],
)
def test_lists_that_are_wrong(text, words):
    """The part that is wrong is named."""
    with pytest.raises(UsageError, match="--hosts") as caught:
        parse_hosts(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# nothing", "F names no host"),
        ("a\nb slots=", "F, line 2: '' is no number of ranks for host 'b'"),
        ("a\n\nb cpus=4", "F, line 3: 'b cpus=4'"),
        ("a\nb\0", "F, line 2: 'b\\x00' is no host"),
        ("a\x1b[31m slots=2", "F, line 1: 'a\\x1b[31m:2' is no host"),
        ("a:2 slots=2", "F, line 1"),
        ("[fd00::1] slots=2", "F, line 1: '[fd00::1]' is an address of IPv6"),
        ("a slots=1 slots=2", "F, line 1"),
        ("a\nb\na", "host 'a' more than once"),
    ],
)
def test_files_that_are_wrong(text, words):
    """The line that is wrong is named."""
    with pytest.raises(UsageError) as caught:
        parse_hostfile(text, "F")
    assert words in str(caught.value)


def placed(text, clients, size, servers=0, at="spread"):
    return place(parse_hosts(text), num_clients=clients, client_size=size, num_servers=servers, servers=at)


@pytest.mark.parametrize(
    ("text", "clients", "size", "ranks"),
    [
        ("a:4,b:4", 2, 4, ["aaaa", "bbbb"]),
        ("a:2,b:2", 1, 4, ["aabb"]),
        ("a:4,b:4", 4, 2, ["aa", "aa", "bb", "bb"]),
        ("a:2,b:4,c:2", 2, 4, ["aacc", "bbbb"]),  # whole hosts first, then the others
        ("a:3,b:3", 2, 3, ["aaa", "bbb"]),
        ("a:3,b:3", 3, 2, ["aa", "ab", "bb"]),
        ("a,b", 2, 2, ["aa", "bb"]),
        ("a,b,c", 1, 4, ["aabb"]),  # two each, and one host is left
        ("a:1,b", 1, 4, ["abbb"]),
    ],
)
def test_clients_get_whole_hosts_as_far_as_they_can(text, clients, size, ranks):
    """By hand."""
    assert placed(text, clients, size).ranks == tuple(tuple(each) for each in ranks)


def test_servers():
    """In turn on all, on the first, or where the user says; the scheduler's host stays."""
    assert placed("a:2,b:2", 2, 2, 3).servers == ("a", "b", "a")
    assert placed("a:2,b:2", 2, 2, 2, "first").servers == ("a", "a")
    assert placed("a:1,b:1,c:4", 1, 2, 2, "c").servers == ("c", "c")
    with pytest.raises(UsageError, match="'d' is none of the hosts a, b"):
        placed("a:2,b:2", 2, 2, 2, "b,d")


def test_hosts_without_anything_are_left_out():
    """But for the first, where the scheduler is; a line names them."""
    assert placed("a:1,b:4,c:4", 1, 4, 1, "b").hosts == ("a", "b")
    told = str(placed("a:2,b:2,c:2", 2, 1)).splitlines()
    assert told[0] == "a: client0 rank 0, client1 rank 0"
    assert told[1].startswith("b, c: nothing, as all ranks fit on hosts before; ")
    assert "nothing" not in str(placed("a:1,b:1,c:1", 3, 1))


def test_too_few_slots():
    """The error says how many there are."""
    with pytest.raises(UsageError, match=r"8 workers do not fit on a:4, b:2, which take 6"):
        placed("a:4,b:2", 2, 4)


def test_a_placement_as_people_read_it():
    """A line for each host."""
    placement = Placement(("a", "b", "c"), (("a", "a"), ("b", "a")), ("b",))
    assert str(placement).splitlines() == [
        "a: client0 ranks 0 to 1, client1 rank 1, scheduler",
        "b: client1 rank 0, server0",
        "c: nothing",
    ]


HOSTS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@given(HOSTS, st.integers(1, 4), st.integers(1, 6), st.integers(0, 4))
def test_every_rank_has_one_slot(slots, clients, size, servers):
    """No host takes more ranks than it has slots, and the ranks of a client on a host are neighbours."""
    hosts = [Slots(f"h{index}", each) for index, each in enumerate(slots)]
    options = {"num_clients": clients, "client_size": size, "num_servers": servers}
    if clients * size > sum(slots):
        with pytest.raises(UsageError):
            place(hosts, **options)
        return
    placement = place(hosts, **options)
    taken = [host for ranks in placement.ranks for host in ranks]
    assert [len(ranks) for ranks in placement.ranks] == [size] * clients
    assert all(taken.count(host.name) <= host.slots for host in hosts)
    for ranks in placement.ranks:
        assert sum(one != other for one, other in pairwise(ranks)) == len(set(ranks)) - 1
    assert len(placement.servers) == servers
    assert {*taken, *placement.servers} <= set(placement.hosts)
