"""What the launcher makes of plans, reports of epochs and traces, without a job."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from msgspec.structs import replace as replace_fields
from support.placement_twins import series_parallel

from kvstore_mpi import epoch_report
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.epoch_report import Report, Target, epochs_to_target, read_reports, report_epoch
from kvstore_mpi.errors import ConfigurationError, MismatchError, UsageError
from kvstore_mpi.planner import Cluster, EpochsCurve, Link, ModelParallel, Net, NetLayer, plan, read_plan
from kvstore_mpi.planner.cluster import write_cluster
from kvstore_mpi.planner.cuts import PIPELINE, PLACEMENT, Parts, read_cut
from kvstore_mpi.planner.epochs import write_curve
from kvstore_mpi.planner.net import write_net
from kvstore_mpi.planner.placement import graph as parts_graph
from kvstore_mpi.planner.plan_file import write_plan
from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.tracing.events import Header, Span
from kvstore_mpi.tracing.timeline import Operation, Timeline
from mpilaunch import cli
from mpilaunch.jobspec import Target as Command
from mpilaunch.options import make_parser, split_command
from mpilaunch.planning import measure_epochs, plan_command
from mpilaunch.planning.planned import check_hosts, with_plan
from mpilaunch.planning.step_profile import profile

NET = Net(
    "small", 64, 64_000, (NetLayer("conv", 400_000, 0.03, 0.06), NetLayer("dense", 80_000, 0.01, 0.02))
)
CLUSTER = Cluster(4, Link(1e8))
CURVE = EpochsCurve.of({64: 4, 128: 4.5, 256: 9})


@pytest.fixture
def files(tmp_path):
    """Write a net, a cluster, a curve and a plan; return the folder."""
    (tmp_path / "net.json").write_bytes(write_net(NET))
    (tmp_path / "cluster.toml").write_text(write_cluster(CLUSTER))
    (tmp_path / "curve.json").write_bytes(write_curve(CURVE))
    (tmp_path / "plan.json").write_bytes(write_plan(plan(NET, CLUSTER, CURVE)))
    (tmp_path / "train.py").touch()
    return tmp_path


def parsed(line, job):
    options = make_parser("").parse_args(line.split())
    return with_plan(options, job, "plan.json"), options


JOB = {"num_clients": 2, "num_workers": 4, "num_servers": 2, "slice_elements": 25_000}


def test_a_plan_sets_what_the_user_has_not():
    """And says nothing where the user says the same."""
    errors, options = parsed("--workers 4 --grace 3", JOB)
    assert errors == []
    assert (options.num_clients, options.num_workers, options.num_servers) == (2, 4, 2)
    assert options.set == ["slice_elements=25000"]


def test_what_contradicts_a_plan_is_named():
    """An option, a setting, and what this version has no option for."""
    line = "--servers 1 --set slice_elements=50000"
    errors, options = parsed(line, {**JOB, "hovercraft": 2})
    assert errors == [
        "--servers 1 contradicts the plan plan.json, which has 2: leave one of them out",
        "--set slice_elements 50000 contradicts the plan plan.json, which has 25000: leave one of them out",
        "the plan plan.json wants hovercraft 2, which this version cannot run",
    ]
    assert options.num_servers == 1


def test_mpilaunch_takes_a_plan(files):
    """A job of two workers, whose batch of 128 needs few more epochs; a command line can contradict it."""
    best = read_plan((files / "plan.json").read_bytes()).best.configuration
    words = ("--plan", str(files / "plan.json"))
    spec, _ = cli.read_job(words, Command.SCRIPT, (str(files / "train.py"),))
    node = spec.node
    assert (node.num_workers, node.num_clients, node.num_servers) == (2, best.clients, best.servers)
    with pytest.raises(UsageError, match="--workers 3 contradicts"):
        cli.read_job([*words, "--workers", "3"], Command.SCRIPT, (str(files / "train.py"),))
    with pytest.raises(UsageError, match="no plan"):
        cli.read_job(["--plan", str(files / "net.json")], Command.SCRIPT, (str(files / "train.py"),))
    with pytest.raises(UsageError, match="--plan nowhere cannot be read"):
        cli.read_job(["--plan", "nowhere"], Command.SCRIPT, (str(files / "train.py"),))


def test_ranks_are_told_the_cut_of_the_plan(files):
    """As JSON in their environment; without a plan, or with one of single ranks, nothing."""
    chain = parts_graph.Graph(
        operations=tuple(
            parts_graph.Operation(name=name, forward_seconds=1.0, backward_seconds=2.0) for name in "ab"
        ),
        edges=(parts_graph.Edge(source="a", target="b", num_bytes=1000),),
    )
    layers = tuple(NetLayer(name, 400_000, 4.0, 8.0) for name in "ab")
    net = replace_fields(NET, layers=layers, parts=Parts(chain, PIPELINE, 4))
    found = plan(net, CLUSTER, CURVE)
    assert found.cut is not None
    (files / "cut.json").write_bytes(write_plan(found))
    spec, _ = cli.read_job(("--plan", str(files / "cut.json")), Command.SCRIPT, (str(files / "train.py"),))
    assert spec.node.model_parallel == 2
    assert NodeConfig.from_mapping({"KVMPI_CUT": spec.node.to_mapping()["KVMPI_CUT"]}).cut == spec.node.cut
    assert read_cut(spec.node.cut) == found.cut
    for words in ((), ("--plan", str(files / "plan.json"))):
        spec, _ = cli.read_job(words, Command.SCRIPT, (str(files / "train.py"),))
        assert spec.node.cut == ""


@pytest.mark.parametrize(
    ("most", "hosts"),
    [(1, "ab"), (2, "aa"), (2, "aabb"), (2, "aab"), (4, "aaa")],
    ids=str,
)
def test_ranks_may_be_where_they_were_planned(most, hosts):
    """On as many hosts, and no more of them on one."""
    check_hosts("plan.json", most, hosts)


@pytest.mark.parametrize(
    ("most", "hosts", "said"),
    [
        (1, "aa", "2 host.s., 1 at most.*on 1 .a: 2"),
        (2, "ab", "on 1 host.s.*on 2 .a: 1, b: 1"),
        (2, "aaab", "a: 3"),
    ],
)
def test_ranks_elsewhere_are_another_cluster_s(most, hosts, said):
    """On fewer hosts, on more, and too many on one."""
    with pytest.raises(MismatchError, match=said):
        check_hosts("plan.json", most, hosts)


def test_a_job_on_other_hosts_than_planned_does_not_start(files):
    """The plan is for workers on a host each; here there is one, and two are such as were planned."""
    words = ("--plan", str(files / "plan.json"))
    spec, _ = cli.read_job(words, Command.SCRIPT, (str(files / "train.py"),))
    with pytest.raises(MismatchError, match="plan for another cluster: it has 2 ranks on 2 host"):
        cli.choose_place(spec)
    spec, _ = cli.read_job([*words, "--hosts", "a,b"], Command.SCRIPT, (str(files / "train.py"),))
    _, placement = cli.choose_place(spec)
    assert placement.ranks in ((("a",), ("b",)), (("a", "b"),))
    several = replace(spec, hosts="", node=replace(spec.node, num_clients=1, model_parallel=3))
    with pytest.raises(MismatchError, match="6 ranks on 6 host"):
        cli.choose_place(several)


@pytest.mark.parametrize(("devices", "threads"), [(1, "8"), (2, "4"), (3, "2"), (16, "1")])
def test_a_script_is_measured_as_one_device(files, monkeypatch, devices, threads):
    """With its share of the cores, as a rank of the job will have it; the user's own number stays."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    spec, _ = cli.read_job([], Command.SCRIPT, (str(files / "train.py"),))
    cluster = Cluster(2, Link(1e8), devices, Link(1e9))
    assert plan_command.as_one_device(spec, 8, cluster).env == (("OMP_NUM_THREADS", threads),)
    said, _ = cli.read_job(["--env", "OMP_NUM_THREADS=3"], Command.SCRIPT, (str(files / "train.py"),))
    assert plan_command.as_one_device(said, 8, cluster).env == (("OMP_NUM_THREADS", "3"),)


