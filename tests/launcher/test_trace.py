"""--trace and --report with real processes: the parts of the ranks become one trace and one report."""

import io
import json

import pytest

from mpilaunch.claims import claimed
from mpilaunch.seeing import compare

pytestmark = pytest.mark.mpi

TRAIN = """
import kvstore_mpi
from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.tracing import annotation
from kvstore_mpi.tracing.recorder import Recorder

recorder = Recorder(NodeId(Role.WORKER, rank), os.environ["KVMPI_TRACE"])
annotation.install(recorder)
for _ in range(3):
    with kvstore_mpi.annotate("forward"):
        pass
    with kvstore_mpi.annotate("backward"):
        done = recorder.operation("pushpull", 0, "weight", 0, lambda error: None)
    done(None)
"""
JOB = ("--workers", 2, "--grace", 20)


def processes_of(path):
    """Return the names of the processes in a trace, without their hosts."""
    events = json.loads(path.read_text())["traceEvents"]
    named = [event for event in events if event["name"] == "process_name"]
    return [event["args"]["name"].split(" ")[0] for event in named]


@pytest.mark.parametrize("option", ["--trace", "--snapshot-dir"])
def test_a_folder_of_a_running_job_is_no_other_s(launch, script, tmp_path, option):
    """The job does not begin, and the other one's files stay."""
    folder = tmp_path / "taken"
    with claimed({option: str(folder)}):
        (folder / "kept").touch()
        command = ("--servers", 1, option, folder, script("", join=False))
        job = launch(*command, program=("-m", "mpilaunch.cli"))
        assert job.wait() == 78, job.text
        assert f"{option} {folder} is that of another job, which is running" in job.text
    assert [each.name for each in folder.iterdir()] == ["kept"]


def test_a_job_leaves_one_trace_and_prints_one_report(launch, script):
    """The ranks write their parts as they end; mpilaunch merges them."""
    job = launch(*JOB, "--trace", "traces", "--report", script(TRAIN))
    assert job.wait() == 0, job.text
    assert job.with_text(f"mpilaunch| trace: {job.folder}/traces/trace.json")
    assert processes_of(job.folder / "traces/trace.json") == ["worker0", "worker1"]
    for name in ("worker0", "worker1", "all"):
        assert job.with_text(f"mpilaunch| {name} "), job.text
    out, folder = io.StringIO(), job.folder / "traces"
    assert compare.run([str(folder), str(folder / "trace.json")], out) == 0
    assert "b takes 1.000 times as long as a" in out.getvalue()


def test_a_report_alone_leaves_its_figures_only(launch, script):
    """Its parts are in the job's private directory, which is removed."""
    job = launch(*JOB, "--report", script(TRAIN))
    assert job.wait() == 0, job.text
    assert job.with_text("mpilaunch| all ")
    assert not job.with_text("trace:")
    assert job.leftovers() == ([], [])
    assert not list(job.folder.rglob("*.jsonl"))
    assert job.with_text("mpilaunch| verdict: ")
    [figures] = job.folder.glob("mpilaunch-logs/*/report.json")
    assert compare.run([str(figures), str(figures.parent), "--fail-if-slower", "0%"], io.StringIO()) == 0


def test_a_rank_that_fails_still_leaves_its_part(launch, script):
    """What it did until then may show why; the block about the failure comes last."""
    job = launch(*JOB, "--trace", "traces", script(TRAIN + "if rank == 1: sys.exit(3)\ntime.sleep(100)\n"))
    assert job.wait() == 3, job.text
    assert "worker1" in processes_of(job.folder / "traces/trace.json")
    assert job.lines[-2:] == ["mpilaunch| exit code 3", "mpilaunch| " + "-" * 72]


def test_without_the_options_there_is_no_trace(launch, script):
    """The ranks are not told of one."""
    job = launch(*JOB, script("assert 'KVMPI_TRACE' not in os.environ\n"))
    assert job.wait() == 0, job.text
    assert not job.with_text("mpilaunch|")
