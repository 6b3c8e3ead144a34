"""What the launcher accepts, and what it says about the rest."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import UsageError
from mpilaunch import cli, cores
from mpilaunch.jobspec import JobSpec, Target, validate, with_defaults, with_sleeping_waits, with_threads
from mpilaunch.options import make_parser, parse_env, parse_settings, read_spec, spell, split_command

SPEC = JobSpec(Target.SCRIPT, ("train.py",))


def errors_of(node=(), **changes):
    spec = dataclasses.replace(SPEC, node=dataclasses.replace(SPEC.node, **dict(node)), **changes)
    return validate(spec, spell, lambda path: path == "train.py", {"date": "/bin/date"}.get)


def spec_of(line, environment=()):
    """Read a command line whose command is a module."""
    return read_spec(make_parser("").parse_args(line.split()), Target.MODULE, ("pkg",), dict(environment))


@pytest.mark.parametrize(
    ("node", "changes"),
    [
        ({}, {}),
        ({"num_clients": 2, "num_workers": 4, "num_servers": 1}, {}),
        ({"num_workers": 3}, {}),
        ({}, {"target": Target.EXECUTABLE, "command": ("date",)}),
        ({}, {"target": Target.MODULE, "command": ("pkg.train", "--lr", "1")}),
        ({}, {"timeout": 1.0, "grace": 0.0}),
        ({"transport": "ipc", "window_bytes": 0, "slice_elements": 1}, {}),
    ],
)
def test_a_job_that_can_run_has_no_errors(node, changes):
    """Valid jobs pass without a word."""
    assert errors_of(node, **changes) == []


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--interface", "eth9"), "--interface eth9 is for a job on several hosts, and this one runs here"),
        (("--server-hosts", "far"), "--server-hosts far is for a job on several hosts"),
    ],
)
def test_what_is_said_of_other_hosts_needs_them(option, words, tmp_path, monkeypatch, capsys):
    """A script that was meant for a cluster does not run here without a word."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert cli.main(["--dry-run", "--backend", "local", *option, "train.py"]) == 64
    assert words in capsys.readouterr().err
    assert cli.main(["--dry-run", "--backend", "local", "--server-hosts", "first", "train.py"]) == 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        *((each, (each, "", "x.py")) for each in ("--hosts", "--hostfile", "--snapshot-dir", "--config")),
        ("--hosts", ("doctor", "--hosts", "")),
    ],
)
def test_an_option_without_a_value_is_a_mistake(option, words, capsys):
    """Most often a variable that is not set: the job would run on this host, or not be saved."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 64
    assert f"argument {option}: it is empty: give it a value" in capsys.readouterr().err


SHAPE = {"num_clients": 2, "num_workers": 4, "num_servers": 1}


@pytest.mark.parametrize(
    ("node", "changes", "words"),
    [
        ({**SHAPE, "num_workers": 3}, {}, "--workers 3 cannot be dealt to 2 clients"),
        ({**SHAPE, "num_servers": 0}, {}, "--servers 0 is pure MPI"),
        ({"num_clients": 0}, {}, "--clients must be at least 1, not 0"),
        ({"num_workers": 0}, {}, "--workers must be at least 1, not 0"),
        ({"num_workers": -1}, {}, "--workers must not be negative, not -1"),
        ({"num_servers": -1}, {}, "--servers must not be negative, not -1"),
        ({}, {"timeout": 0.0}, "--timeout must be more than 0, not 0.0"),
        ({}, {"timeout": math.inf}, "--timeout must be at most 1000000000 seconds, not inf"),
        ({}, {"timeout": math.nan}, "--timeout must be a number, not nan"),
        ({}, {"grace": math.nan}, "--grace must be a number, not nan"),
        ({"warn_after": math.inf}, {}, "--set warn_after must be at most 1000000000 seconds, not inf"),
        ({"step_timeout": 1e10}, {}, "--set step_timeout must be at most 1000000000 seconds"),
        ({}, {"grace": -1.0}, "--grace must not be negative, not -1.0"),
        ({}, {"max_restarts": -1}, "--max-restarts must not be negative"),
        ({"slice_elements": -1}, {}, "--set slice_elements must be at least 1, or auto, not -1"),
        ({"window_bytes": -1}, {}, "--set window_bytes must be at least 1, or auto, not -1"),
        ({"schedule": "random"}, {}, "--set schedule must be one of p3, slicing, fifo, not 'random'"),
        ({**SHAPE, "start_with": 3}, {}, "--start-with 3 must be between 1 and --clients 2"),
        ({"resume": True}, {}, "--resume needs --snapshot-dir"),
        ({"dense": "servers"}, {}, "--dense servers: there are no servers: give --servers 1 or more"),
        ({"snapshot_dir": "x"}, {}, "--snapshot-dir is for servers"),
        ({**SHAPE, "snapshot_dir": "x", "snapshot_every": 0.0}, {}, "--snapshot-every must be more than"),
        (
            {**SHAPE, "snapshot_every": 9.0},
            {},
            "--snapshot-every 9.0 needs --snapshot-dir",
        ),
        ({"peer_timeout": 0.5, "heartbeat": 0.1}, {}, "--lease must be at least 1, not 0.5"),
        (
            {"collective": "shm", "transport": "tcp"},
            {},
            "--collective shm needs the shared memory of --transport",
        ),
        (
            {**SHAPE, "leaders": "all"},
            {"max_restarts": 1},
            "--max-restarts does not go with --leaders all: the ranks of a client must agree on what was",
        ),
        (
            {**SHAPE, "model_parallel": 2, "start_with": 1},
            {},
            "--start-with does not go with --model-parallel 2",
        ),
        (
            {**SHAPE, "model_parallel": 2},
            {"max_restarts": 1},
            "--max-restarts does not go with --model-parallel 2",
        ),
        ({"model_parallel": 0}, {}, "--model-parallel must be at least 1, not 0"),
        ({"transport": "udp"}, {}, "--transport must be one of auto, tcp, ipc, not"),
        ({"collective_profile": "none.json"}, {}, "--collective-profile none.json: there is no such file"),
        ({}, {"command": ()}, "nothing to run"),
        ({}, {"command": ("nosuch.py",)}, "the script 'nosuch.py' does not exist"),
        ({}, {"command": ("docter",)}, "measure-links, plan, render, top; did you mean doctor?"),
        ({}, {"command": ("Plan",)}, "did you mean plan?"),
        ({}, {"command": ("help",)}, "right? Commands, which stand first, are compare,"),
        ({}, {"command": ("python", "train.py")}, "leave out 'python': a script is run by"),
        ({}, {"command": ("/usr/bin/python3.11", "train.py")}, "leave out '/usr/bin/python3.11'"),
        ({}, {"target": Target.EXECUTABLE, "command": ("nosuch",)}, "the executable 'nosuch'"),
    ],
)
def test_each_mistake_is_named(node, changes, words):
    """An error names the option and its value."""
    (error,) = errors_of(node, **changes)
    assert words in error


@pytest.mark.parametrize("name", ["/dev/stdin", "/dev/fd/63", "/proc/self/fd/0"])
def test_a_script_that_only_the_launcher_could_read_is_refused(name):
    """Though it is a file here (``mpilaunch /dev/stdin < train.py``): ranks would run an empty one."""
    spec = dataclasses.replace(SPEC, command=(name,))
    (error,) = validate(spec, spell, lambda path: path == name, {}.get)
    assert f"the script '{name}' is mpilaunch's own" in error
    same = dataclasses.replace(SPEC, command=("/proc/self/cwd/train.py",))
    assert validate(same, spell, lambda _: True, {}.get) == []


def test_a_profile_that_is_measured_at_the_start_is_no_file():
    """So none is looked for."""
    assert errors_of({"collective_profile": "measure"}) == []


def test_all_mistakes_are_told_at_once():
    """One run of the command shows every mistake."""
    assert len(errors_of({"num_clients": 2, "num_workers": 3}, grace=-1.0, command=("nosuch.py",))) == 4


@pytest.mark.parametrize("workers", [1, 3, 5, 7])
def test_a_number_of_workers_that_would_work_is_offered(workers):
    """The message about W and N ends with numbers that are accepted."""
    (error,) = errors_of({"num_clients": 4, "num_workers": workers, "num_servers": 1})
    for offered in error.partition("for example ")[2].split(" or "):
        assert errors_of({"num_clients": 4, "num_workers": int(offered), "num_servers": 1}) == []


def test_environment_is_split_at_the_first_equals_sign():
    """Values may contain equals signs and be empty."""
    assert parse_env(["A=b=c", "D="]) == ((("A", "b=c"), ("D", "")), [])


@pytest.mark.parametrize(
    "item", ["A", "=b", "X Y=3", "1A=3", "A.B=3", "DMLC_ROLE=worker", "KVMPI_ROLE=server"]
)
def test_environment_that_cannot_work_is_refused(item):
    """Malformed pairs, and variables that would break the job, are errors."""
    pairs, errors = parse_env([item])
    assert pairs == ()
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("KVMPI_LEADERS=all", "use --leaders"),
        ("KVMPI_START_WITH=1", "use --start-with"),
        ("KVMPI_COLLECTIVE=shm", "use --collective"),
        ("KVMPI_PEER_TIMEOUT=3", "use --lease"),
        ("KVMPI_STEP_TIMEOUT=3", "use --set step_timeout"),
        ("KVMPI_TAKE_OVER=1", "use --take-over"),
        ("KVMPI_INDEX=1", "mpilaunch sets what its processes need"),
        ("KVMPI_NOSUCH=1", "mpilaunch sets what its processes need"),
    ],
)
def test_a_setting_is_not_for_the_ranks_alone(item, words):
    """Clients and servers would differ; the error names the option that tells all of them."""
    pairs, (error,) = parse_env([item])
    assert pairs == ()
    assert item.partition("=")[0] in error
    assert error.endswith(words)


def test_settings_for_experiments():
    """Any setting of a process that has no option and is not chosen by mpilaunch, read as its type."""
    assert parse_settings(["window_bytes=1600", "schedule=fifo", "step_timeout=2.5"]) == (
        {"window_bytes": 1600, "schedule": "fifo", "step_timeout": 2.5},
        [],
    )
    assert parse_settings(["window_bytes=auto"]) == ({"window_bytes": 0}, [])
    told = "--set window_bytes=0: must be at least 1, or auto, not 0"
    assert parse_settings(["window_bytes=0"]) == ({}, [told])


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("xyzzy=1", "there is no setting 'xyzzy'; the settings are "),
        (
            "window_byte=1",
            "there is no setting 'window_byte'; did you mean window_bytes? the settings are ",
        ),
        ("window_bytes", "it must be of the form NAME=VALUE"),
        ("window_bytes=x", "--set window_bytes=x: 'x' is not auto or a whole number"),
        ("index=1", "there is no setting 'index'"),
    ],
)
def test_a_setting_that_does_not_exist_is_refused(item, words):
    """The error lists those that do, and none that has an option."""
    values, (error,) = parse_settings([item])
    assert values == {}
    assert words in error
    assert "slice_elements, step_timeout" in error or "=x" in error


@pytest.mark.parametrize(
    ("item", "option"),
    [("num_workers=2", "--workers"), ("peer_timeout=9", "--lease"), ("grace=3", "--grace")],
)
def test_what_has_an_option_is_no_setting(item, option):
    """As in a job file: there is one way to say a thing, and an option of its own name."""
    _, (error,) = spec_of(f"--set {item}")
    assert error == f"--set {item}: {item.partition('=')[0]} has an option: give {option}"


def test_settings_for_experiments_come_from_the_environment_too():
    """--set counts more; what has an option does not come from there."""
    outer = {
        "KVMPI_STEP_TIMEOUT": "5",
        "KVMPI_SCHEDULE": "fifo",
        "KVMPI_LEADERS": "all",
        "KVMPI_INDEX": "3",
    }
    spec, errors = spec_of("--set schedule=p3", outer)
    assert errors == []
    assert spec.node == NodeConfig(num_workers=1, step_timeout=5.0, schedule="p3")
    _, (error,) = spec_of("", {"KVMPI_STEP_TIMEOUT": "soon"})
    assert error == "KVMPI_STEP_TIMEOUT=soon in the environment: 'soon' is not a number"
    _, (error,) = spec_of("", {"KVMPI_SCHEDULE": "foo"})
    assert error == "KVMPI_SCHEDULE=foo in the environment must be one of p3, slicing, fifo, not 'foo'"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py --clients 3", ([], Target.SCRIPT, ("train.py", "--clients", "3"))),
        ("--clients 2 train.py -- x", (["--clients", "2"], Target.SCRIPT, ("train.py", "--", "x"))),
        ("--clients=2 -m pkg.train -m", (["--clients=2"], Target.MODULE, ("pkg.train", "-m"))),
        ("--dry-run -- ./a.out --dry-run", (["--dry-run"], Target.EXECUTABLE, ("./a.out", "--dry-run"))),
        ("--env A=--x train.py", (["--env", "A=--x"], Target.SCRIPT, ("train.py",))),
        ("--take-over train.py", (["--take-over"], Target.SCRIPT, ("train.py",))),
        ("", ([], Target.SCRIPT, ())),
    ],
)
def test_our_options_end_where_the_command_starts(line, expected):
    """Options after the script are the script's own."""
    assert split_command(line.split()) == expected


