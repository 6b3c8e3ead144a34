"""Options that are misspelt: which one may have been meant, and the usage of the command that has it."""

from __future__ import annotations

import pytest

from mpilaunch import cli

PLAN = "plan --cluster c.toml --epochs-curve c.json"


@pytest.mark.parametrize(
    ("line", "said", "usage"),
    [
        ("--worker 2 x.py", "--worker 2; did you mean --workers?", "[options] SCRIPT.py"),
        ("--worker=2 x.py", "--worker=2; did you mean --workers?", "[options] SCRIPT.py"),
        ("--xyzzy 2 x.py", "--xyzzy 2", "[options] SCRIPT.py"),
        (f"{PLAN} --out plan.json net.json", "--out plan.json; did you mean --output?", "plan --cluster"),
        (f"{PLAN} --worker 2 x.py", "--worker 2; did you mean --workers?", "plan --cluster"),
        ("render --tim 3 x.py", "--tim 3; did you mean --time?", "render"),
        (
            "measure-epochs --target 1 --batch 8 --repeat 3 --delais 1,2 x.py",
            "--repeat 3 --delais 1,2; did you mean --repeats?; did you mean --delays?",
            "measure-epochs --target",
        ),
        ("measure-links --worker 2", "--worker 2; did you mean --workers?", "measure-links --workers"),
        ("measure-links 2", "2", "measure-links --workers"),
        ("doctor --host a", "--host a; did you mean --hosts?", "doctor"),
    ],
)
def test_an_option_that_nothing_has_is_told_with_one_that_is_near(line, said, usage, capsys):
    """Of the command or of a job; before anything is read or run."""
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    assert ended.value.code == 64
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == f"mpilaunch: unrecognized arguments: {said}"
    assert second.startswith(f"usage: mpilaunch {usage}")


def test_the_delay_of_a_job_is_none_of_those_that_are_measured(tmp_path, monkeypatch, capsys):
    """Each run would have had another one, without a word."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    assert cli.main(["measure-epochs", "--target", "1", "--batch", "8", "--delay", "2", "x.py"]) == 64
    assert "leave out --delay 2: each run has one of those that --delays names" in capsys.readouterr().err


def test_what_is_no_option_of_a_job_is_not_planned_away(capsys):
    """A net takes no options of a job, and one that is misspelt is told as such."""
    with pytest.raises(SystemExit):
        cli.main([*PLAN.split(), "--compar", "old.json", "net.json"])
    assert "did you mean --compare?" in capsys.readouterr().err