def test_the_command_measures_a_script_so(files, monkeypatch):
    """The job that it runs is told."""
    ran = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(plan_command, "cores_here", lambda: 8)
    monkeypatch.setattr(cli, "run_job", lambda spec: ran.append(spec) or SimpleNamespace(code=1))
    (files / "cluster.toml").write_text(write_cluster(Cluster(2, Link(1e8), 4, Link(1e9))))
    with pytest.raises(ConfigurationError, match="the script has failed"):
        run_plan(files, "--batch", "8", "--samples", "800", files / "train.py")
    assert dict(ran[0].env)["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(("devices", "ways", "ranks"), [(4, 2, 4), (3, 2, 2), (2, 4, 2), (0, 1, 0)])
def test_workers_are_planned_for_whole_hosts(devices, ways, ranks):
    """As ``sites_of`` has them: a worker of two devices leaves the third of a host idle."""
    found = plan(NET, CLUSTER, CURVE, [ModelParallel(ways, float(ways))] if ways > 1 else [])
    if ways > 1:
        best = next(each for each in found.options if each.configuration.ways == ways)
        found = replace_fields(found, options=(best,))
    assert replace_fields(found, devices=devices).ranks_of_host == ranks


def run_plan(files, *words):
    out = io.StringIO()
    given = ("--cluster", files / "cluster.toml", "--epochs-curve", files / "curve.json", *words)
    assert plan_command.run([*map(str, given)], out) == 0
    return out.getvalue()


def test_the_command_plans_writes_and_compares(files):
    """What it writes is read again; a plan is compared with one for the same net, measured anew or not."""
    again = files / "again.json"
    text = run_plan(files, "--model-parallel", "2:1.9:pipeline", "--output", again, files / "net.json")
    assert "critical path" in text
    assert read_plan(again.read_bytes(), net=NET, cluster=CLUSTER).options[0].configuration.ways == 2
    (files / "placed.json").write_text(
        '{"order": {"a": [1], "b": [1], "c": []}, "predicted_seconds": 2, "single_seconds": 3.8, "gap": 0}'
    )
    placed = run_plan(files, "--placement", files / "placed.json", files / "net.json")
    assert placed.splitlines()[2:4] == [
        line.replace("pipeline", "placement") for line in text.splitlines()[2:4]
    ]
    (files / "placed.json").write_text('{"order": {"a": [1]}, "predicted_seconds": 2, "single_seconds": 2}')
    with pytest.raises(UsageError, match=r"placed.json is a placement on 1 device"):
        run_plan(files, "--placement", files / "placed.json", files / "net.json")
    text = run_plan(files, "--compare", again, files / "net.json")
    assert "gone: 2-way data x 2-way model (pipeline)" in text
    (files / "net.json").write_bytes(write_net(replace_fields(NET, other_s=0.1)))
    (files / "cluster.toml").write_text(write_cluster(replace_fields(CLUSTER, hosts=2)))
    text = run_plan(files, "--compare", again, files / "net.json")
    assert "the net: other times, samples of an epoch, or shares of rows\nanother cluster\n" in text


def test_the_command_shows_the_step_of_the_best_workers_that_are_divided(files):
    """Also where one device each is best; a net whose parts are not known has no such step."""
    chain = parts_graph.Graph(
        operations=tuple(
            parts_graph.Operation(name=name, forward_seconds=1.0, backward_seconds=2.0) for name in "ab"
        ),
        edges=(parts_graph.Edge(source="a", target="b", num_bytes=1000),),
    )
    (files / "net.json").write_bytes(write_net(replace_fields(NET, parts=Parts(chain, PIPELINE, 4))))
    for curve in (CURVE, EpochsCurve.of({64: 4, 256: 4})):
        (files / "curve.json").write_bytes(write_curve(curve))
        text = run_plan(files, "--timeline", files / "step.json", files / "net.json")
        assert f"wrote {files / 'step.json'}" in text
        events = json.loads((files / "step.json").read_bytes())["traceEvents"]
        assert sum(event.get("cat") == "backward" for event in events) == 8
    (files / "net.json").write_bytes(write_net(NET))
    with pytest.raises(UsageError, match="no option has one whose cut is known"):
        run_plan(files, "--timeline", files / "step.json", files / "net.json")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("nowhere.json",), "nowhere.json cannot be read"),
        ((), "nothing to plan"),
        (("train.py",), "say --batch"),
        (("--batch", "8", "--samples", "80", "--workers", "2", "train.py"), "with one worker"),
        (("--batch", "8", "--samples", "80", "--shape", "data:8,3", "net.json"), r"no \[device\]"),
        (("--batch", "8", "net.json"), r"leave out --batch: net\.json"),
        (("net.json", "train.py", "8"), r"leave out train\.py 8: net\.json is planned"),
        (("--leaders", "all", "net.json"), r"leave out --leaders all: net\.json"),
    ],
)
def test_what_cannot_be_planned_is_named(files, monkeypatch, words, what):
    """Before anything runs."""
    monkeypatch.chdir(files)
    with pytest.raises(UsageError, match=what):
        run_plan(files, *words)


