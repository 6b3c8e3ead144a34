"""From a job to its processes, as text that is compared whole."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.config import NodeConfig
from mpilaunch.jobspec import JobSpec, Target
from mpilaunch.mpi import FLAVOURS, PYTHON, Mpi
from mpilaunch.plan import Paths, inherited, make_plan
from mpilaunch.rendering.script import PRIVATE, render

HYDRA, OPEN_MPI = FLAVOURS
MPI = Mpi(HYDRA, "MPICH 5.0.2", "/lib/libmpi.so.12", "/bin/mpiexec")
PATHS = Paths("/run")
SPEC = JobSpec(
    Target.SCRIPT,
    ("train.py", "--name", "a b"),
    NodeConfig(num_clients=2, num_servers=1, num_workers=4, leaders="all"),
    env=(("A", "x y"),),
)

GOLDEN = """\
# scheduler:
KVMPI_ROLE=scheduler \\
KVMPI_INDEX=0 \\
KVMPI_CLIENT=0 \\
KVMPI_NUM_CLIENTS=2 \\
KVMPI_NUM_SERVERS=1 \\
KVMPI_NUM_WORKERS=4 \\
KVMPI_JOB_FILE="$job"/job.json \\
KVMPI_RECORD_DIR="$job"/records \\
KVMPI_READY_PIPE="$job"/ready \\
KVMPI_LEADERS=all \\
PYTHONUNBUFFERED=1 \\
serve </dev/null &

# server0:
KVMPI_ROLE=server \\
KVMPI_INDEX=0 \\
KVMPI_CLIENT=0 \\
KVMPI_NUM_CLIENTS=2 \\
KVMPI_NUM_SERVERS=1 \\
KVMPI_NUM_WORKERS=4 \\
KVMPI_JOB_FILE="$job"/job.json \\
KVMPI_RECORD_DIR="$job"/records \\
KVMPI_LEADERS=all \\
PYTHONUNBUFFERED=1 \\
KVMPI_SCHEDULER="$scheduler" \\
serve </dev/null &

