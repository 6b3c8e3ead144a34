"""``--plan FILE``: what a plan says of a job, beside what the user has said. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.settings import Source, settings_of
from mpilaunch.jobspec import JobSpec
from mpilaunch.options import parse_settings, spell

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping


def with_plan(options: argparse.Namespace, job: Mapping[str, int], where: str) -> list[str]:
    """Set, in a parsed command line, what a plan says and the user has not.

    Args:
        options: Changed in place.
        job: Values by the names of their fields (``planner.plan_file.job_of``).
        where: The file, for errors.

    Returns:
        What contradicts, in words: the user may leave out what the plan says, or say the same.
    """
    sources = {
        each.name: setting.source
        for record in (NodeConfig, JobSpec)
        for each, setting in settings_of(record)
    }
    said: dict[str, Any] = {**vars(options), **parse_settings(options.set)[0]}
    errors = []
    for name, value in job.items():
        if name not in sources:
            errors.append(
                f"the plan {where} wants {name.replace('_', ' ')} {value}, which this version cannot run"
            )
        elif name in said and said[name] != value:
            errors.append(
                f"{spell(name)} {said[name]} contradicts the plan {where}, which has {value}: leave one of "
                "them out"
            )
        elif name in said:
            continue
        elif sources[name] is Source.OPTION:
            setattr(options, name, value)
        else:
            options.set = [*options.set, f"{name}={value}"]
    return errors
