"""``--plan FILE``: what a plan says of a job, beside what the user has said, and of its hosts. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import MismatchError
from kvstore_mpi.settings import Source, settings_of
from mpilaunch.jobspec import JobSpec
from mpilaunch.options import parse_settings, spell

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence


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


def check_hosts(where: str, most: int, hosts: Sequence[str]) -> None:
    """Check that ranks are on hosts as they were planned; what else a plan says may be far off otherwise.

    Workers are planned for whole hosts, one after the other (``planner.communication.sites_of``).

    Args:
        where: The file of the plan, for errors.
        most: Ranks on one host of the cluster that was planned for.
        hosts: The host of each rank of the job.

    Raises:
        MismatchError: They are on more hosts or fewer, or more of them on one.
    """
    needed, ranks = -(-len(hosts) // most), Counter(hosts)
    if len(ranks) != needed or max(ranks.values()) > most:
        raise MismatchError(
            f"{where} is a plan for another cluster: it has {len(hosts)} ranks on {needed} host(s), "
            f"{most} at most on each, and this job has them on {len(ranks)} ({_counted(ranks)}): give it "
            f"such hosts (--hosts NAME:{most},...), or make a plan for these with mpilaunch plan"
        )


def _counted(ranks: Mapping[str, int]) -> str:
    return ", ".join(f"{host}: {count}" for host, count in ranks.items())
