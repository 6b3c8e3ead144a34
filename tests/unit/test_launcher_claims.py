"""A folder is one job's at a time: locks on real folders, in two processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvstore_mpi.errors import ConfigurationError
from mpilaunch.claims import check_is_there, claimed

HOLD = """
import sys
from mpilaunch.claims import claimed
with claimed({"--trace": sys.argv[1]}):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_jobs_at_once_do_not_share_a_folder(tmp_path):
    """The second is told; when the first has gone, however, the folder is free, and nothing lies in it."""
    folder = tmp_path / "a" / "b"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "held\n"
        with (
            pytest.raises(ConfigurationError, match=r"--snapshot-dir .*b is that of another job"),
            claimed({"--snapshot-dir": str(folder)}),
        ):
            pass
        job.kill()
    with claimed({"--snapshot-dir": str(folder)}):
        assert list(folder.iterdir()) == []


def test_one_job_may_have_a_folder_for_two_purposes(tmp_path):
    """By two names, too; and none where none is asked for."""
    (tmp_path / "link").symlink_to(tmp_path)
    with claimed({"--snapshot-dir": str(tmp_path), "--trace": str(tmp_path / "link")}):
        pass
    with claimed({"--snapshot-dir": "", "--trace": ""}):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """A file is in its place."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigurationError, match=r"--trace .*file cannot be made or used: File exists"),
        claimed({"--trace": str(tmp_path / "file")}),
    ):
        pass


def test_a_job_goes_on_from_a_folder_that_is_there(tmp_path):
    """It makes none, which would hide a misspelt name."""
    check_is_there("--snapshot-dir", str(tmp_path))
    with pytest.raises(
        ConfigurationError, match=r"--snapshot-dir .*typo is not there.* leave out --resume"
    ):
        check_is_there("--snapshot-dir", str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()
