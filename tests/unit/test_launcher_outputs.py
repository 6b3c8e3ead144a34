"""Files that a command writes at its end are looked at in its beginning."""

from __future__ import annotations

import io

import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.tensor_collectives.profile import MPICH, encode
from mpilaunch import cli
from mpilaunch.inputs import check_output, read_text
from mpilaunch.planning import measure_epochs, measure_links, plan_command

PLAN = ("--cluster", "nowhere.toml", "--epochs-curve", "nowhere.json", "net.json")
EPOCHS = ("--batch", "8", "--target", "0.9", "train.py")


@pytest.mark.parametrize(
    ("command", "option", "rest"),
    [
        (measure_links, "--output", ("--workers", "2")),
        (measure_epochs, "--output", EPOCHS),
        *((plan_command, option, PLAN) for option in ("--output", "--profile", "--timeline", "--picture")),
    ],
)
def test_before_anything_is_measured(tmp_path, command, option, rest):
    """Hours would be lost otherwise."""
    path = str(tmp_path / "missing" / "file")
    with pytest.raises(UsageError, match=f"{path} cannot be written: it needs a folder that is there"):
        command.run([option, path, *rest], io.StringIO())


def test_what_can_be_written(tmp_path, monkeypatch):
    """A file in a folder, also without a name of that; and no folder."""
    monkeypatch.chdir(tmp_path)
    check_output("file")
    check_output(str(tmp_path / "file"))
    for path in (".", str(tmp_path)):
        with pytest.raises(UsageError, match=f"^{path} cannot be written: it is a folder; give the name"):
            check_output(path)


def test_a_profile_of_collectives_is_read_before_a_job_starts(tmp_path, capsys):
    """A rank that finds it wrong ends its client in the middle of MPI's beginning."""
    (tmp_path / "train.py").touch()
    path = tmp_path / "profile.json"
    path.write_text("{}")
    words = ("--dry-run", "--workers", "2", "--collective-profile", str(path), str(tmp_path / "train.py"))
    assert cli.main(words) == 64
    assert capsys.readouterr().err.startswith(f"mpilaunch: {path} is no profile of collectives: ")
    path.write_bytes(encode(MPICH))
    assert cli.main(words) == 0


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path):
    """As editors of Windows write it."""
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xef\xbb\xbfclients = 2\n")
    assert read_text(str(path), "--config") == "clients = 2\n"
