"""``mpilaunch plan`` looks at what it is given before a script runs, and keeps what is measured."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace as replace_fields

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.planner import Cluster, EpochsCurve, Link, Net, NetLayer, plan, read_net, read_plan
from kvstore_mpi.planner.cluster import write_cluster
from kvstore_mpi.planner.epochs import write_curve
from kvstore_mpi.planner.net import write_net
from kvstore_mpi.planner.plan_file import write_plan
from mpilaunch import cli
from mpilaunch.planning import plan_command

NET = Net("small", 64, 64_000, (NetLayer("conv", 400_000, 0.03, 0.06),))
CLUSTER = Cluster(2, Link(1e8))
CURVE = EpochsCurve.of({64: 4, 128: 4.5, 256: None})


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write what a plan is made of; return the folder, in which we are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.json").write_bytes(write_net(NET))
    (tmp_path / "cluster.toml").write_text(write_cluster(CLUSTER))
    (tmp_path / "curve.json").write_bytes(write_curve(CURVE))
    other = replace_fields(NET, layers=(NetLayer("wider", 800_000, 0.03, 0.06),))
    (tmp_path / "other.json").write_bytes(write_plan(plan(other, CLUSTER, CURVE)))
    (tmp_path / "train.py").touch()
    return tmp_path


def run_plan(words):
    given = ("--cluster", "cluster.toml", "--epochs-curve", "curve.json", *words.split())
    return plan_command.run(given, io.StringIO())


@pytest.mark.parametrize(
    ("words", "error", "what"),
    [
        ("64 --compare nowhere.json", UsageError, "nowhere.json cannot be read"),
        ("64 --compare net.json", UsageError, "net.json is no plan"),
        ("64 --placement nowhere.json", UsageError, "nowhere.json cannot be read"),
        ("64 --model-parallel 2:3", UsageError, "with speed-up 3"),
        (
            "64 --model-parallel 2:1e-300",
            UsageError,
            "with speed-up 1e-300: .* a speed-up of 0.001",
        ),
        (
            "64 --model-parallel 2:1.3 --model-parallel 4:2 --model-parallel 2:1.5",
            UsageError,
            "2-way 'placement' has speed-up 1.3 and 1.5: give one",
        ),
        (
            "150",
            UsageError,
            "ranked: E of batch 150 lies between.*measure more with mpilaunch measure-ep",
        ),
        ("256", UsageError, "nothing can be ranked: batch 256 did not reach the target"),
    ],
)
def test_what_is_wrong_is_told_before_the_script_runs(files, monkeypatch, words, error, what):
    """What the script would have measured in hours is not lost."""
    ran = []
    monkeypatch.setattr(cli, "run_job", ran.append)
    with pytest.raises(error, match=what):
        run_plan(f"--samples 8000 --batch {words} train.py")
    assert not ran


@pytest.mark.parametrize(
    ("words", "error", "what"),
    [
        ("--compare other.json", MismatchError, "cannot be compared"),
        ("--timeline step.json", UsageError, "no option has one whose cut is known"),
    ],
)
def test_what_was_found_is_written_before_what_may_fail(files, words, error, what):
    """Only a whole plan can be compared, or tells whether a step can be shown."""
    with pytest.raises(error, match=what):
        run_plan(f"--output plan.json --profile profile.json {words} net.json")
    assert read_plan((files / "plan.json").read_bytes(), net=NET, cluster=CLUSTER)
    assert read_net((files / "profile.json").read_bytes()) == NET


def test_a_profile_has_its_own_batch_and_samples(files):
    """Both are named if both were given."""
    for words, named in (("--batch 64", "--batch"), ("--batch 64 --samples 8000", "--batch and --samples")):
        with pytest.raises(UsageError, match=f"^leave out {named}: net.json is the profile of a net"):
            run_plan(f"{words} net.json")


def test_the_profile_is_kept_where_nothing_can_be_ranked(files):
    """A script's is what has taken long, and may be planned again with what was missing."""
    with pytest.raises(UsageError, match="there are no workers of 5 devices"):
        run_plan("--profile profile.json --ways 5 net.json")
    assert read_net((files / "profile.json").read_bytes()) == NET


def test_workers_that_cannot_be_ranked_are_told_with_the_reason():
    """Those of three devices, of hosts with two, were asked for: the curve is not what is missing."""
    known = [plan_command._model_parallel("3:1.5")]
    with pytest.raises(
        UsageError, match="no workers of 3 devices can be ranked: 1-way data x 3-way model: "
    ):
        plan(NET, Cluster(2, Link(1e8), 2, Link(1e9)), CURVE, known, ways=3)
