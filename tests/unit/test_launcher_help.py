"""The help says what there is: each command, each setting for experiments, and what each is for."""

from __future__ import annotations

import re

import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.settings import Source, settings_of
from mpilaunch import cli
from mpilaunch.command_table import COMMANDS


@pytest.fixture
def help_of(capsys, monkeypatch):
    """Return a function that returns the help of a command, with single spaces."""
    monkeypatch.setenv("COLUMNS", "80")

    def read(*command):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command, "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert max(map(len, text.partition("options:")[2].splitlines())) < 80
        return re.sub(r"\s+", " ", text)

    return read


def test_each_command_has_a_line(help_of):
    """Which says what it does."""
    text = help_of().partition("commands, each with a --help of its own: ")[2]
    assert all(f"{name} {command.text}" in text for name, command in COMMANDS.items())


def test_each_setting_for_experiments_has_its_meaning_and_default(help_of):
    """And the values among which it is chosen."""
    text = help_of().partition("settings for experiments, --set NAME=VALUE; times are in seconds: ")[2]
    for field, setting in settings_of(NodeConfig):
        assert (f"{field.name} {setting.text}" in text) == (setting.source is Source.KNOB)
    assert "schedule in which order slices leave: one of p3, slicing, fifo (default p3) " in text
    assert "window_bytes bytes under way to one peer (default auto) " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_what_it_does(command, help_of):
    """In a sentence for people; those that run or write a job also take its options."""
    text = help_of(command)
    sentence = f"{COMMANDS[command].text[1:]}. "
    assert sentence in text
    assert "``" not in text
    takes_a_job = command in ("measure-epochs", "measure-links", "plan", "render")
    assert text.endswith("Options of a job may stand among these: mpilaunch --help. ") == takes_a_job


def test_a_job_is_rendered_of_a_script(help_of):
    """The usage says where it stands."""
    usage = (
        "usage: mpilaunch render --backend slurm|kubernetes [more] [options of mpilaunch] SCRIPT ARGS... "
    )
    assert help_of("render").startswith(usage)
