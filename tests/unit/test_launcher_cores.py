"""How many processors a job may use on this host, from files as Linux has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpilaunch import cores
from mpilaunch.hosts.cluster import facts_here

POD = "kubepods.slice/kubepods-burstable.slice/pod 7"
SECOND = "0::/{group}\n"
FIRST = "9:name=systemd:/\n4:cpuacct,cpu:/{group}\n3:cpuset:/\n0::/\n"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A process that may run on 8 processors; returns what puts it into a group of a host made of files."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(cores, "PROCESS", tmp_path / "self")

    def make(groups, *mounts, **files):
        (tmp_path / "self").mkdir()
        (tmp_path / "self" / "cgroup").write_text(groups)
        lines = ["23 1 0:5 / /dev rw shared:2 - devtmpfs udev rw,size=1k", *mounts]
        (tmp_path / "self" / "mountinfo").write_text("".join(f"{line}\n" for line in lines))
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return make


def second(tmp_path, root="/"):
    """Return the line of a mount of the second version's groups."""
    return f"31 23 0:28 {root} {tmp_path}/groups rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def first(tmp_path, root="/"):
    """Return the lines of a mount of the first version's groups, beside that of another controller."""
    line = f"32 23 0:29 {root} {tmp_path}/groups{{}} rw,nosuid shared:9 master:1 - cgroup cgroup rw,{{}}"
    return line.format("/none", "cpuset"), line.format("", "cpu,cpuacct")


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),  # half a processor more stops all threads in turn
        ("50000 100000\n", 1),
        ("9900000 100000\n", 8),
        ("max 100000\n", 8),
        ("-1 100000\n", 8),
        ("what is this\n", 8),
    ],
)
def test_a_containers_quota_counts_in_whole_processors(host, tmp_path, limit, count):
    """At least one, and no more than the process may run on."""
    host(SECOND.format(group=""), second(tmp_path), **{"cpu.max": limit})
    assert cores.cores_here() == count
    assert facts_here().cores == count


@pytest.mark.parametrize(
    ("above", "own", "count"), [("300000", "max", 3), ("300000", "500000", 3), ("max", "400000", 4)]
)
def test_the_least_quota_of_all_groups_counts(host, tmp_path, above, own, count):
    """Those of a pod and of what it is a part of as well as the container's."""
    files = {
        f"{POD}/container/cpu.max": f"{own} 100000\n",
        f"{Path(POD).parent}/cpu.max": f"{above} 100000\n",
        "beside/cpu.max": "100000 100000\n",
    }
    host(SECOND.format(group=f"{POD}/container"), second(tmp_path), **files)
    assert cores.cores_here() == count


@pytest.mark.parametrize(("quota", "count"), [("300000", 3), ("-1", 8)])
@pytest.mark.parametrize("root", ["/", "/docker/5f"])
def test_the_first_version_of_groups_has_two_files(host, tmp_path, root, quota, count):
    """A container may see its own group only, under the path that the host has for it."""
    below = "docker/5f/" if root == "/" else ""
    files = {f"{below}cpu.cfs_quota_us": f"{quota}\n", f"{below}cpu.cfs_period_us": "100000\n"}
    host(FIRST.format(group="docker/5f"), *first(tmp_path, root), **files)
    assert cores.cores_here() == count


def test_a_group_that_is_not_mounted_is_that_of_the_mount(host, tmp_path):
    """A process that was moved out of its namespace's group, say; blanks of its path have numbers there."""
    folder = tmp_path / "groups of"
    folder.mkdir()
    (folder / "cpu.max").write_text("600000 100000\n")
    mount = second(tmp_path, "/docker/5f").replace("groups", "groups\\040of")
    host(SECOND.format(group="../other"), mount)
    assert cores.cores_here() == 6


def test_nothing_is_limited_where_there_are_no_groups(host):
    """As without a mount of them, or with a kernel that has none."""
    assert cores.cores_here() == 8
    host(SECOND.format(group=""))
    assert cores.cores_here() == 8
