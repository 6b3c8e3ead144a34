"""Which back end and which hosts a job gets, by what the user and a workload manager say."""

from __future__ import annotations

import re
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.errors import UsageError
from mpilaunch.hosts.allocation import (
    Choice,
    check_started_once,
    choose_backend,
    expand_nodes,
    expand_tasks,
)
from mpilaunch.hosts.hostlist import Slots, parse_hosts

SLURM = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
LSF = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "h1 2 h2 1"}
FILES = {"/etc/mpi/hostfile": "w-0.w:2\nw-1.w:2\n", "/lsf": "h1\nh1\nh2\n", "/ours": "a slots=3\n"}


def choose(wanted="auto", hosts="", env=None, files=()):
    return choose_backend(
        wanted, parse_hosts(hosts) if hosts else [], env or {}, {name: FILES[name] for name in files}.get
    )


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07-09],m5", ["n1", "n2", "n3", "n07", "n08", "n09", "m5"]),
        ("n[09-11]", ["n09", "n10", "n11"]),
        ("r[0-1]c[2,4]x", ["r0c2x", "r0c4x", "r1c2x", "r1c4x"]),
        ("a-1.b,c", ["a-1.b", "c"]),
    ],
)
def test_lists_of_nodes(text, hosts):
    """With ranges, zeros in front, and several brackets."""
    assert expand_nodes(text, "V") == hosts


@pytest.mark.parametrize(
    "text", ["", "n[1-", "n[1-2]]", "n[3-1]", "n[a]", "n,,m", "n[]", "n[1-2],n1", "n m", "n[1--2]"]
)
def test_lists_of_nodes_that_are_wrong(text):
    """The variable and its value are named."""
    with pytest.raises(UsageError, match=r"V"):
        expand_nodes(text, "V")


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.sampled_from((1, 2, 4))),
        max_size=12,
        min_size=1,
    )
)
def test_ranges_say_what_was_written(nodes):
    """A list that is written as Slurm does, neighbours joined, is read as it was."""
    nodes = sorted({(name, width, number) for name, number, width in nodes if len(str(number)) <= width})
    groups = [list(same) for _, same in groupby(enumerate(nodes), lambda at: (at[1][:2], at[1][2] - at[0]))]
    text = ",".join(
        f"{name}[{first:0{width}}-{group[-1][1][2]:0{width}}]"
        for group in groups
        for (_, (name, width, first)) in group[:1]
    )
    if nodes:
        wanted = [f"{name}{number:0{width}}" for name, width, number in nodes]
        if len(set(wanted)) == len(wanted):
            assert expand_nodes(text, "V") == wanted


@given(st.lists(st.integers(1, 99), min_size=1, max_size=30))
def test_tasks_say_what_was_written(tasks):
    """Repeated numbers are written once, with how often."""
    runs = [(number, len(list(same))) for number, same in groupby(tasks)]
    text = ",".join(f"{number}(x{count})" if count > 1 else str(number) for number, count in runs)
    assert expand_tasks(text, "V") == tasks


@given(st.text(alphabet="n0129[]-,x() ", max_size=12))
def test_any_text_is_read_or_refused(text):
    """By an error that is the user's, and nothing else; what was read has no duplicates and no brackets."""
    for read in (expand_nodes, expand_tasks):
        try:
            found = read(text, "V")
        except UsageError:
            continue
        assert found
        assert not any(re.search(r"[\[\], ]", str(each)) for each in found)