def test_a_symbol_needs_mxnet(files, monkeypatch):
    """Where there is none, that is said, and what else will do."""
    monkeypatch.chdir(files)
    monkeypatch.setattr(plan_command.importlib.util, "find_spec", lambda name: None)
    options = plan_command.argparse.Namespace(
        cluster="cluster.toml", shape=[("data", (8, 3))], batch=7, samples=80
    )
    with pytest.raises(UsageError, match=r"--batch 7 is in no --shape, of \{'data': \(8, 3\)\}"):
        plan_command._net_of_symbol("net.json", options, SimpleNamespace(device=object()))
    options.batch = 8
    with pytest.raises(ConfigurationError, match=r"net\.json is a symbol.*kvstore_mpi\[mxnet\].*profile"):
        plan_command._net_of_symbol("net.json", options, SimpleNamespace(device=object()))


def test_the_command_places_with_the_effort_that_is_given(files, monkeypatch, capsys):
    """Here by search, to which a little more makes a difference."""
    monkeypatch.setitem(sys.modules, "ortools", None)
    net = replace_fields(NET, parts=Parts(series_parallel(3, joints=1, branches=5), PLACEMENT))
    cluster = Cluster(1, None, 2, Link(1e6, 1e-3))
    (files / "net.json").write_bytes(write_net(net))
    (files / "cluster.toml").write_text(write_cluster(cluster))
    said = [run_plan(files, "--seconds", each, files / "net.json") for each in ("0", "0.5")]
    assert said == [plan(net, cluster, CURVE, seconds=each).explain() + "\n" for each in (0, 0.5)]
    assert said[0] != said[1]
    with pytest.raises(SystemExit):
        run_plan(files, "--seconds", "-1", files / "net.json")
    assert "'-1' is no number of seconds" in capsys.readouterr().err


