"""Files that the command line names: of all, one that is not there or is something else is wrong use."""

from __future__ import annotations

import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cluster import Cluster, Link, write_cluster
from kvstore_mpi.planner.epochs import EpochsCurve, write_curve
from mpilaunch import cli
from mpilaunch.job_secret import job_record

PLAN = "plan --cluster cluster.toml --epochs-curve curve.json"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder, in which we are, with what is right."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "cluster.toml").write_text(write_cluster(Cluster(2, Link(1e8))))
    (tmp_path / "curve.json").write_bytes(write_curve(EpochsCurve.of({64: 4, 128: 4.5})))
    (tmp_path / "wrong.json").write_text("{ ]")
    (tmp_path / "deep.json").write_text('{"placed": ' + 100_000 * "[")
    (tmp_path / "deep.toml").write_text("clients = " + 100_000 * "[")
    (tmp_path / "long.toml").write_text("clients = " + 5_000 * "9")
    return tmp_path


@pytest.mark.parametrize("name", ["wrong.json", "nowhere.json"])
@pytest.mark.parametrize(
    "words",
    [
        "--dry-run --config {} train.py",
        "--dry-run --hostfile {} train.py",
        "--dry-run --plan {} train.py",
        "--dry-run --workers 2 --collective-profile {} train.py",
        "plan --cluster {} --epochs-curve curve.json net.json",
        "plan --cluster cluster.toml --epochs-curve {} net.json",
        f"{PLAN} --compare {{}} net.json",
        f"{PLAN} --placement {{}} net.json",
        f"{PLAN} {{}}",
        "compare {} curve.json",
    ],
)
def test_a_file_that_is_named_wrongly_is_wrong_use(folder, capsys, words, name):
    """It ends with 64, as an option that cannot work does, and the message has its name."""
    assert cli.main(words.format(name).split()) == 64
    said = capsys.readouterr().err
    assert said.startswith("mpilaunch: ")
    assert name in said


@pytest.mark.parametrize(
    ("words", "name"),
    [
        *(("--dry-run --config {} train.py", name) for name in ("deep.toml", "long.toml")),
        ("--dry-run --plan {} train.py", "deep.json"),
        ("--dry-run --workers 2 --collective-profile {} train.py", "deep.json"),
        ("plan --cluster cluster.toml --epochs-curve {} net.json", "deep.json"),
        (f"{PLAN} {{}}", "deep.json"),
        ("compare {} curve.json", "deep.json"),
    ],
)
def test_so_is_one_that_is_nested_without_end_or_has_a_number_of_thousands_of_digits(
    folder, capsys, words, name
):
    """What reads it gives up, and says of which file."""
    assert cli.main(words.format(name).split()) == 64
    said = capsys.readouterr().err
    assert said.startswith("mpilaunch: ")
    assert name in said


@pytest.mark.parametrize(
    "words",
    ["--dry-run --config {} train.py", "--dry-run --plan {} train.py", "compare {} curve.json"],
)
def test_so_is_one_without_end(folder, capsys, monkeypatch, words):
    """It is not read until memory ends."""
    monkeypatch.setattr("mpilaunch.inputs.MOST_TEXT", 1_000)
    monkeypatch.setattr("mpilaunch.seeing.compare.MOST_TEXT", 1_000)
    assert cli.main(words.format("/dev/zero").split()) == 64
    assert "/dev/zero" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["wrong.json", "nowhere.json"])
def test_so_is_a_file_of_a_secret(folder, name):
    """Which is read when the job is about to begin."""
    with pytest.raises(UsageError, match=f"--secret-file {name} "):
        job_record("5f", name)