@pytest.mark.parametrize(
    ("arguments", "choice"),
    [
        ({}, ("local", "")),
        ({"hosts": "a:1,b"}, ("ssh", "a:1,b")),
        ({"env": SLURM}, ("slurm", "n1:2,n2:2")),
        ({"env": SLURM, "hosts": "n2"}, ("slurm", "n2:2")),
        ({"env": SLURM, "hosts": "n2:1"}, ("slurm", "n2:1")),
        ({"env": SLURM, "hosts": "x", "wanted": "ssh"}, ("ssh", "x")),
        ({"env": SLURM, "wanted": "local"}, ("local", "")),
        ({"env": {"SLURM_JOBID": "1", "SLURM_NODELIST": "n[1-2]"}}, ("slurm", "n1,n2")),
        ({"env": LSF}, ("lsf", "h1:2,h2:1")),
        ({"env": {"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": "/lsf"}, "files": ["/lsf"]}, ("lsf", "h1:2,h2:1")),
        ({"env": {"LSB_JOBID": "7", "LSB_HOSTS": "h1 h2 h2"}}, ("lsf", "h1:1,h2:2")),
        ({"env": {**SLURM, **LSF}, "wanted": "lsf"}, ("lsf", "h1:2,h2:1")),
        ({"files": ["/etc/mpi/hostfile"]}, ("ssh", "w-0.w:2,w-1.w:2")),
        ({"files": ["/etc/mpi/hostfile"], "wanted": "ssh"}, ("ssh", "w-0.w:2,w-1.w:2")),
        ({"files": ["/etc/mpi/hostfile"], "hosts": "a:1"}, ("ssh", "a:1")),
        ({"files": ["/etc/mpi/hostfile"], "env": SLURM}, ("slurm", "n1:2,n2:2")),
        ({"env": {"HYDRA_HOST_FILE": "/ours"}, "files": ["/ours"]}, ("ssh", "a:3")),
        ({"env": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}}, ("local", "")),
        ({"env": {"OMPI_MCA_orte_default_hostfile": "/ours"}, "files": ["/ours"]}, ("ssh", "a:3")),
    ],
)
def test_what_is_chosen(arguments, choice):
    """What the user says comes first, then a manager's job, then the operator's file."""
    backend, hosts = choice
    assert choose(**arguments)[:2] == (backend, tuple(parse_hosts(hosts)) if hosts else ())


def test_how_it_was_understood_is_told():
    """With the variables that it was read from."""
    told = choose(env=SLURM).told
    assert told == "Slurm job 12 has n1:2, n2:2 (SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(x2))"
    assert choose(env=LSF).told == "LSF job 7 has h1:2, h2:1 (LSB_MCPU_HOSTS)"
    assert choose(files=["/etc/mpi/hostfile"]).told.endswith("w-1.w:2 (/etc/mpi/hostfile)")
    assert choose(hosts="a") == Choice("ssh", (Slots("a", 0),))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"wanted": "local", "hosts": "a"}, "contradict"),
        ({"wanted": "ssh"}, "--hosts or --hostfile"),
        ({"wanted": "slurm"}, "SLURM_JOB_ID is not set"),
        ({"wanted": "slurm", "hosts": "a"}, "SLURM_JOB_ID is not set"),
        ({"wanted": "lsf"}, "LSB_JOBID is not set"),
        ({"env": {**SLURM, **LSF}}, "Slurm job 12 and LSF job 7 at once"),
        ({"env": SLURM, "hosts": "n1,x"}, "host 'x' is not one of Slurm job 12, which has n1:2, n2:2"),
        ({"env": SLURM, "hosts": "n1:3"}, "n1:3 is more than Slurm job 12 has there, n1:2"),
        ({"env": {"SLURM_JOB_ID": "12"}}, "SLURM_JOB_NODELIST is not set"),
        ({"env": {**SLURM, "SLURM_TASKS_PER_NODE": "1"}}, "2 hosts and 1 numbers"),
        ({"env": {**SLURM, "SLURM_TASKS_PER_NODE": "x"}}, "SLURM_TASKS_PER_NODE=x: 'x' is no number"),
        ({"env": {**SLURM, "SLURM_STEP_NUM_TASKS": "4"}}, "srun has started mpilaunch 4 times"),
        ({"env": {"LSB_JOBID": "7"}}, "none of LSB_MCPU_HOSTS"),
        ({"env": {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "h1 2 h2"}}, "LSB_MCPU_HOSTS=h1 2 h2 is not"),
        (
            {"env": {"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": "/gone"}},
            "LSB_DJOB_HOSTFILE=/gone cannot be read",
        ),
        (
            {"env": {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-0"}, "wanted": "ssh"},
            "host train-0 is a pod of Kubernetes without /etc/mpi/hostfile",
        ),
        ({"env": {"HYDRA_HOST_FILE": "/gone"}}, "HYDRA_HOST_FILE=/gone: there is no such file"),
    ],
)
def test_what_is_refused(arguments, words):
    """What is wrong is named, and what to do."""
    with pytest.raises(UsageError) as caught:
        choose(**arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_several_copies_of_the_launcher(variable):
    """Each would run the whole job; one that a rank of ours starts, or that is alone, may do so."""
    with pytest.raises(UsageError, match=f"has started mpilaunch 4 times, as {variable} says"):
        check_started_once({variable: "4"})
    check_started_once({variable: "1"})
    check_started_once({variable: "4", "KVMPI_ROLE": "worker"})
