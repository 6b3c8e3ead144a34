"""The plan of a job as a shell script, which ``--dry-run`` prints, and which runs the job if pasted. Pure.

Without mpilaunch nobody ends the others when one fails: the script is for a look at what is started, and
for starting one process by hand, under a debugger or with other options.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from kvstore_mpi.config import variable_of
from mpilaunch.plan import JOB_FILE, NEWS_PIPE, READY_PIPE, RECORDS
from mpilaunch.rank.record import RankName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpilaunch.plan import Plan, Process

PRIVATE = "(private)"
"""Stands for the private directory in the paths of a plan that is printed."""

_SECRET = "import json, secrets; print(json.dumps(dict(job='by hand', secret=secrets.token_hex(32))))"  # noqa: S105  makes one
_ADDRESSES = "import json, sys; print(*json.load(sys.stdin)['addresses'], sep=',')"
_JOB = '"$job"'


def render(plan: Plan, told: Iterable[str] = ()) -> str:
    """Return the plan as a shell script; one for several hosts says of each process on which it is.

    Args:
        plan: The processes.
        told: What mpilaunch would say of the job before it starts them.
    """
    lines = [f"# {line}" for text in told for line in text.splitlines()]
    blocks = [_private_folder(plan), *(_process(plan, each) for each in plan.processes)]
    if plan.scheduler:
        blocks.insert(2, _await_scheduler())
    if plan.max_restarts:
        blocks.append(f"# mpilaunch starts at most {plan.max_restarts} of those again that fail")
    head = ["\n".join(lines)] if lines else []
    return "\n\n".join([*head, *blocks, f"wait; rm -r {_JOB}"]) + "\n"


def _private_folder(plan: Plan) -> str:
    """Make the private directory; ranks say what they have to say on the terminal."""
    ranks = [
        RankName(client, rank).stem
        for client in range(len(plan.clients))
        for rank in range(plan.client_size)
    ]
    lines = [
        "# the private directory: the job's secret, and pipes on which mpilaunch would hear the ranks",
        f"umask 077; job=$(mktemp -d); mkdir {_JOB}/{RECORDS}; ln -s /dev/null {_JOB}/{RECORDS}/events",
        f"for rank in {' '.join(ranks)}; do",
        f"    ln -s /dev/stdout {_JOB}/{RECORDS}/$rank.out; ln -s /dev/stderr {_JOB}/{RECORDS}/$rank.err",
        "done",
    ]
    if plan.scheduler:
        lines.append(f"{_python(_SECRET)} >{_JOB}/{JOB_FILE}; touch {_JOB}/{READY_PIPE}")
    if plan.scheduler and plan.max_restarts:
        lines.append(f"mkfifo {_JOB}/{NEWS_PIPE} # the scheduler would hear there what is started again")
    snapshots = dict(plan.clients[0].env).get(variable_of("snapshot_dir"))
    if snapshots:
        lines.append(f"mkdir -p {_quoted(snapshots)}")
    return "\n".join(lines)


def _await_scheduler() -> str:
    ready = f"{_JOB}/{READY_PIPE}"
    return f"until [ -s {ready} ]; do sleep 0.1; done; scheduler=$({_python(_ADDRESSES)} <{ready})"


def _process(plan: Plan, process: Process) -> str:
    env = [f"{name}={_quoted(value)}" for name, value in process.env]
    if plan.scheduler and process is not plan.scheduler:
        env.append('KVMPI_SCHEDULER="$scheduler"')
    place = f" (on {process.host})" if process.host else ""
    lines = [
        f"# {process.name}{place}:",
        *(f"{text} \\" for text in env),
        f"{' '.join(map(_quoted, process.argv))} </dev/null &",
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    before, private, after = text.partition(PRIVATE)
    if not private:
        return shlex.quote(text)
    return f"{shlex.quote(before) if before else ''}{_JOB}{shlex.quote(after) if after else ''}"


def _python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])
