"""The job file: the options' names, and what it says about the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.errors import UsageError
from mpilaunch.jobfile import NO_FILE, option_fields, read_job_file
from mpilaunch.jobspec import Target
from mpilaunch.options import make_parser, read_spec

TEXT = """
clients = 2
servers = 1
workers = 4
timeout = 30
lease = 5
report = true
interface = "eth1"
script = "train.py"
args = ["--lr", 0.1]
[env]
A = "x y"
THREADS = 2
[set]
window_bytes = "auto"
step_timeout = 60
"""


def spec_of(line, text, command=(), environment=()):
    options = make_parser("").parse_args(line.split())
    file = read_job_file(text, "job.toml") if text else NO_FILE
    return read_spec(options, Target.MODULE, command, dict(environment), file)


def test_a_file_says_what_a_command_line_says():
    """The same job comes of both."""
    line = "--clients 2 --servers 1 --workers 4 --timeout 30 --lease 5 --report --interface eth1 "
    line += "--env THREADS=2 --set window_bytes=auto --set step_timeout=60"
    options = make_parser("").parse_args([*line.split(), "--env", "A=x y"])
    told = read_spec(options, Target.SCRIPT, ("train.py", "--lr", "0.1"), {})
    spec, errors = spec_of("", TEXT)
    assert errors == []
    assert (spec.node, spec.command, spec.target) == (told[0].node, told[0].command, told[0].target)
    assert (spec.timeout, spec.network, spec.report, dict(spec.env)) == (
        30.0,
        "eth1",
        True,
        dict(told[0].env),
    )


def test_the_command_line_wins():
    """Over single values, variables and settings, and over what is run; the environment comes last."""
    line = "--clients 1 --env A=z --set step_timeout=9"
    spec, errors = spec_of(line, TEXT, ("pkg.train",), {"KVMPI_STEP_TIMEOUT": "3", "KVMPI_HEARTBEAT": "2"})
    assert errors == []
    assert (spec.node.num_clients, spec.node.num_workers, spec.node.step_timeout) == (1, 4, 9.0)
    assert spec.node.heartbeat == 2.0
    assert (dict(spec.env), len(spec.env)) == ({"A": "z", "THREADS": "2"}, 2)
    assert (spec.target, spec.command) == (Target.MODULE, ("pkg.train",))


def test_workers_are_as_many_as_clients():
    """As on the command line, wherever clients are said."""
    assert spec_of("", "clients = 3\nservers = 1")[0].node.num_workers == 3
    assert spec_of("--clients 2", "clients = 3\nservers = 1")[0].node.num_workers == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client = 2", "job.toml: there is no 'client': did you mean clients? known are args, "),
        ("max_restarts = 2", "did you mean max-restarts?"),
        ('clients = "2"', "job.toml: clients: '2' is not a whole number"),
        ("clients = 2.0", "job.toml: clients: 2.0 is not a whole number"),
        ("clients = true", "job.toml: clients: True is not a whole number"),
        ("report = 1", "job.toml: report: 1 is not true or false"),
        ("hosts = ['a', 'b']", "job.toml: hosts: ['a', 'b'] is not a text"),
        ("grace = -1", "job.toml: grace: must not be negative, not -1"),
        ("leaders = 'two'", "job.toml: leaders: must be one of auto, one, all, not 'two'"),
        ("env = 3", "job.toml: env must be a table, [env], and not 3"),
        ("[env]\nA = [1]", "job.toml: [env] A: [1] is not a text"),
        (
            "[set]\nschedul = 'p3'",
            "job.toml: [set] there is no 'schedul': did you mean schedule? known are",
        ),
        ("[set]\nstep_timeout = 'x'", "job.toml: [set] step_timeout: 'x' is not a number"),
        ("[set]\nwindow_bytes = 0", "job.toml: [set] window_bytes: must be at least 1, or auto, not 0"),
        ("script = 'a'\nmodule = 'b'", "job.toml: give one of script, module"),
        ("args = ['a']", "job.toml: args needs one of script, module, program"),
        ('log-dir = "a\\u0000"', "job.toml: log-dir: 'a\\x00' has a NUL character"),
        ('script = "a"\nargs = ["b", "\\u0000"]', "job.toml: args: '\\x00' has a NUL character"),
        ('[env]\nA = "\\u0000"', "job.toml: [env] A: '\\x00' has a NUL character"),
        ('[env]\n"A\\u0000" = "b"', "job.toml: [env] 'A\\x00': 'A\\x00' has a NUL character"),
        ('[env]\n"A=B" = "c"', "job.toml: [env] 'A=B': the name of a variable has no '='"),
        ("script = 3", "job.toml: script: 3 is not a text"),
        ("clients = x", "job.toml is no TOML: Invalid value (at line 1, column 11)"),
    ],
)
def test_a_mistake_is_named(text, words):
    """File, key, and what is known."""
    with pytest.raises(UsageError) as error:
        read_job_file(text, "job.toml")
    assert words in str(error.value)


def test_all_mistakes_are_named_at_once():
    """Each in a line that begins with the file."""
    with pytest.raises(UsageError) as error:
        read_job_file("client = 2\nservers = 'x'\n[set]\nfoo = 1", "job.toml")
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("job.toml: ") for line in lines)


def test_variables_of_ours_are_refused_as_on_the_command_line():
    """They would reach the ranks only."""
    assert "KVMPI_LEADERS would reach the ranks only" in spec_of("", "[env]\nKVMPI_LEADERS = 'all'")[1][0]


@given(
    st.sampled_from(sorted(option_fields())), st.one_of(st.integers(), st.text(max_size=5), st.booleans())
)
def test_a_value_is_taken_or_named(name, value):
    """Every option is known in a file; whatever else is wrong, the error begins with file and option."""
    text = str(value).lower() if isinstance(value, bool | int) else f"'{value.encode().hex()}'"
    try:
        read = read_job_file(f"{name} = {text}", "job.toml")
    except UsageError as error:
        assert str(error).startswith(f"job.toml: {name}: ")  # noqa: PT017  either may happen
    else:
        assert len(read.options) == 1
