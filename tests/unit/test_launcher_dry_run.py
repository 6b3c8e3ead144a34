"""``--dry-run`` refuses what the start would, as far as this host can tell, and says what it would."""

from __future__ import annotations

import re

import pytest

from mpilaunch import cli


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Ask what would be started; return the exit code and what has been written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    def ask(*options):
        code = cli.main(["--dry-run", "--workers", "2", *options, "train.py"])
        return code, capsys.readouterr()

    return ask


HERE = ("--backend", "local")
HOSTS = ("--backend", "ssh", "--hosts", "a:1,b:1", "--ssh", "true")


@pytest.mark.parametrize(
    ("code", "words", "options"),
    [
        (
            64,
            "--transport ipc is .* this job has a and b:",
            (*HOSTS, "--servers", "1", "--transport", "ipc"),
        ),
        (64, "--secret-file nowhere cannot be read", (*HERE, "--servers", "1", "--secret-file", "nowhere")),
        (64, "--metrics here: give a port", (*HERE, "--metrics", "here")),
        (
            78,
            "--snapshot-dir .*/far is not there",
            (*HERE, "--servers", "1", "--resume", "--snapshot-dir", "far"),
        ),
    ],
    ids=["ipc", "secret", "metrics", "resume"],
)
def test_a_job_that_could_not_start_is_not_printed(printed, code, words, options):
    """Whoever looks at a job before he queues it would find that out hours later."""
    refused, said = printed(*options)
    assert (refused, said.out) == (code, "")
    assert re.match(f"mpilaunch: {words}", said.err)


@pytest.mark.parametrize("hosts", [HERE, HOSTS], ids=["here", "hosts"])
def test_what_has_no_effect_is_said_before_the_script(printed, hosts):
    """As the job would say it, after where its processes are; in comments."""
    code, said = printed(*hosts, "--leaders", "all")
    head, rest = said.out.split("\n\n", 1)
    placed = ["# a: client0 rank 0", "# b: client0 rank 1"] if hosts == HOSTS else []
    assert (code, said.err) == (0, "")
    assert head.splitlines() == [*placed, "# --leaders all has no effect: this job has no servers"]
    assert rest.startswith("# the private directory")


def test_sockets_of_a_host_with_two_names(printed):
    """They join what is on it, whatever it is called."""
    names = ("--backend", "ssh", "--hosts", "localhost:1,127.0.0.1:1", "--ssh", "true")
    code, said = printed(*names, "--servers", "1", "--transport", "ipc")
    assert (code, said.err) == (0, "")
    assert "KVMPI_INTERFACE='(address of this host)'" in said.out


def test_nothing_is_said_of_a_job_that_has_nothing_idle(printed):
    """The script begins with what it does."""
    assert printed(*HERE)[1].out.startswith("# the private directory")