def test_the_command_plans_workers_of_a_number_of_devices(files):
    """Others are not ranked; and where there can be none of these, that is said."""
    text = run_plan(files, "--model-parallel", "2:1.1", "--ways", "2", files / "net.json")
    assert ("1-way model" in text, "2-way model" in text) == (False, True)
    with pytest.raises(UsageError, match="there are no workers of 3 devices"):
        run_plan(files, "--ways", "3", files / "net.json")


def test_options_of_a_command_stand_among_those_of_mpilaunch():
    """The script's own have the same names, and stay its own."""
    words = "--target 0.9 --workers 2 --lower --batch 8 train.py --target 3 --lower"
    head, kind, command = split_command(words.split(), measure_epochs._parser())
    assert head == words.split()[:7]
    assert (kind, command) == (Command.SCRIPT, ("train.py", "--target", "3", "--lower"))


def test_reports_are_counted_for_each_worker(tmp_path, monkeypatch):
    """Without a measurement they do nothing; the last worker to reach the target counts."""
    assert report_epoch(1.0) is False
    path = tmp_path / "reports"
    path.write_text('{"metric": 0.9, "lower": false}\n')
    monkeypatch.setenv("KVMPI_EPOCHS_FILE", str(path))
    assert [report_epoch(metric) for metric in (0.5, 0.95, 0.8)] == [False, True, False]
    assert report_epoch(0.99, 3.25)
    target, reports = read_reports(path)
    assert [(each.epochs, each.metric) for each in reports] == [(1, 0.5), (2, 0.95), (3, 0.8), (3.25, 0.99)]
    assert epochs_to_target(target, reports) == 2
    assert epochs_to_target(target, [*reports, Report(-1, 4, 0.9)]) == 4
    assert epochs_to_target(target, [*reports, Report(-1, 4, 0.8)]) is None
    assert epochs_to_target(target, []) is None
    assert not epoch_report.was_asked(path)
    assert epoch_report.asked_delay() == 1
    assert epoch_report.was_asked(path)
    assert Target(0.5, lower=True).is_reached(0.4)
    assert not Target(0.5, lower=True).is_reached(float("nan"))