def test_workers_default_to_one_per_client():
    """Without --workers each client has one rank."""
    spec, _ = spec_of("--clients 3 --servers 1")
    assert spec.node.num_workers == 3


def test_every_option_reaches_the_job():
    """An option is the field of its name, of the job or of its processes."""
    shape = "--clients 2 --workers 4 --servers 1 --leaders all --lease 2 --gpu-kernels"
    spec, errors = spec_of(f"{shape} --take-over --timeout 9 --trace t --report")
    assert errors == []
    assert spec == JobSpec(
        Target.MODULE,
        ("pkg",),
        NodeConfig(
            num_clients=2,
            num_workers=4,
            num_servers=1,
            leaders="all",
            peer_timeout=2.0,
            gpu_kernels=True,
            take_over=True,
        ),
        timeout=9.0,
        trace="t",
        report=True,
    )


def test_reading_a_spec_raises_every_error():
    """Mistakes of --env and of the shape come together."""
    options = make_parser("").parse_args(["--clients", "2", "--env", "A"])
    with pytest.raises(UsageError) as caught:
        cli.make_spec(options, Target.MODULE, ("pkg",))
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    "line", ["--client 2 train.py", "compare a", "inspect a b", "top --bogus", "doctor --bogus"]
)
def test_unknown_options_are_wrong_use(line, capsys):
    """A misspelt option ends with 64 and the usage, not with a guess; so does that of a command."""
    with pytest.raises(SystemExit) as caught:
        cli.main(line.split())
    assert caught.value.code == 64
    said = capsys.readouterr().err
    assert said.startswith("mpilaunch: ")
    assert "usage: mpilaunch" in said


