"""Numbers that ``measure-epochs`` and ``plan`` are given: those of which nothing can come are refused."""

import pytest

from mpilaunch import cli

EPOCHS = "measure-epochs --target 0.9 --batch 8 --output {curve}"
PLAN = "plan --cluster c.toml --epochs-curve c.json"


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (EPOCHS, "--repeats 0", "argument --repeats: '0' is not a whole number of at least 1"),
        (EPOCHS, "--repeats -1", "argument --repeats: '-1' is not a whole number of at least 1"),
        (EPOCHS, "--batch 0", "argument --batch: '0' is not a whole number of at least 1"),
        (EPOCHS, "--batch -3", "argument --batch: '-3' is not a whole number of at least 1"),
        (EPOCHS, "--target nan", "argument --target: 'nan' is not a finite number"),
        (EPOCHS, "--target inf", "argument --target: 'inf' is not a finite number"),
        (EPOCHS, "--delays 0,1", "argument --delays: '0' is not a whole number of at least 1"),
        (EPOCHS, "--delays 1,x", "argument --delays: 'x' is not a whole number of at least 1"),
        (EPOCHS, "--delays 2,1", "argument --delays: give numbers of 1 or more, each once, ascending"),
        (PLAN, "--devices -1", "argument --devices: '-1' is not a whole number of at least 1"),
        (PLAN, "--batch -1", "argument --batch: '-1' is not a whole number of at least 1"),
        (PLAN, "--samples 0", "argument --samples: '0' is not a whole number of at least 1"),
        (PLAN, "--seconds nan", "argument --seconds: 'nan' is not a finite number"),
        (PLAN, "--shape data:0,3", "argument --shape: 'data:0,3' is not NAME:N,C,..."),
        (PLAN, "--model-parallel 2:nan", "argument --model-parallel: '2:nan' is not M:SPEEDUP or"),
    ],
)
def test_a_number_that_cannot_be_is_refused(tmp_path, capsys, command, words, said):
    """In one line, before anything runs; a curve that is there already stays."""
    curve = tmp_path / "curve.json"
    curve.write_text("measured")
    with pytest.raises(SystemExit) as caught:
        cli.main([*command.format(curve=curve).split(), *words.split(), __file__])
    assert caught.value.code == 64
    assert capsys.readouterr().err.startswith(f"mpilaunch: {said}")
    assert curve.read_text() == "measured"