MS = 1_000_000


def timeline(readies, spans=()):
    """Return a worker that pushed keys 0, 1, ... of 10, 20, ... elements at these milliseconds."""
    operations = [
        Operation(int(at * MS), 0, "pushpull", 0, key, -key, step)
        for step, row in enumerate(readies, 1)
        for key, at in enumerate(row)
    ]
    keys = [(number, 0, number) for number in range(len(readies[0]))]
    header = Header(NodeId(Role.WORKER, 0), 0, "host", 1, "boot", 0, None, keys, full=False)
    header = replace_header(header, {number: 10 * number + 10 for number, *_ in keys})
    return Timeline(header, operations, [Span(int(a * MS), int(b * MS), name, 1) for a, b, name in spans])


def replace_header(header, elements):
    return Header(
        **{name: getattr(header, name) for name in header.__struct_fields__} | {"elements": elements}
    )


def test_a_profile_shares_backward_out_by_the_moments_of_gradients():
    """Steps of 30 ms: gradients of keys 2, 1, 0 after 15, 18 and 20; a third of all is forward."""
    steps = [[30 * step + 20, 30 * step + 18, 30 * step + 15] for step in range(6)]
    net = profile(timeline(steps), "net", 8, 80)
    assert [layer.num_bytes for layer in net.layers] == [40, 80, 120]
    backward = [1e3 * layer.backward_s for layer in net.layers]
    assert backward == pytest.approx([2, 3, 15])
    assert 1e3 * net.step_s == pytest.approx(30)
    assert [layer.forward_s / layer.backward_s for layer in net.layers] == pytest.approx([0.5] * 3)


def test_of_a_hybridized_net_nothing_hides():
    """All gradients are there at once, the first key's first: all compute is the last layer's."""
    steps = [[30 * step, 30 * step + 0.001, 30 * step + 0.002] for step in range(6)]
    net = profile(timeline(steps), "net", 8, 80)
    assert [layer.backward_s > 0 for layer in net.layers] == [False, False, True]
    assert 1e3 * net.step_s == pytest.approx(30)


def test_with_marks_what_is_not_marked_is_no_compute():
    """Of each 30 ms, 24 are forward and backward."""
    steps = [[30 * step + 24, 30 * step + 12] for step in range(6)]
    spans = [
        span
        for step in range(6)
        for span in ((30 * step, 30 * step + 8, "forward"), (30 * step + 8, 30 * step + 24, "backward"))
    ]
    net = profile(timeline(steps, spans), "net", 8, 80)
    assert 1e3 * net.other_s == pytest.approx(6)
    assert [1e3 * layer.backward_s for layer in net.layers] == pytest.approx([12, 4])


def test_a_script_that_pushes_too_little_is_named():
    """Nothing, or three steps."""
    for steps in ([[]], [[1, 2], [3, 4], [5, 6]]):
        with pytest.raises(UsageError, match="script of net has made too few steps"):
            profile(timeline(steps), "net", 8, 80)


def test_the_delay_reaches_every_process():
    """As an option, and in their environment."""
    spec, _ = cli.read_job(["--delay", "4"], Command.EXECUTABLE, ("true",))
    assert NodeConfig.from_mapping(spec.node.to_mapping()).delay == 4
    with pytest.raises(UsageError, match="--delay must be at least 1"):
        cli.read_job(["--delay", "0"], Command.EXECUTABLE, ("true",))
    assert replace(spec.node, delay=1).to_mapping().get("KVMPI_DELAY") is None
