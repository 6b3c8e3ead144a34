"""``mpilaunch``: reads the command line and runs the job. Thin: decisions are elsewhere."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi import __version__
from kvstore_mpi.comm.started import started_by_a_rank
from kvstore_mpi.errors import ConfigurationError, KVStoreError, UsageError
from mpilaunch import descriptors
from mpilaunch.claims import check_is_there, claimed
from mpilaunch.command_table import COMMANDS
from mpilaunch.commands import open_missing_streams, run_command, told_as_code, written
from mpilaunch.cores import cores_here
from mpilaunch.events import Limits
from mpilaunch.hosts.allocation import check_started_once, choose_backend
from mpilaunch.hosts.cluster import SCRIPT, SILENCE_SECONDS, ClusterHosts, is_here, make_reach
from mpilaunch.hosts.hostlist import place
from mpilaunch.hosts.local import LocalHost
from mpilaunch.inputs import check_profile, read_hosts, read_text
from mpilaunch.job_secret import job_record
from mpilaunch.jobfile import NO_FILE, read_job_file
from mpilaunch.jobspec import (
    JobSpec,
    Target,
    alone_errors,
    idle_options,
    validate,
    with_defaults,
    with_sleeping_waits,
    with_threads,
)
from mpilaunch.leaders import with_leaders
from mpilaunch.mpi import find_mpi
from mpilaunch.options import make_parser, read_spec, spell, split_command
from mpilaunch.outcome.report import describe, explained
from mpilaunch.outcome.result import Result
from mpilaunch.outlet import Outlets
from mpilaunch.plan import JOB_FILE, SERVICE_COMMAND, Paths, Sites, inherited, make_plan
from mpilaunch.planning.planned import check_hosts, with_plan
from mpilaunch.printer import LogFiles, Printer, make_log_folder, wants_colours
from mpilaunch.rendering.script import PRIVATE, render
from mpilaunch.seeing.endpoint import parse_address, serve
from mpilaunch.seeing.observer import Observer
from mpilaunch.slices import with_slices
from mpilaunch.supervise import Supervisor
from mpilaunch.trace import (
    finish_trace,
    gather,
    lost_runs,
    make_trace_folder,
    recording_folder,
    trace_folder,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mpilaunch.hosts.allocation import Choice
    from mpilaunch.hosts.hostlist import Placement
    from mpilaunch.hosts.interface import Host
    from mpilaunch.jobfile import JobFile
    from mpilaunch.mpi import Mpi


def make_spec(options: argparse.Namespace, target: Target, command: tuple[str, ...]) -> JobSpec:
    """Make a job of a parsed command line.

    Raises:
        UsageError: Something is wrong with it; the text lists everything.
    """
    return checked_spec(options, target, command, _job_file(options))


def _job_file(options: argparse.Namespace) -> JobFile:
    path = getattr(options, "config", "")
    return read_job_file(read_text(path, "--config"), path) if path else NO_FILE


def checked_spec(
    options: argparse.Namespace, target: Target, command: tuple[str, ...], file: JobFile
) -> JobSpec:
    """Make a job of a parsed command line and a job file.

    Raises:
        UsageError: Something is wrong with it; the text lists everything.
    """
    spec, errors = _understood(options, target, command, file)
    errors += validate(spec, spell, lambda path: Path(path).is_file(), shutil.which)
    if errors:
        raise UsageError("\n".join(errors))
    check_profile(spec.node.collective_profile)
    if spec.metrics:
        parse_address(spec.metrics)
    if spec.node.snapshot_dir:
        folder = str(Path(spec.node.snapshot_dir).absolute())
        spec = replace(spec, node=replace(spec.node, snapshot_dir=folder))
    return spec


def understood(
    options: argparse.Namespace,
    target: Target,
    command: tuple[str, ...],
    is_file: Callable[[str], bool],
    find_executable: Callable[[str], str | None],
) -> tuple[JobSpec, list[str]]:
    """Return the job of a parsed command line that is to run elsewhere, and what is wrong with it."""
    spec, errors = _understood(options, target, command, _job_file(options))
    return spec, [*errors, *validate(spec, spell, is_file, find_executable)]


def _understood(
    options: argparse.Namespace, target: Target, command: tuple[str, ...], file: JobFile
) -> tuple[JobSpec, list[str]]:
    for name, value in file.options.items():
        vars(options).setdefault(name, value)
    contradictions, cut, ranks = _take_plan(options)
    spec, errors = read_spec(options, target, command, os.environ, file)
    spec = replace(spec, node=replace(spec.node, cut=cut), planned_ranks=ranks)
    return spec, [*errors, *contradictions]


def _take_plan(options: argparse.Namespace) -> tuple[list[str], str, int]:
    """Set what the plan of ``--plan`` says, if there is one.

    Returns:
        What contradicts the command line; the cut of each worker's net as JSON, if there is one; the most
        ranks that it has on a host, if it says so.
    """
    path = getattr(options, "plan", "")
    if not path:
        return [], "", 0
    # Other jobs do without the planner, which loads NumPy: a third of what mpilaunch takes to start.
    plan_file = importlib.import_module("kvstore_mpi.planner.plan_file")
    plan = plan_file.read_plan(read_text(path, "--plan").encode(), path)
    cut = plan.cut.to_json() if plan.cut else ""
    return with_plan(options, plan_file.job_of(plan), path), cut, plan.ranks_of_host


def read_job(head: Sequence[str], target: Target, command: tuple[str, ...]) -> tuple[JobSpec, bool]:
    """Read a command line that ``split_command`` has split; return the job, and whether only to print it.

    Raises:
        UsageError: Something is wrong with it, or there are several of this process.
    """
    options = make_parser(__version__).parse_args(head)
    if not started_by_a_rank():
        check_started_once(os.environ)
    return make_spec(options, target, command), options.dry_run


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mpilaunch``; return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    open_missing_streams()
    try:
        if arguments and arguments[0] in COMMANDS:
            return run_command(arguments[0], arguments[1:], sys.stdout)
        with written(sys.stdout):  # --help and --version end here
            spec, only_print = read_job(*split_command(arguments))
        if "--help" in spec.command[1:] and not only_print:
            return show_help(spec)
        spec = with_sleeping_waits(spec, os.environ)
        if not only_print:
            return run_job(spec).code
        with written(sys.stdout):
            return dry_run(spec)
    except (KVStoreError, OSError) as error:
        return told_as_code(error)
    except KeyboardInterrupt:  # before a job has begun: from then on it is told to end like by any signal
        sys.stderr.write("mpilaunch: interrupted\n")
        return 128 + signal.SIGINT


def show_help(spec: JobSpec) -> int:
    """Let the script say what it takes: once and here, as it ends before there would be a job."""
    python = {Target.SCRIPT: (sys.executable,), Target.MODULE: (sys.executable, "-m")}
    words = (*python.get(spec.target, ()), *spec.command)
    return subprocess.run(words, check=False).returncode  # noqa: S603  the command that the user gave


def choose_place(spec: JobSpec) -> tuple[Choice, Placement | None]:
    """Return how hosts are reached, and where processes go; ``None`` where all are on this host.

    Raises:
        UsageError: A list is wrong, contradicts the allocation, or the job does not fit.
        MismatchError: It was planned for other hosts.
    """
    choice, placement = _choose_place(spec)
    if spec.planned_ranks:
        clients = (
            placement.ranks if placement else spec.topology.num_clients * [spec.client_ranks * ["here"]]
        )
        check_hosts(spec.plan, spec.planned_ranks, [host for client in clients for host in client])
    return choice, placement


def _choose_place(spec: JobSpec) -> tuple[Choice, Placement | None]:
    given = read_hosts(spec.hosts, spec.hostfile)
    choice = choose_backend(spec.backend, given, os.environ, _text_if_there)
    if not choice.hosts:
        errors = alone_errors(spec, spell)
        if errors:
            raise UsageError("\n".join(errors))
        return choice, None
    shape = spec.topology
    try:
        placement = place(
            choice.hosts,
            num_clients=shape.num_clients,
            client_size=spec.client_ranks,
            num_servers=shape.num_servers,
            servers=spec.server_hosts,
        )
    except UsageError as error:
        if not choice.told:
            raise
        raise UsageError(f"{error}\n{choice.told}; --backend local runs all on this host") from error
    return choice, placement


def _text_if_there(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def for_this_host(spec: JobSpec, mpi: Mpi) -> JobSpec:
    """Add what ranks are told where all of them are on this host; other hosts tell theirs themselves."""
    spec = with_threads(spec, cores_here(), os.environ)
    return with_defaults(spec, mpi.flavour.defaults, os.environ)


def _placed(spec: JobSpec) -> tuple[JobSpec, Mpi, Choice, Placement | None]:
    """Return a job as it is where it goes, and what starts its ranks; and what ``choose_place`` returns."""
    mpi = find_mpi()
    choice, placement = choose_place(spec)
    spec = with_slices(spec, placement)
    if placement is None:
        spec = for_this_host(spec, mpi)
        if spec.node.resume:
            check_is_there(spell("snapshot_dir"), spec.node.snapshot_dir)
    return spec, mpi, choice, placement


def dry_run(spec: JobSpec) -> int:
    """Print what would be started."""
    descriptors.check(descriptors.needed(spec))
    spec, mpi, choice, placement = _placed(spec)
    job_record("", spec.secret_file)  # whoever cannot read it is told now
    paths = Paths(PRIVATE, recording_folder(spec, Path(PRIVATE), spread=placement is not None))
    told, sites = idle_options(spec, spell), None
    if placement is not None:
        reach = make_reach(spec.ssh, choice.backend, os.environ)
        # Whether a name is this host's the resolver tells, which may be slow; it matters for sockets alone.
        tells = spec.node.transport == "ipc"
        addresses = {
            host: f"(address of {'this host' if tells and is_here(host) else host})"
            for host in placement.hosts
        }
        where = (placement, addresses, "(own address)", reach, f"{PRIVATE}/{SCRIPT}")
        sites = Sites(*where, cores={}, inherited=frozenset(inherited(os.environ)))
        told = [*filter(None, (choice.told, str(placement))), *told]
    sys.stdout.write(render(make_plan(spec, mpi, paths, sites=sites), told))
    return 0


def run_job(spec: JobSpec, service_command: tuple[str, ...] | None = None) -> Result:
    """Run a job to its end."""
    began, told = time.monotonic(), ""
    gc.freeze()  # what the imports have made stays: collections, at the end too, need not look at it
    descriptors.allow(descriptors.needed(spec))
    spec, mpi, choice, placement = _placed(spec)
    job = secrets.token_hex(8)
    record = job_record(job, spec.secret_file)
    # Whoever reads what we say may take his time when everything of the job is gone.
    with contextlib.ExitStack() as last, _make_hosts(spec, choice, placement) as (hosts, sites):
        folders = {spell("snapshot_dir"): spec.node.snapshot_dir, spell("trace"): spec.trace}
        last.enter_context(claimed(folders))
        host = hosts[""]
        logs = LogFiles(_log_folder(spec, job))
        outlets = last.enter_context(Outlets(sys.stdout.fileno(), sys.stderr.fileno(), str(logs.folder)))
        printer = Printer(outlets.out, outlets.err, logs, colours=wants_colours(os.environ))
        private = Path(host.directory)
        folder = trace_folder(spec, private)
        paths = Paths(host.directory, recording_folder(spec, private, spread=sites is not None))
        with _use_private_folder():
            for each in each_once(hosts):
                each.put(JOB_FILE, record)
        make_trace_folder(folder)
        if placement is not None:
            printer.say("\n".join(filter(None, [choice.told, str(placement)])))
        for line in idle_options(spec, spell):
            printer.say(line)
        if sites is not None:
            spec = with_leaders(spec, sites.placement, sites.cores)
        plan = make_plan(spec, mpi, paths, service_command or SERVICE_COMMAND, sites)
        saves = bool(spec.node.snapshot_dir)
        limits = Limits(spec.grace, spec.timeout, spec.max_restarts, spec.join_warning, saves)
        observer = Observer(spec, job, host.directory, printer)
        last.enter_context(serve(spec.metrics, observer.view, printer.say))
        with _use_private_folder():
            supervisor = Supervisor(
                plan,
                hosts,
                printer,
                inherited(os.environ),
                limits,
                observer=observer,
                output_failed=outlets.failed,
            )
        verdict = explained(supervisor.run(), printer.tails)
        if folder:
            recorded = Path(paths.trace_dir)
            problems = [] if sites is None else gather(each_once(hosts), recorded, Path(folder))
            problems += lost_runs(verdict.restarts)
            told = finish_trace(spec, Path(folder), logs.folder, problems)
            printer.say(told)
        printer.say(_told_stop(hosts) + describe(verdict, printer.tails, str(logs.folder), limits))
        logs.close()
    return Result(verdict, str(logs.folder), told, time.monotonic() - began)


def _told_stop(hosts: Mapping[str, Host]) -> str:
    """Return what has gone before where hosts have taken us for dead: it is none of their faults."""
    stopped = max(each.stopped() for each in each_once(hosts))
    if not stopped:
        return ""
    return (
        f"mpilaunch itself was stopped for at least {stopped:.0f} s; hosts that hear nothing of it for "
        f"{SILENCE_SECONDS:.0f} s tell their ranks to end\n"
    )


def each_once(hosts: Mapping[str, Host]) -> list[Host]:
    """Return the hosts; this one may have a name as well."""
    return list({id(each): each for each in hosts.values()}.values())


@contextlib.contextmanager
def _make_hosts(
    spec: JobSpec, choice: Choice, placement: Placement | None
) -> Iterator[tuple[Mapping[str, Host], Sites | None]]:
    """Make the hosts of a job, and end and remove everything of it on them afterwards."""
    if placement is None:
        with _make_local() as local:
            yield {"": local}, None
        return
    with _use_private_folder():
        reach = make_reach(spec.ssh, choice.backend, os.environ)
        reached = ClusterHosts(placement, reach, spec.grace)
    with reached:
        yield reached.hosts, reached.sites(spec.network, dict(spec.env))


def _make_local() -> LocalHost:
    with _use_private_folder():
        return LocalHost()


@contextlib.contextmanager
def _use_private_folder() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the private folder of the job cannot be made or used: {error.strerror} ({error.filename}); "
            "choose another place with TMPDIR"
        ) from error


def _log_folder(spec: JobSpec, job: str) -> Path:
    try:
        return make_log_folder(Path(spec.log_dir), job, time.localtime())
    except OSError as error:
        raise ConfigurationError(
            f"the folder for log files cannot be made in {spec.log_dir!r}: {error.strerror}; "
            "choose another place with --log-dir"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
