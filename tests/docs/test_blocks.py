"""What the documents show works: each code block runs, or says why it cannot."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.doc_blocks import ALL, IN_A_JOB, LANGUAGES, ROOT, RUN, SETTINGS, benchmark_commands

BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
INSTALLS = "pip install"
NO_DATA = "no data: pip cannot download"


def place(block):
    """Return how a test calls a block."""
    return f"{block.document}:{block.line}"


def settings_of(block):
    """Return what is said about a block."""
    return [setting for setting in SETTINGS if setting.fits(block)]


@pytest.mark.parametrize("block", ALL, ids=place)
def test_each_block_names_its_language(block):
    """So that it is known which ones are to run."""
    assert block.language in LANGUAGES


@pytest.mark.parametrize("block", RUN, ids=place)
def test_it_is_said_how_each_block_runs(block):
    """Once."""
    assert len(settings_of(block)) == 1


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.document} {setting.part}")
def test_no_setting_is_left_of_a_block_that_has_gone(setting):
    """Each is about one block."""
    assert len([block for block in RUN if setting.fits(block)]) == 1


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("block", RUN, ids=place)
def test_a_block_runs(tmp_path, block):
    """As it stands, but for what its readers have of their own."""
    [setting] = settings_of(block)
    if setting.reason:
        pytest.skip(setting.reason)
    text = setting.text_of(block)
    for folder in ("examples", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "train.py").symlink_to(ROOT / "tests/launcher/scripts/first_steps.py")
    if block.language == "python":
        (tmp_path / "block.py").write_text(text, encoding="utf-8")
        script = ["block.py"] if setting.launch == IN_A_JOB else [sys.executable, "block.py"]
        command = [*setting.launch, *script]
    else:
        command = ["bash", "-euc", text.replace("scripts/", f"{ROOT}/scripts/")]
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=280, check=False
    )
    if NO_DATA in done.stdout + done.stderr:
        pytest.skip("the data are not here, and there is no package index to download their wheel from")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def options_shown():
    """Return the options that are shown of each program; not those of pip, for peers' libraries."""
    shown = {}
    for command in benchmark_commands():
        python, script, *arguments = shlex.split(command)
        if not command.startswith(INSTALLS):
            options = {word for word in arguments if word.startswith("--")}
            shown.setdefault(f"{python} {script}", set()).update(options)
    return shown


@pytest.mark.parametrize(("program", "options"), options_shown().items())
def test_a_benchmark_knows_its_options(program, options):
    """They take minutes to hours; what is shown is an option of each, which is asked once."""
    python, script = program.split()
    assert python == "python"
    command = [sys.executable, str(ROOT / script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    assert options <= set(re.findall(r"--[a-z][a-z-]*", done.stdout))
