"""What the launcher accepts, and what it says about the rest."""

import dataclasses

import pytest

from kvstore_mpi.errors import UsageError
from mpilaunch import cli
from mpilaunch.jobspec import JobSpec, Target, parse_env, validate, with_threads

SPEC = JobSpec(Target.SCRIPT, ("train.py",))


def errors_of(**changes):
    spec = dataclasses.replace(SPEC, **changes)
    return validate(spec, lambda path: path == "train.py", {"date": "/bin/date"}.get)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clients": 2, "workers": 4, "servers": 1},
        {"workers": 3},
        {"target": Target.EXECUTABLE, "command": ("date",)},
        {"target": Target.MODULE, "command": ("pkg.train", "--lr", "1")},
        {"timeout": 1.0, "grace": 0.0},
    ],
)
def test_a_job_that_can_run_has_no_errors(changes):
    """Valid jobs pass without a word."""
    assert errors_of(**changes) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": 2, "workers": 3, "servers": 1}, "--workers 3 cannot be dealt to 2 clients"),
        ({"clients": 2, "workers": 2}, "--servers 0 is pure MPI"),
        ({"clients": 0}, "--clients 0"),
        ({"workers": 0}, "--workers 0"),
        ({"servers": -1}, "--servers -1"),
        ({"timeout": 0.0}, "--timeout 0.0"),
        ({"grace": -1.0}, "--grace -1.0"),
        ({"slice_elements": -1}, "--slice-elements -1"),
        ({"window_bytes": -1}, "--window-bytes -1"),
        (
            {"clients": 2, "workers": 4, "servers": 1, "leaders": "all", "max_restarts": 1},
            "--max-restarts needs --leaders one: the ranks of a client must agree on what was lost",
        ),
        ({"transport": "udp"}, "--transport must be one of auto, tcp, ipc, direct"),
        ({"collective_profile": "none.json"}, "--collective-profile none.json: there is no such file"),
        ({"command": ()}, "nothing to run"),
        ({"command": ("nosuch.py",)}, "the script 'nosuch.py' does not exist"),
        ({"target": Target.EXECUTABLE, "command": ("nosuch",)}, "the executable 'nosuch'"),
    ],
)
def test_each_mistake_is_named(changes, words):
    """An error names the option and its value."""
    (error,) = errors_of(**changes)
    assert words in error


def test_a_profile_that_is_measured_at_the_start_is_no_file():
    """So none is looked for."""
    assert errors_of(collective_profile="measure") == []


def test_all_mistakes_are_told_at_once():
    """One run of the command shows every mistake."""
    assert len(errors_of(clients=2, workers=3, grace=-1.0, command=("nosuch.py",))) == 4


@pytest.mark.parametrize("workers", [1, 3, 5, 7])
def test_a_number_of_workers_that_would_work_is_offered(workers):
    """The message about W and N ends with numbers that are accepted."""
    (error,) = errors_of(clients=4, workers=workers, servers=1)
    for offered in error.partition("for example ")[2].split(" or "):
        assert errors_of(clients=4, workers=int(offered), servers=1) == []


def test_environment_is_split_at_the_first_equals_sign():
    """Values may contain equals signs and be empty."""
    assert parse_env(["A=b=c", "D="]) == ((("A", "b=c"), ("D", "")), [])


@pytest.mark.parametrize("item", ["A", "=b", "DMLC_ROLE=worker", "KVMPI_ROLE=server"])
def test_environment_that_cannot_work_is_refused(item):
    """Malformed pairs, and variables that would break the job, are errors."""
    pairs, errors = parse_env([item])
    assert pairs == ()
    assert len(errors) == 1


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
    assert cli.split_command(line.split()) == expected


def test_workers_default_to_one_per_client():
    """Without --workers each client has one rank."""
    options = cli.make_parser().parse_args(["--clients", "3", "--servers", "1"])
    assert cli.read_spec(options, Target.MODULE, ("pkg",)).workers == 3


def test_reading_a_spec_raises_every_error():
    """Mistakes of --env and of the shape come together."""
    options = cli.make_parser().parse_args(["--clients", "2", "--env", "A"])
    with pytest.raises(UsageError) as caught:
        cli.read_spec(options, Target.MODULE, ("pkg",))
    assert len(str(caught.value).splitlines()) == 2


def test_unknown_options_are_wrong_use():
    """A misspelt option ends with 64 and the usage, not with a guess."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["--client", "2", "train.py"])
    assert caught.value.code == 64


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
    spec = with_threads(dataclasses.replace(SPEC, workers=workers, env=env), cores, environment)
    assert dict(spec.env).get("OMP_NUM_THREADS") == threads