@pytest.mark.parametrize(
    ("workers", "cores", "environment", "env", "threads"),
    [
        (4, 16, {}, (), "4"),
        (4, 2, {}, (), "1"),
        (4, 16, {"OMP_NUM_THREADS": "7"}, (), None),
        (4, 16, {}, (("OMP_NUM_THREADS", "3"),), "3"),
    ],
)
def test_ranks_share_the_cores(workers, cores, environment, env, threads):
    """Each rank gets its share of the cores as threads, unless somebody has said otherwise."""
    node = dataclasses.replace(SPEC.node, num_workers=workers)
    spec = with_threads(dataclasses.replace(SPEC, node=node, env=env), cores, environment)
    assert dict(spec.env).get("OMP_NUM_THREADS") == threads


def test_cores_are_those_that_the_job_may_use(monkeypatch, tmp_path):
    """Those of the machine that others have, as under ``taskset`` or in a container, are not counted."""
    monkeypatch.setattr(cli.os, "sched_getaffinity", lambda _: {3, 5, 7, 9, 11, 13})
    monkeypatch.setattr(cores, "PROCESS", tmp_path)  # which has no quota
    monkeypatch.delenv("OMP_NUM_THREADS")
    node = dataclasses.replace(SPEC.node, num_workers=2)
    mpi = SimpleNamespace(flavour=SimpleNamespace(defaults=()))
    spec = cli.for_this_host(dataclasses.replace(SPEC, node=node), mpi)
    assert spec.env == (("OMP_NUM_THREADS", "3"),)


def test_workers_of_several_ranks():
    """Each rank has its share of the cores and sleeps while it waits, unless the user will have it poll."""
    spec = dataclasses.replace(SPEC, node=NodeConfig(num_workers=2, model_parallel=2))
    assert spec.client_ranks == 4
    assert dict(with_threads(spec, 8, {}).env) == {"OMP_NUM_THREADS": "2"}
    assert dict(with_sleeping_waits(spec, {}).env) == {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    assert with_sleeping_waits(spec, {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "0"}) == spec
    assert with_sleeping_waits(SPEC, {}) == SPEC


def test_what_the_user_has_set_stays():
    """In his own environment or by --env; the rest is added for the ranks."""
    spec = dataclasses.replace(SPEC, env=(("B", "mine"),))
    defaults = (("A", "1"), ("B", "2"), ("C", "3"))
    assert dict(with_defaults(spec, defaults, {"C": "outer"}).env) == {"A": "1", "B": "mine"}


def test_an_interruption_before_the_job_is_no_traceback(monkeypatch, capsys):
    """Ctrl-C while libraries are looked for, or in a command."""

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "read_job", interrupted)
    assert cli.main(["train.py"]) == 130
    assert capsys.readouterr().err == "mpilaunch: interrupted\n"
