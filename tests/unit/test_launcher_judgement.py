"""What doctor makes of what hosts say: each trouble is named with its host and a remedy."""

import msgspec
import pytest

from mpilaunch.hosts import judgement
from mpilaunch.hosts.judgement import Facts, Reached

VERSIONS = {"Python": "3.11.7", "mxnet": "1.9.1", "MPI": "MPICH 5.0.2"}
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2"}
NAMES = {name: [address] for name, address in ADDRESSES.items()}
ROOM = 1 << 30
HYDRAS = """YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
OPEN_MPIS = f"""{60 * "-"}
A daemon failed to report
back:

  Remote host: b
{60 * "-"}
{60 * "-"}
Nothing more.
{60 * "-"}
[a:1] 1 more process has sent help message help-x.txt / y
"""


def facts(**changes):
    """Two hosts where all is well, but for the changes to the second."""
    well = Facts(VERSIONS, "", "a", NAMES, ROOM, "/tmp", 0o1777, 5000)
    return {"a": well, "b": msgspec.structs.replace(well, host="b", **changes)}


def reached(**changes):
    return {"a": {"b": Reached("10.0.0.2:5000", **changes)}, "b": {"a": Reached("10.0.0.1:5000")}}


def test_where_all_is_well():
    """No check has a remedy."""
    findings = [
        judgement.judge_versions(facts()),
        judgement.judge_names(facts(), ADDRESSES),
        judgement.judge_shared_memory(facts()),
        judgement.judge_folders(facts(), {}),
        judgement.judge_ports(reached()),
        judgement.judge_clocks(reached(ahead=0.4)),
        judgement.judge_mpi(2, 0, "size 2 sum 2\nsize 2 sum 2\n"),
    ]
    assert [finding.remedy for finding in findings] == [""] * len(findings)
    assert findings[0].what == "Python 3.11.7, mxnet 1.9.1, MPI MPICH 5.0.2 on all"


@pytest.mark.parametrize(
    ("finding", "what", "remedy"),
    [
        (
            judgement.judge_versions(facts(versions={**VERSIONS, "mxnet": ""})),
            "mxnet is 1.9.1 on a, none on b",
            "install the same",
        ),
        (judgement.judge_versions(facts(mpi_problem="no MPI")), "b: no MPI", "on b: mpilaunch doctor"),
        (
            judgement.judge_names(facts(addresses={**NAMES, "b": ["127.0.1.1"]}), ADDRESSES),
            "on b, b is 127.0.1.1",
            "10.0.0.2 b; and no line that gives the own name 127.0.1.1",
        ),
        (
            judgement.judge_names(facts(addresses={"b": ["10.0.0.2"]}), ADDRESSES),
            "on b, a is unknown",
            "10.0.0.1 a",
        ),
        (judgement.judge_shared_memory(facts(shared_memory=64 << 20)), "64 MB on b", "b: make room"),
        (judgement.judge_folders(facts(folder_mode=0o777), {}), "/tmp on b", "b: others can rename"),
        (
            judgement.judge_folders({}, {"b": "/tmp/x is there already: not shared; set TMPDIR to one"}),
            "b: /tmp/x is there already",
            "on b: set TMPDIR to one",
        ),
        (
            judgement.judge_ports(reached(problem="No route to host")),
            "b from a: No route to host",
            "open all ports",
        ),
        (
            judgement.judge_clocks(reached(ahead=-2.0, uncertain=0.01)),
            "a and b are 2000.0 ms apart (+- 10.0)",
            "chrony",
        ),
        (judgement.judge_mpi(2, 0, "size 1 sum 1\nsize 1 sum 1\n"), "0 of 1", "another MPI"),
        (judgement.judge_mpi(2, None, ""), "did not end in time", "--interface"),
        (judgement.judge_mpi(2, 9, "size 2 sum 2\nkilled\n"), "exit code 9: killed", "--interface"),
        (judgement.judge_mpi(2, 11, HYDRAS), "exit code 11: YOUR APPLICATION", "--interface"),
        (judgement.judge_mpi(2, 1, OPEN_MPIS), "code 1: A daemon failed to report back:", "--interface"),
        (
            judgement.judge_mpi(2, 127, f"sh: prted: not found\n{OPEN_MPIS}"),
            "exit code 127: sh: prted: not found",
            "install the same MPI",
        ),
    ],
)
def test_a_trouble_is_named(finding, what, remedy):
    """With the host, and with what to do."""
    assert what in finding.what
    assert remedy in finding.remedy


def test_the_name_of_a_single_host_is_its_own_affair():
    """``--hosts localhost`` is 127.0.0.1 there, and nobody else looks for it."""
    alone = {"localhost": facts(addresses={"localhost": ["127.0.0.1"]})["b"]}
    assert judgement.judge_names(alone, {"localhost": "192.0.2.2"}).remedy == ""


def test_a_slow_link_is_no_wrong_clock():
    """A difference within what the measurement cannot tell is none."""
    assert judgement.judge_clocks(reached(ahead=1.2, uncertain=0.3)).remedy == ""


def test_where_nobody_reaches_anybody_clocks_are_not_judged():
    """The ports have been complained of already."""
    broken = {"a": {"b": Reached("10.0.0.2:5000", "Connection timed out")}}
    assert judgement.judge_clocks(broken).what.startswith("not compared")


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Host key verification failed.", "compare and accept its key once, by ssh b true"),
        ("root@b: Permission denied (publickey).", "ssh-copy-id b"),
        ("ssh: Could not resolve hostname b: Name or service not known", "add b to ~/.ssh/config"),
        ("ssh: connect to host b port 22: Connection refused", "start sshd there"),
        ("did not answer within 10 s", "firewall"),
        ("/opt/python: No module named mpilaunch", "install the same Python environment"),
        ("exit code 3 of the connection", "try it by hand: ssh b true"),
    ],
)
def test_what_ssh_says_has_a_remedy(said, remedy):
    """Which names the host."""
    assert remedy in judgement.ssh_remedy("b", said)
