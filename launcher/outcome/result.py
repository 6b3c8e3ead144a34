"""How a job has ended, for programs: what ``launch`` returns, and its form between processes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from kvstore_mpi.errors import InternalError, KVStoreError, error_from_wire
from mpilaunch.outcome.root_cause import Failure, Verdict, describe_code


@dataclass(frozen=True)
class Result:
    """How a job has ended.

    Attributes:
        verdict: Why, with everything that has failed and was started again.
        log_folder: Where all lines of all processes are.
        report: What ``report`` and ``trace`` have to say; empty without them.
        seconds: From the start of mpilaunch to the end of the job.
    """

    verdict: Verdict
    log_folder: str
    report: str
    seconds: float

    @property
    def code(self) -> int:
        """The exit code of ``mpilaunch``; 0 is a success."""
        return self.verdict.code

    @property
    def cause(self) -> Failure | None:
        """The failure that explains the others: who, where, with what; ``None`` if there was none."""
        return self.verdict.cause

    def __str__(self) -> str:
        """Return a line for people."""
        cause = self.cause
        place = f" on {cause.host}" if cause and cause.host else ""
        what = ": ".join(part for part in (cause.error, cause.text) if part) if cause else ""
        why = f" ({cause.who}{place}: {what or describe_code(cause.code)})" if cause else ""
        return f"{describe_code(self.code)}{why} after {self.seconds:.1f} s; logs: {self.log_folder}"


class _Error(msgspec.Struct, frozen=True):
    """An error before the job began."""

    name: str
    text: str


class _Told(msgspec.Struct, frozen=True):
    """Either of both."""

    result: Result | None = None
    error: _Error | None = None


def write(outcome: Result | KVStoreError) -> bytes:
    """Return an outcome as bytes."""
    if isinstance(outcome, Result):
        return msgspec.json.encode(_Told(result=outcome))
    return msgspec.json.encode(_Told(error=_Error(type(outcome).__name__, str(outcome))))


def read(content: bytes) -> Result:
    """Return the result that another process has written.

    Raises:
        KVStoreError: The error that it has written instead, or that it has written nothing.
    """
    try:
        told = msgspec.json.decode(content, type=_Told)
    except msgspec.DecodeError as error:
        raise InternalError(f"mpilaunch has ended without a result: {error}") from error
    if told.result is None:
        raise (
            error_from_wire(told.error.name, told.error.text) if told.error else InternalError("no result")
        )
    return told.result
