"""The job's trace and report: where the parts go, and what is made of them when the job is over.

Must not know how parts look; that is ``kvstore_mpi.tracing``'s.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi import private_files
from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.tracing import parts
from kvstore_mpi.tracing.chrome import chrome_trace
from kvstore_mpi.tracing.linking import link
from kvstore_mpi.tracing.recorder import CAPACITY
from kvstore_mpi.tracing.report import measure, render, resources_of
from kvstore_mpi.tracing.timeline import Timeline, clocks
from kvstore_mpi.tracing.verdict import summarise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvstore_mpi.tracing.report import WorkerReport
    from kvstore_mpi.tracing.verdict import Summary
    from mpilaunch.hosts.interface import Host
    from mpilaunch.jobspec import JobSpec
    from mpilaunch.outcome.root_cause import Restart

PARTS = "trace"
"""Name of the folder in the private directory."""

REPORT = "report.json"
"""Name of the file with the figures of a run's report, in the folder of its logs."""


def trace_folder(spec: JobSpec, private: Path) -> str:
    """Return the folder for the parts, or nothing: the user's, or for a report alone one in ``private``."""
    if spec.trace:
        return str(Path(spec.trace).absolute())
    return str(private / PARTS) if spec.report else ""


def recording_folder(spec: JobSpec, private: Path, *, spread: bool) -> str:
    """Return the folder in which processes leave their parts; on several hosts each has its own."""
    return str(private / PARTS) if spread and (spec.trace or spec.report) else trace_folder(spec, private)


def gather(hosts: Iterable[Host], recorded: Path, folder: Path) -> list[str]:
    """Bring the parts of a trace together that processes on several hosts have left there.

    Args:
        hosts: All of the job's.
        recorded: Where processes on this host have left theirs.
        folder: Of the trace.

    Returns:
        What is not there, and why.
    """
    found = (_bring(host, recorded, folder) for host in hosts)
    return [f"parts of the trace are missing: {problem}" for problem in found if problem]


def _bring(host: Host, recorded: Path, folder: Path) -> str:
    """Bring the parts of one host; return why that is not possible."""
    try:
        descriptor = host.pack(PARTS)
        if descriptor is not None:
            os.set_blocking(descriptor, True)
            with os.fdopen(descriptor, "rb") as archive:
                parts.unpack(folder, archive)
        elif recorded != folder and recorded.exists():
            shutil.copytree(recorded, folder, dirs_exist_ok=True)
    except OSError as error:
        return str(error)
    return ""


def make_trace_folder(folder: str) -> None:
    """Make the folder, if there is to be one, without what an earlier job has left there.

    Raises:
        ConfigurationError: It cannot be made.
    """
    if not folder:
        return
    try:
        parts.clear(Path(folder))
    except OSError as error:
        raise ConfigurationError(
            f"the folder for the trace cannot be made in {folder!r}: {error.strerror}; "
            "choose another place with --trace"
        ) from error


def finish_trace(spec: JobSpec, folder: Path, logs: Path, problems: Sequence[str] = ()) -> str:
    """Merge the parts, write the trace and the report, and return what there is to say of them.

    The job's result stays its own, whatever fails here.

    Args:
        spec: The job.
        folder: Of the trace.
        logs: For the report's figures, by which ``mpilaunch compare`` compares runs.
        problems: What could not be brought there.
    """
    try:
        timelines = link(parts.read_parts(folder))
        lines = [*problems, *_missing(spec, timelines), *_cut_off(timelines), *_not_aligned(timelines)]
        if spec.trace and not spec.node.parts_file:  # who plans reads the parts, and removes them
            path = parts.write_trace(folder, chrome_trace(timelines))
            lines.append(f"trace: {path} (open it at https://ui.perfetto.dev)")
    except (OSError, ConfigurationError) as error:
        return f"there is no trace: {error}"
    if spec.report:
        reports = _reports(timelines)
        command = (
            " ".join(spec.command).encode(errors="backslashreplace").decode()
        )  # names of files are bytes
        summary = summarise(reports, command)
        lines += [render(reports), f"verdict: {summary.verdict}"]
        try:
            with private_files.replacing(logs / REPORT) as file:
                file.write(msgspec.json.encode(summary))
        except OSError as error:
            lines.append(f"the report is not in {logs}: {error.strerror}")
    return "\n".join(lines)


def lost_runs(restarts: Sequence[Restart]) -> list[str]:
    """Say which processes are in the trace only with what they did after they were started again."""
    names = sorted({each.name for each in restarts})
    return [f"not in the trace: what {', '.join(names)} did before the last restart"] if names else []


def summary_of(folder: Path, command: str) -> Summary:
    """Return the figures of a run of which the trace is in a folder.

    Raises:
        UsageError: There is none, or it is of another version of this package.
    """
    try:
        timelines = link(parts.read_parts(folder))
    except (OSError, ConfigurationError) as error:
        raise UsageError(f"the trace in {folder} cannot be read: {error}") from error
    if not timelines:
        raise UsageError(f"{folder} has neither {REPORT} nor the parts of a trace")
    return summarise(_reports(timelines), command)


def _reports(timelines: Sequence[Timeline]) -> list[WorkerReport]:
    workers = [timeline for timeline in timelines if timeline.node.role is Role.WORKER]
    return [measure(each, resources_of(each, timelines)) for each in workers]


def _missing(spec: JobSpec, timelines: Sequence[Timeline]) -> list[str]:
    """Say whose parts are not there."""
    nodes = [NodeId(Role.WORKER, rank) for rank in range(spec.node.num_workers)]
    nodes += [NodeId(Role.SERVER, index) for index in range(spec.node.num_servers)]
    nodes += [NodeId(Role.SCHEDULER)] if spec.node.num_servers else []
    ways = spec.node.model_parallel
    expected = [f"{node}.{rank}" if ways > 1 else str(node) for node in nodes for rank in range(ways)]
    missing = [name for name in expected if name not in {each.header.name for each in timelines}]
    return [f"not in the trace, because they did not end in order: {', '.join(missing)}"] if missing else []


def _cut_off(timelines: Sequence[Timeline]) -> list[str]:
    """Say who has recorded more than is kept."""
    full = [timeline.header.name for timeline in timelines if timeline.header.full]
    return [f"only the last {CAPACITY} events are kept of {', '.join(full)}"] if full else []


def _not_aligned(timelines: Sequence[Timeline]) -> list[str]:
    """Say whose clocks nobody has compared with the coordinator's."""
    headers = [timeline.header for timeline in timelines]
    known = clocks(headers)
    hosts = sorted({header.host for header in headers if known[header.boot_id] is None})
    told = "their clocks were never compared, which is done about once a second: was the job shorter?"
    return [f"times of {', '.join(hosts)} cannot be compared with the others': {told}"] if hosts else []
