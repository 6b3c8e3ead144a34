"""The words of the last block: who failed first, with what, its last lines, and what to do. Pure."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from kvstore_mpi.launcher_events import CANNOT_CONNECT
from mpilaunch.outcome.exit_codes import DEFECT, REMEDIES
from mpilaunch.outcome.root_cause import (
    Failure,
    Reason,
    Verdict,
    describe_code,
    describe_restart,
    is_signal,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpilaunch.events import Limits

_MEMORY = (
    "memory ran out: use a smaller batch or fewer workers per host, or raise the limit (ulimit -v, or "
    "that of the container)"
)
_HOST_LOST = (
    "start the job again when the host is back, or without it; what has run on a host that is lost is not "
    "started again within a job"
)
_LOOK_AT_NETWORK = (
    "look at the routes and firewalls between these hosts, or choose another network with --interface"
)
_RULE = "-" * 72
_MOST_SAY = 3
"""Of the processes that cannot connect: others are in the logs."""


def explained(verdict: Verdict, tails: Mapping[str, Sequence[str]]) -> Verdict:
    """Return a verdict whose cause says who does not reach others, and why, if all it tells is a loss.

    Args:
        verdict: How the job has ended.
        tails: The last lines of each process.
    """
    cause = verdict.cause
    # What was not waited for explains itself, and a network that was away for a while had its end.
    if cause is None or not cause.is_secondary:
        return verdict
    said = [
        f"{who} {CANNOT_CONNECT}{why}"
        for who, tail in tails.items()
        for why in [line.rpartition(CANNOT_CONNECT)[2] for line in tail if CANNOT_CONNECT in line][-1:]
    ]
    if not said:
        return verdict
    # A server or the scheduler leaves no record: its last line says why it has ended.
    *_, last = "", *tails.get(cause.who, ())
    text = "; ".join(filter(None, [cause.text or last, *said[:_MOST_SAY]]))
    told = replace(cause, text=text, remedy=cause.remedy or _LOOK_AT_NETWORK)
    failures = tuple(told if each is cause else each for each in verdict.failures)
    return replace(verdict, cause=told, failures=failures)


def describe(
    verdict: Verdict,
    tails: Mapping[str, Sequence[str]],
    log_folder: str,
    limits: Limits,
) -> str:
    """Return the block that ends a job's output, or nothing after a success.

    Args:
        verdict: How the job has ended.
        tails: The last lines of each process.
        log_folder: Where all lines are.
        limits: What the user has allowed the job.
    """
    if verdict.reason is Reason.SUCCESS:
        return "\n".join(_restart_lines(verdict))
    if verdict.reason is Reason.SIGNAL and verdict.is_clean:
        return f"{'; '.join(_reason_lines(verdict, limits))}; logs: {log_folder}; exit code {verdict.code}"
    lines = [_RULE, *_restart_lines(verdict), *_reason_lines(verdict, limits)]
    if verdict.cause is not None:
        lines += _cause_lines(verdict.cause, tails)
        lines += _other_lines(verdict)
    lines += [f"logs: {log_folder}", f"exit code {verdict.code}", _RULE]
    return "\n".join(lines)


def _restart_lines(verdict: Verdict) -> list[str]:
    return [f"restarted during the job: {describe_restart(each)}" for each in verdict.restarts]


def _reason_lines(verdict: Verdict, limits: Limits) -> list[str]:
    late = ", ".join(verdict.unsaved)
    lines = []
    if verdict.reason is Reason.TIMEOUT:
        lines.append(f"the job was ended because it took longer than --timeout {limits.timeout:g} s")
    elif verdict.reason is Reason.SIGNAL:
        lines.append(f"the job was ended by {signal.Signals(verdict.signum).name} to mpilaunch")
        if not late and not is_signal(verdict.code):
            lines.append("all ranks have ended in time")
    if late:
        lines.append(f"did not end within --grace {limits.grace:g} s and may have lost work: {late}")
    return lines


def _cause_lines(cause: Failure, tails: Mapping[str, Sequence[str]]) -> list[str]:
    place = f" on {cause.host}" if cause.host else ""
    process = f" (pid {cause.pid})" if cause.pid else ""
    lines = [f"{cause.who}{place}{process} failed first: {describe_code(cause.code)}"]
    what = ": ".join(part for part in (cause.error, cause.text) if part)
    lines += [f"  {line}" for line in what.splitlines()]
    tail = tails.get(cause.who) or tails.get(_client_of(cause.who), ())
    lines += ["its last lines:", *(f"  {line}" for line in tail)] if tail else ["it has said nothing"]
    lines.append(f"what to do: {remedy(cause)}")
    return lines


def _client_of(rank: str) -> str:
    """Return the name of a rank's client: ``client1~2`` for ``client1.0~2``."""
    client, _, rest = rank.partition(".")
    return client + "".join(rest.partition("~")[1:])


def _other_lines(verdict: Verdict) -> list[str]:
    others = [
        f"{each.who} {describe_code(each.code)}" for each in verdict.failures if each is not verdict.cause
    ]
    return ["then failed, too: " + "; ".join(others)] if others else []


def remedy(failure: Failure) -> str:
    """Return what to do about a failure."""
    if failure.remedy or failure.host_is_lost:
        return failure.remedy or _HOST_LOST
    if failure.error == MemoryError.__name__ or "bad_alloc" in failure.text:
        return _MEMORY
    if failure.code == 1 and not failure.who.startswith("client"):
        return DEFECT  # a service runs no script of the user's
    if failure.code in REMEDIES:
        return REMEDIES[failure.code]
    if is_signal(failure.code):
        return "a signal ended it; its last lines may say why"
    return "the script chose this exit code; its last lines may say why"
