"""``mpilaunch doctor --hosts`` on virtual hosts: what is well, and each trouble by its line."""

import sys

import pytest
from support.virtual_hosts import LOGIN

DOCTOR = (sys.executable, "-m", "mpilaunch.cli", "doctor", "--hosts", "node0,node1")

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.slow, pytest.mark.thorough]


def lines_of(hosts, *arguments, where=LOGIN, environment="A=B"):
    """Run it; return its exit code and what it says of each check."""
    done = hosts.run(where, ["env", environment, *DOCTOR, "--ssh", hosts.ssh, *arguments], timeout=100)
    assert not done.stderr, done.stderr
    said, last = {}, ""
    for line in done.stdout.splitlines():
        last = last if line.startswith("     -> ") else line[5:].partition(": ")[0]
        said[last] = f"{said.get(last, '')}{line}"
    return done.returncode, said


def test_doctor(cluster, tmp_path):
    """All is well; then names, folders and versions are wrong, and then a host does not let anybody in."""
    code, said = lines_of(cluster)
    assert code == 0, said
    checks = [
        "ssh",
        "network",
        "versions",
        "names",
        "shared memory",
        "temporary files",
        "ports",
        "clocks",
        "MPI",
    ]
    assert list(said) == checks
    assert "node0 10.77.0.1 (eth0), node1 10.77.0.2 (eth0)" in said["network"]
    assert "2 ranks on 2 hosts see each other" in said["MPI"]

    # From one of the hosts, whose own name is that of Debian's installer.
    own = "sed 's/^.* node0/127.0.1.1 node0/' /etc/hosts >/tmp/own; mount --bind /tmp/own /etc/hosts"
    cluster.run("node0", ["sh", "-c", own])
    cluster.run("node1", ["chmod", "777", "/tmp"])
    small = "mount -o remount,size=8m /dev/shm"
    cluster.run("node1", ["sh", "-c", small])
    code, said = lines_of(cluster, where="node0")
    assert code == 78
    assert said["names"].startswith("FAIL names: on node0, node0 is 127.0.1.1     -> in /etc/hosts")
    assert "-> node1: others can rename files there" in said["temporary files"]
    assert "-> node1: make room in /dev/shm" in said["shared memory"]
    assert [said[name][:4] for name in ("ssh", "network", "ports", "MPI")] == ["ok  "] * 4

    away = ["ip", "route", "add", "unreachable", "10.77.0.2/32"]
    assert cluster.run("node0", away).returncode == 0
    code, said = lines_of(cluster)
    assert said["ports"].startswith("FAIL ports: node1 from node0: No route to host")
    assert "-> open all ports between the hosts" in said["ports"]
    assert "MPI" not in said  # it would only hang

    known = tmp_path / "known_hosts"
    known.write_text("\n".join(line for line in known.read_text().splitlines() if "node1" not in line))
    code, said = lines_of(cluster)
    assert code == 78
    assert said["ssh"].startswith("FAIL ssh: host node1 cannot be used: ")
    assert "Host key verification failed" in said["ssh"]
    assert "-> compare and accept its key once, by ssh node1 true" in said["ssh"]
    cluster.check_nothing_left()


def test_hosts_that_share_their_temporary_folder(cluster):
    """As where TMPDIR is on the network."""
    shared = cluster.folder / "shared"
    shared.mkdir()
    code, said = lines_of(cluster, environment=f"TMPDIR={shared}")
    assert code == 78
    assert "is there already: hosts must not share their temporary folders" in said["temporary files"]
    assert "-> on node0: set TMPDIR to one that each has for itself" in said["temporary files"]
