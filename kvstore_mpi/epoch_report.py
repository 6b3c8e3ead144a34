"""``report_epoch``: a script says how good it is, and hears whether that is good enough.

``mpilaunch measure-epochs`` gives its jobs a file, whose first line is the target; each worker appends a
line for each report. Everywhere else a report does nothing. Scripts may also ask for the job's delay.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

log = logging.getLogger("kvstore_mpi.mxnet")

_ASKED = "delay.asked"
"""In the job's private folder on a host, once a rank there has asked for the delay."""


class Target(msgspec.Struct, frozen=True):
    """What is to be reached.

    Attributes:
        metric: The value.
        lower: Smaller values are better, as of a loss.
    """

    metric: float
    lower: bool = False

    def is_reached(self, metric: float) -> bool:
        """Tell whether a value is as good; what is no number never is."""
        return metric <= self.metric if self.lower else metric >= self.metric


class Report(NamedTuple):
    """One line.

    Attributes:
        worker: Tells the processes of the job apart.
        epochs: Passes over the data so far.
        metric: What has been reached.
    """

    worker: int
    epochs: float
    metric: float


def report_epoch(metric: float, epochs: float | None = None) -> bool:
    """Say what has been reached after an epoch; all workers must, with the same value.

    Args:
        metric: Of the whole model, say an accuracy or a loss on data that was kept apart.
        epochs: Passes over the data so far, also a part of one; the number of reports if not given.

    Returns:
        Whether that is the target of ``mpilaunch measure-epochs``, so that training may end. Without that
        command, ``False``.
    """
    from kvstore_mpi.node import process_config  # noqa: PLC0415  where nobody measures, nothing else is needed

    path = process_config().epochs_file
    if not path:
        return False
    target, reports = read_reports(Path(path))
    own = os.getpid()
    if epochs is None:
        epochs = 1.0 + sum(each.worker == own for each in reports)
    with Path(path).open("ab") as file:  # one write, at the end, whoever else writes
        file.write(msgspec.json.encode(Report(own, epochs, float(metric))) + b"\n")
    return target.is_reached(metric)


def asked_delay() -> int:
    """Return how many batches an update of this job is made of (``mpilaunch --delay``).

    ``mpilaunch measure-epochs`` sees to it that somebody in the script has asked: one that does not would
    train with the same batch each time.
    """
    from kvstore_mpi.node import process_config  # noqa: PLC0415  as above

    config = process_config()
    if config.epochs_file:
        _mark_of(Path(config.epochs_file)).touch()
    if config.record_dir:
        with contextlib.suppress(OSError):  # the disk is full: a warning too many
            Path(config.record_dir, _ASKED).touch()
    return config.delay


def warn_of_idle_delay(worker: int) -> None:
    """Warn where the job is to have a delay, and nobody has asked for it before an optimizer is set.

    Args:
        worker: The one that sets it; all do, and the first one speaks for them.
    """
    from kvstore_mpi.node import process_config  # noqa: PLC0415  as above

    config = process_config()
    if worker or config.delay == 1 or not config.record_dir:
        return
    if not Path(config.record_dir, _ASKED).exists():
        log.warning(
            "--delay %d has no effect: updates are made of one batch each; make a "
            "kvstore_mpi.mxnet.DelayedTrainer of the trainer, without delay=..., or leave --delay out",
            config.delay,
        )


def was_asked(path: Path) -> bool:
    """Tell whether a worker of the job with this file has asked for the delay."""
    return _mark_of(path).exists()


def _mark_of(path: Path) -> Path:
    return path.with_suffix(".asked")


def read_reports(path: Path) -> tuple[Target, list[Report]]:
    """Return the target that a file is for, and all reports."""
    head, *lines = path.read_bytes().splitlines()
    return msgspec.json.decode(head, type=Target), [
        msgspec.json.decode(line, type=Report) for line in lines
    ]


def epochs_to_target(target: Target, reports: list[Report]) -> float | None:
    """Return after how many epochs the last worker had reached the target; ``None`` if one has not."""
    first: dict[int, float | None] = {}
    for each in reports:
        if first.setdefault(each.worker, None) is None and target.is_reached(each.metric):
            first[each.worker] = each.epochs
    found = [epochs for epochs in first.values() if epochs is not None]
    return max(found) if found and len(found) == len(first) else None
