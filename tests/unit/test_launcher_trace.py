"""Where the launcher has the parts of a trace put, and what it says of them."""

import dataclasses
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.records import SCHEDULER, NodeId, Role
from kvstore_mpi.tracing.events import Done, Header, Ready
from kvstore_mpi.tracing.parts import encode, write_part
from kvstore_mpi.tracing.recorder import CAPACITY
from mpilaunch.jobspec import JobSpec, Target
from mpilaunch.outcome.root_cause import Restart
from mpilaunch.trace import (
    finish_trace,
    gather,
    lost_runs,
    make_trace_folder,
    recording_folder,
    trace_folder,
)

SPEC = JobSpec(Target.SCRIPT, ("train.py",), NodeConfig(num_clients=2, num_servers=1, num_workers=2))
NODES = (NodeId(Role.WORKER, 0), NodeId(Role.WORKER, 1), NodeId(Role.SERVER, 0), SCHEDULER)
STEPS = [
    event
    for n in range(3)
    for event in (Ready(n * 100, n, "push", 0, "w", 0, n + 1), Done(n * 100 + 40, n))
]


def spec(**changes):
    return dataclasses.replace(SPEC, **changes)


def leave(folder, *nodes, boot="boot", host="host", full=False):
    """Leave the parts of some processes."""
    for node in nodes:
        header = Header(node, 0, host, 42, boot, 0, None, [], full)
        write_part(folder, header, map(encode, STEPS if node.role is Role.WORKER else []))


def test_the_folder_is_the_users_or_a_private_one_or_none():
    """A report alone leaves nothing behind; a trace's folder does not depend on where a rank is."""
    private = Path("/private")
    assert trace_folder(spec(), private) == ""
    assert trace_folder(spec(report=True), private) == "/private/trace"
    assert trace_folder(spec(trace="here", report=True), private) == str(Path.cwd() / "here")


def test_processes_on_several_hosts_leave_their_parts_in_private_folders():
    """Which have the same path on each; on one host they are where the trace will be."""
    private = Path("/private")
    for wanted in (spec(report=True), spec(trace="here")):
        assert recording_folder(wanted, private, spread=True) == "/private/trace"
        assert recording_folder(wanted, private, spread=False) == trace_folder(wanted, private)
    assert recording_folder(spec(), private, spread=True) == ""


class FarHost:
    """A host of which a folder can be read."""

    def __init__(self, archive=None):
        self.archive = archive

    def pack(self, folder):
        assert folder == "trace"
        if self.archive is None:
            return None
        reading, writing = os.pipe()
        os.write(writing, self.archive)
        os.close(writing)
        return reading


def archive_of(folder, **named):
    """Return an archive of a folder, with files under other names if wanted."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(folder, arcname="")
        for name, path in named.items():
            archive.add(path, arcname=name)
    return file.getvalue()


def test_the_parts_of_all_hosts_are_brought_together(tmp_path):
    """Those of this host, which may have a name, from its private folder."""
    here, far, folder = (tmp_path / name for name in ("here", "far", "user"))
    leave(here, *NODES[:2])
    leave(far, *NODES[2:])
    make_trace_folder(str(folder))
    hosts = [FarHost(), FarHost(archive_of(far)), FarHost(b"")]
    (problem,) = gather(hosts, here, folder)
    assert problem.startswith("parts of the trace are missing: the archive of another host")
    said = finish_trace(spec(trace=str(folder)), folder, tmp_path, [problem])
    assert said.startswith(problem)
    assert "not in the trace" not in said


@pytest.mark.parametrize("name", ["../../out.jsonl", "/tmp/out.jsonl"])
def test_an_archive_cannot_write_elsewhere(tmp_path, name):
    """Whatever it says; what is no part is left out."""
    far, folder = tmp_path / "far", tmp_path / "deep/user"
    leave(far, NODES[0])
    (far / "other").touch()
    make_trace_folder(str(folder))
    content = archive_of(far, **{name: far / f"parts/{NODES[0]}.jsonl"})
    assert gather([FarHost(content)], folder, folder) == []
    assert {path.name for path in (folder / "parts").iterdir()} == {f"{NODES[0]}.jsonl", "out.jsonl"}
    assert [path for path in tmp_path.rglob("out.jsonl") if path.parent != folder / "parts"] == []


def test_a_folder_that_cannot_be_made_is_wrong_use(tmp_path):
    """Before anything is started."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="choose another place with --trace"):
        make_trace_folder(str(tmp_path / "file"))
    make_trace_folder("")


def test_a_trace_and_a_report(tmp_path):
    """The trace is where the text says, and every worker has its line."""
    leave(tmp_path, *NODES)
    lines = finish_trace(spec(trace=str(tmp_path), report=True), tmp_path, tmp_path).splitlines()
    assert lines[0] == f"trace: {tmp_path}/trace.json (open it at https://ui.perfetto.dev)"
    assert lines[1].startswith("medians")
    assert [line.split()[0] for line in lines[3:6]] == ["worker0", "worker1", "all"]
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) > 6


def test_a_report_alone_writes_no_trace(tmp_path):
    """And says nothing of one."""
    leave(tmp_path, *NODES)
    assert finish_trace(spec(report=True), tmp_path, tmp_path).startswith("medians")
    assert not (tmp_path / "trace.json").exists()


def test_what_is_missing_is_said(tmp_path):
    """A process that was killed, a ring that has run over, a clock that nobody has compared."""
    leave(tmp_path, NODES[0], SCHEDULER)
    leave(tmp_path, NODES[2], boot="other", host="far", full=True)
    lines = finish_trace(spec(trace=str(tmp_path)), tmp_path, tmp_path).splitlines()
    assert lines[:3] == [
        "not in the trace, because they did not end in order: worker1",
        f"only the last {CAPACITY} events are kept of server0",
        (
            "times of far cannot be compared with the others': their clocks were never compared, which is "
            "done about once a second: was the job shorter?"
        ),
    ]


def test_a_trace_that_cannot_be_made_changes_nothing_else(tmp_path):
    """The job has its own result."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/worker0.jsonl").write_text("garbage\n")
    said = finish_trace(spec(trace=str(tmp_path)), tmp_path, tmp_path)
    assert said.startswith("there is no trace: ")
    assert "worker0.jsonl is not a part of a trace" in said


def test_runs_that_were_lost_are_named():
    """A process that is started again has the name of the one before, and takes the place of its part."""
    restarts = [Restart("server0", 1, ()), Restart("client1", 1, ()), Restart("client1", 2, ())]
    assert lost_runs(restarts) == ["not in the trace: what client1, server0 did before the last restart"]
    assert lost_runs([]) == []
