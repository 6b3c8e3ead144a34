"""What stands around the options in the help of ``mpilaunch``: usage, commands, settings, codes. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kvstore_mpi.settings import setting_of
from mpilaunch.command_table import COMMANDS
from mpilaunch.jobfile import knob_fields
from mpilaunch.outcome.exit_codes import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import Field

WIDTH, COLUMN = 79, 24
"""Of lines, and where argparse begins what it says of an option."""

USAGE = """mpilaunch [options] SCRIPT.py ARGS...
       mpilaunch [options] -m MODULE ARGS...
       mpilaunch [options] -- PROGRAM ARGS...
       mpilaunch --config JOB.toml [options] [what to run]
       mpilaunch doctor [--hosts LIST | --hostfile FILE]
       mpilaunch top | inspect | compare
       mpilaunch render --backend slurm|kubernetes [options] SCRIPT.py ARGS...
       mpilaunch plan | measure-epochs | measure-links --help"""

JOB_OPTIONS = "Options of a job may stand among these: mpilaunch --help."
"""The last line of the help of commands that run or write one."""

EPILOG = "exit codes: 1-255 that of the process that failed first (128+n: signal n); " + "; ".join(
    f"{code} {meaning}" for code, meaning in MEANINGS.items()
)


def help_epilog() -> str:
    """Return what stands below the options: commands, settings for experiments, exit codes."""
    commands = {name: command.text for name, command in COMMANDS.items()}
    settings = {name: _described(field) for name, field in sorted(knob_fields().items())}
    return "\n\n".join(
        (
            _rows("commands, each with a --help of its own:", commands),
            _rows("settings for experiments, --set NAME=VALUE; times are in seconds:", settings),
            textwrap.fill(EPILOG, WIDTH),
        )
    )


def _rows(heading: str, rows: Mapping[str, str]) -> str:
    """Return names and what they mean, as argparse writes options."""
    lines = (
        textwrap.fill(
            text,
            WIDTH,
            initial_indent=f"  {name}".ljust(COLUMN),
            subsequent_indent=COLUMN * " ",
            break_on_hyphens=False,
        )
        for name, text in rows.items()
    )
    return "\n".join((heading, *lines))


def _described(field: Field[Any]) -> str:
    """Return what a setting for experiments means, which values it may have, and which it has."""
    setting = setting_of(field)
    choices = f": one of {', '.join(setting.choices)}" if setting.choices else ""
    default = "auto" if setting.auto else field.default
    return f"{setting.text}{choices} (default {default})"