# client0:
KVMPI_ROLE=worker \\
KVMPI_INDEX=0 \\
KVMPI_CLIENT=0 \\
KVMPI_NUM_CLIENTS=2 \\
KVMPI_NUM_SERVERS=1 \\
KVMPI_NUM_WORKERS=4 \\
KVMPI_JOB_FILE="$job"/job.json \\
KVMPI_RECORD_DIR="$job"/records \\
KVMPI_LEADERS=all \\
A='x y' \\
KVMPI_SCHEDULER="$scheduler" \\
/bin/mpiexec -launcher fork -hosts localhost -print-all-exitcodes -n 2 PYTHON -m \
mpilaunch.rank.rank_main train.py --name 'a b' </dev/null &
"""


def plan_of(node=(), **changes):
    spec = dataclasses.replace(SPEC, node=dataclasses.replace(SPEC.node, **dict(node)), **changes)
    return make_plan(spec, MPI, PATHS, ("serve",))


def client_argv(**changes):
    return plan_of(**changes).clients[0].argv


def test_dry_run_text():
    """Every process, its variables and its argv, quoted for a shell."""
    plan = make_plan(SPEC, MPI, Paths(PRIVATE), ("serve",))
    text = render(plan).replace(" ".join(PYTHON), "PYTHON")
    begin, _, rest = text.partition("until [")
    head, scheduler = begin.split("\n\n", 1)
    services = scheduler + rest.partition("\n\n")[2]
    first, second = services.split("\n# client1:\n")
    assert "for rank in 0.0 0.1 1.0 1.1; do" in head
    assert first == GOLDEN
    last = GOLDEN.split("\n# client0:\n")[1] + '\nwait; rm -r "$job"\n'
    assert second.replace("KVMPI_CLIENT=1", "KVMPI_CLIENT=0") == last


def test_ranks_are_told_of_a_profile_if_there_is_one():
    """The file is read by rank 0 of each client."""
    told = [dict(plan_of({"collective_profile": path}).clients[1].env) for path in ("p.json", "")]
    assert told[0]["KVMPI_COLLECTIVE_PROFILE"] == "p.json"
    assert "KVMPI_COLLECTIVE_PROFILE" not in told[1]


def test_pure_mpi_has_neither_scheduler_nor_secret():
    """Without servers there is one mpiexec, and nothing points at a job file."""
    plan = plan_of({"num_clients": 1, "num_servers": 0})
    assert [process.name for process in plan.processes] == ["client0"]
    assert "KVMPI_JOB_FILE" not in dict(plan.clients[0].env)
    assert "KVMPI_SCHEDULER" not in render(plan)


def test_modules_and_executables():
    """A module runs under the wrapper, an executable becomes the rank itself."""
    assert client_argv(target=Target.MODULE, command=("pkg", "x"))[-4:] == (
        "mpilaunch.rank.rank_main",
        "-m",
        "pkg",
        "x",
    )
    assert client_argv(target=Target.EXECUTABLE, command=("./a", "x"))[-3:] == (
        "mpilaunch.rank.exec_rank",
        "./a",
        "x",
    )
    assert not plan_of(target=Target.EXECUTABLE).wrapped


def test_each_vendor_gets_its_own_options():
    """Clients of Open MPI must not bind to the same cores, and may run as root in a container."""
    plan = make_plan(SPEC, dataclasses.replace(MPI, flavour=OPEN_MPI), PATHS)
    assert plan.clients[0].argv[1:6] == ("--oversubscribe", "--bind-to", "none", "-n", "2")
    assert dict(plan.clients[0].env)["OMPI_ALLOW_RUN_AS_ROOT"] == "1"


def test_take_over_reaches_the_ranks():
    """The option becomes a variable, which ranks look at."""
    plan = plan_of({"take_over": True})
    assert [dict(each.env).get("KVMPI_TAKE_OVER") for each in plan.processes] == ["1"] * 4


def test_every_process_is_told_of_a_lease():
    """With several signs of life in it; without, they have half a minute."""
    address = {"KVMPI_SCHEDULER": "tcp://127.0.0.1:1"}
    for process in plan_of().processes:
        assert NodeConfig.from_mapping({**dict(process.env), **address}).peer_timeout == 30
    for process in plan_of({"peer_timeout": 2.0}).processes:
        config = NodeConfig.from_mapping({**dict(process.env), **address})
        assert (config.peer_timeout, config.heartbeat) == (2, 0.4)


def test_every_process_is_told_where_to_leave_its_part_of_a_trace():
    """And of no trace if there is to be none."""
    traced = make_plan(SPEC, MPI, dataclasses.replace(PATHS, trace_dir="/traces/one"), ("serve",))
    assert {dict(each.env)["KVMPI_TRACE"] for each in traced.processes} == {"/traces/one"}
    assert "KVMPI_TRACE" not in render(plan_of())


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["auto", "tcp", "ipc"]),
    st.integers(1, 10**6),
)
def test_every_process_understands_its_environment(clients, size, servers, transport, elements):
    """What the plan writes is what the configuration of a process reads."""
    plan = plan_of(
        {
            "num_clients": clients,
            "num_workers": clients * size,
            "num_servers": servers,
            "transport": transport,
            "slice_elements": elements,
        }
    )
    configs = [
        NodeConfig.from_mapping({**dict(each.env), "KVMPI_SCHEDULER": "tcp://127.0.0.1:1"})
        for each in plan.processes
    ]
    assert [config.role.value for config in configs] == (
        ["scheduler"] + ["server"] * servers + ["worker"] * clients
    )
    assert [config.index for config in configs[1 : 1 + servers]] == list(range(servers))
    assert [config.client for config in configs[1 + servers :]] == list(range(clients))
    shapes = {
        (
            config.num_clients,
            config.num_workers,
            config.num_servers,
            config.transport,
            config.slice_elements,
        )
        for config in configs
    }
    assert shapes == {(clients, clients * size, servers, transport, elements)}


def test_a_plan_tells_a_process_all_of_its_job():
    """Whatever a job's settings are, each process reads them back; the rest is its own."""
    node = dataclasses.replace(SPEC.node, collective="mpi", step_timeout=7.0, schedule="fifo", resume=True)
    node = dataclasses.replace(
        node, snapshot_dir="/snapshots", start_with=1, window_bytes=100, take_over=True
    )
    for process in plan_of(dataclasses.asdict(node)).processes:
        read = NodeConfig.from_mapping({**dict(process.env), "KVMPI_SCHEDULER": "tcp://127.0.0.1:1"})
        own = {
            "role": node.role,
            "index": 0,
            "client": 0,
            "scheduler": "",
            "job_file": "",
            "record_dir": "",
        }
        own["ready_pipe"] = ""
        assert dataclasses.replace(read, **own) == node


@pytest.mark.parametrize(
    ("node", "restarts", "keep"),
    [({}, 0, False), ({}, 1, True), ({"snapshot_dir": "/s"}, 1, True), ({"num_servers": 0}, 1, False)],
)
def test_workers_keep_values_for_servers_that_may_lose_them(node, restarts, keep):
    """Only where a server can come back; with snapshots in case that one cannot be written."""
    shape = {"num_clients": 1, "leaders": "one"}
    plan = plan_of({**shape, **node}, max_restarts=restarts)
    assert ("KVMPI_KEEP_VALUES" in dict(plan.clients[0].env)) is keep


def test_nothing_of_an_outer_job_is_inherited():
    """A job started inside another one, or under DMLC_ROLE, starts clean."""
    outer = {
        "KVMPI_LEADERS": "all",
        "KVMPI_INDEX": "1",
        "KVMPI_READY_PIPE": "/run/ready",
        "DMLC_ROLE": "server",
    }
    assert inherited({**outer, "HOME": "/"}) == {"HOME": "/"}


def test_a_client_has_all_ranks_of_its_workers():
    """Two clients of two workers, of three ranks each."""
    plan = plan_of({"model_parallel": 3})
    assert [client.argv[client.argv.index("-n") + 1] for client in plan.clients] == ["6", "6"]
    assert plan.client_size == 6
    assert all(dict(process.env)["KVMPI_MODEL_PARALLEL"] == "3" for process in plan.processes)
