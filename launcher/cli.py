"""``mpilaunch``: reads the command line and runs the job. Thin: decisions are elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore_mpi import __version__, private_files
from kvstore_mpi.errors import ConfigurationError, KVStoreError, UsageError
from mpilaunch import descriptors
from mpilaunch.events import Limits
from mpilaunch.hosts.hostlist import parse_hostfile, parse_hosts, place
from mpilaunch.hosts.local import LocalHost
from mpilaunch.hosts.ssh import SshHosts
from mpilaunch.jobspec import JobSpec, Target, validate, with_defaults, with_threads
from mpilaunch.mpi import find_mpi
from mpilaunch.options import make_parser, read_spec, spell, split_command
from mpilaunch.outlet import Outlets
from mpilaunch.plan import JOB_FILE, SERVICE_COMMAND, Paths, Sites, inherited, make_plan, render
from mpilaunch.printer import LogFiles, Printer, make_log_folder
from mpilaunch.report import describe
from mpilaunch.supervise import Supervisor
from mpilaunch.trace import finish_trace, make_trace_folder, trace_folder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from mpilaunch.hosts.hostlist import Placement
    from mpilaunch.hosts.interface import Host


def make_spec(options: argparse.Namespace, target: Target, command: tuple[str, ...]) -> JobSpec:
    """Make a job of a parsed command line.

    Raises:
        UsageError: Something is wrong with it; the text lists everything.
    """
    spec, errors = read_spec(options, target, command, os.environ)
    errors += validate(spec, spell, lambda path: Path(path).is_file(), shutil.which)
    if errors:
        raise UsageError("\n".join(errors))
    if not spec.node.snapshot_dir:
        return spec
    folder = str(Path(spec.node.snapshot_dir).absolute())
    return replace(spec, node=replace(spec.node, snapshot_dir=folder))


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mpilaunch``; return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments == ["doctor"]:
        from mpilaunch.doctor import run_doctor  # noqa: PLC0415  not needed to run a job

        return run_doctor(sys.stdout)
    head, target, command = split_command(arguments)
    options = make_parser(__version__).parse_args(head)
    try:
        spec = make_spec(options, target, command)
        spec = with_threads(spec, os.cpu_count() or 1, os.environ)
        return dry_run(spec) if options.dry_run else run_job(spec)
    except KVStoreError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"mpilaunch: {line}\n")
        return error.exit_code


def read_placement(spec: JobSpec) -> Placement | None:
    """Return where the processes of a job on named hosts go; ``None`` if it names none.

    Raises:
        UsageError: The list is wrong, or the job does not fit.
    """
    if not spec.hosts and not spec.hostfile:
        return None
    if spec.hosts and spec.hostfile:
        raise UsageError("give either --hosts or --hostfile")
    shape = spec.topology
    return place(
        parse_hosts(spec.hosts) if spec.hosts else parse_hostfile(_text_of(spec.hostfile), spec.hostfile),
        num_clients=shape.num_clients,
        client_size=shape.client_size,
        num_servers=shape.num_servers,
        servers=spec.server_hosts,
    )


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {path} cannot be read: {error}") from error


def dry_run(spec: JobSpec) -> int:
    """Print what would be started."""
    private = Path("(private directory)")
    paths = Paths(str(private), trace_folder(spec, private))
    mpi = find_mpi()
    placement = read_placement(spec)
    if placement is None:
        spec = with_defaults(spec, mpi.flavour.defaults, os.environ)
        sys.stdout.write(render(make_plan(spec, mpi, paths)))
        return 0
    unknown = "(on the network in common)"
    sites = Sites(placement, dict.fromkeys(placement.hosts, unknown), unknown, str(private / "ssh"))
    sys.stdout.write(f"{placement}\n\n{render(make_plan(spec, mpi, paths, sites=sites))}")
    return 0


def run_job(spec: JobSpec, service_command: tuple[str, ...] | None = None) -> int:
    """Run a job to its end; return its exit code."""
    descriptors.allow(descriptors.needed(spec))
    mpi = find_mpi()
    placement = read_placement(spec)
    if placement is None:
        spec = with_defaults(spec, mpi.flavour.defaults, os.environ)
    if spec.node.snapshot_dir:
        _make_folder(spec.node.snapshot_dir)
    job = secrets.token_hex(8)
    # Whoever reads what we say may take his time when everything of the job is gone.
    with contextlib.ExitStack() as last, _make_hosts(spec, placement) as (hosts, sites):
        host = hosts[""]
        logs = LogFiles(_log_folder(spec, job))
        outlets = last.enter_context(Outlets(sys.stdout.fileno(), sys.stderr.fileno(), str(logs.folder)))
        printer = Printer(outlets.out, outlets.err, logs)
        paths = Paths(host.directory, trace_folder(spec, Path(host.directory)))
        with _use_private_folder():
            secret = json.dumps({"job": job, "secret": secrets.token_hex(32)}).encode()
            for each in {id(each): each for each in hosts.values()}.values():
                each.put(JOB_FILE, secret)
        make_trace_folder(paths.trace_dir)
        if placement is not None:
            printer.say(str(placement))
        plan = make_plan(spec, mpi, paths, service_command or SERVICE_COMMAND, sites)
        limits = Limits(spec.grace, spec.timeout, spec.max_restarts, spec.join_warning)
        with _use_private_folder():
            supervisor = Supervisor(
                plan, hosts, printer, inherited(os.environ), limits, output_failed=outlets.failed
            )
        verdict = supervisor.run()
        if paths.trace_dir:
            printer.say(finish_trace(spec, Path(paths.trace_dir)))
        printer.say(describe(verdict, printer.tails, str(logs.folder), limits))
        logs.close()
    return verdict.code


@contextlib.contextmanager
def _make_hosts(
    spec: JobSpec, placement: Placement | None
) -> Iterator[tuple[Mapping[str, Host], Sites | None]]:
    """Make the hosts of a job, and end and remove everything of it on them afterwards."""
    if placement is None:
        with _make_local() as local:
            yield {"": local}, None
        return
    with _use_private_folder():
        reached = SshHosts(placement, spec.ssh)
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


def _make_folder(path: str) -> None:
    try:
        private_files.make_folder(Path(path))
    except OSError as error:
        raise ConfigurationError(
            f"the folder for snapshots {path!r} cannot be made or used: {error.strerror}; choose another "
            "place with --snapshot-dir"
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
